//! Draws a [`Plot`] as SVG, in two sizes: for a desk and for a phone.
//!
//! The legend has rows of its own above the lines, so it never covers any. Each line has a colour and marks of a
//! shape; colours were chosen to be told apart with any eyes (after Okabe and Ito), on white and, by the page's own style
//! sheet, on black. A line with more points than there are pixels is drawn by what can be seen of it.

mod marks;
mod outline;
mod scale;

use anyhow::{Context, Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::{
        BLACK, Cartesian2d, ChartBuilder, ChartContext, Color, DrawingArea, FontFamily,
        IntoDrawingArea, IntoFont, PathElement, RGBColor, SVGBackend, TRANSPARENT, Text, TextStyle,
        WHITE,
    },
    style::text_anchor::{HPos, Pos, VPos},
};

use self::{
    marks::Mark,
    scale::{Ends, Scale},
};
use super::Plot;

/// Colours of the lines, on white and on black.
pub(super) const PALETTE: [(RGBColor, RGBColor); 7] = [
    (RGBColor(0x00, 0x72, 0xB2), RGBColor(0x5A, 0xB4, 0xF0)),
    (RGBColor(0xD5, 0x5E, 0x00), RGBColor(0xFF, 0x8A, 0x3D)),
    (RGBColor(0x00, 0x8A, 0x64), RGBColor(0x2F, 0xCF, 0x9F)),
    (RGBColor(0xAA, 0x33, 0x77), RGBColor(0xE5, 0x8A, 0xC4)),
    (RGBColor(0x3A, 0x9B, 0xD6), RGBColor(0x9A, 0xD7, 0xFF)),
    (RGBColor(0xB0, 0x7C, 0x00), RGBColor(0xF0, 0xC0, 0x40)),
    (RGBColor(0x55, 0x55, 0x55), RGBColor(0xBB, 0xBB, 0xBB)),
];

/// Grid and axes: readable on white and on black.
const GRAY: RGBColor = RGBColor(0x7F, 0x7F, 0x7F);
const GRID_OPACITY: f64 = 0.25;
const LINE_WIDTH: u32 = 2;

/// For plotters; it becomes 12 pixels in the file, since the SVG backend divides by 1.24.
const TEXT_SIZE: f64 = 12.0 * 1.24;
const TITLE_SIZE: f64 = 15.0 * 1.24;
/// Width of a character of that text, a little more than the mean of usual sans-serif fonts: without fonts to
/// look into, this decides what fits.
const CHARACTER_WIDTH: u32 = 7;

const MARGIN: u32 = 8;
const ROW_HEIGHT: u32 = 20;
const TITLE_HEIGHT: u32 = 28;
const X_AXIS_HEIGHT: u32 = 44;
const Y_LABEL_WIDTH: u32 = 26;
/// In the legend: the line with its mark before a name, and the space after that.
const SAMPLE_WIDTH: u32 = 28;
const NAME_GAP: u32 = 16;
/// Least distance of ticks.
const X_TICK_DISTANCE: u32 = 75;
const Y_TICK_DISTANCE: u32 = 45;

/// How large a plot is drawn, and whether it must stand alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    width: u32,
    /// Without title and legend.
    height: u32,
    /// With a title and a background, for a file of its own.
    is_file: bool,
}

/// In the page, on a desk.
pub(super) const WIDE: Form = Form {
    width: 900,
    height: 320,
    is_file: false,
};
/// In the page, on a phone.
pub(super) const NARROW: Form = Form {
    width: 380,
    height: 270,
    is_file: false,
};
const FILE: Form = Form {
    is_file: true,
    ..WIDE
};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// All plots as files: name and SVG.
///
/// # Errors
/// When one cannot be drawn, or two have the same name.
pub(super) fn files(plots: &[Plot]) -> Result<Vec<(String, String)>> {
    let mut files: Vec<(String, String)> = Vec::with_capacity(plots.len());
    for plot in plots {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        let name: String = plot
            .name
            .chars()
            .map(|c| if is_plain(c) { c } else { '-' })
            .collect();
        let name = format!("{name}.svg");
        if files.iter().any(|(other, _)| *other == name) {
            return Err(anyhow!("two plots have the name {name}"));
        }
        files.push((name, draw(plot, FILE)?));
    }
    Ok(files)
}

/// The plot as SVG.
///
/// # Errors
/// When it cannot be drawn.
pub(super) fn draw(plot: &Plot, form: Form) -> Result<String> {
    let legend = Legend::new(plot, form.width - 2 * MARGIN);
    let head = if form.is_file { TITLE_HEIGHT } else { 0 } + legend.height();
    let mut svg = String::new();
    {
        let size = (form.width, form.height + head);
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        try_draw(plot, form, &canvas, &legend)
            .and_then(|()| canvas.present().map_err(|error| anyhow!("{error}")))
            .with_context(|| format!("cannot draw the plot {}", plot.name))?;
    }
    Ok(svg)
}

fn try_draw(plot: &Plot, form: Form, canvas: &Canvas<'_>, legend: &Legend) -> Result<()> {
    let mut below = canvas.clone();
    if form.is_file {
        canvas.fill(&WHITE).map_err(drawing)?;
        let (head, rest) = below.split_vertically(TITLE_HEIGHT);
        let style = text(TITLE_SIZE, Pos::new(HPos::Left, VPos::Center));
        let at = (to_i32(MARGIN), to_i32(TITLE_HEIGHT / 2));
        head.draw(&Text::new(plot.title.clone(), at, style))
            .map_err(drawing)?;
        below = rest;
    }
    let (head, body) = below.split_vertically(legend.height());
    legend.draw(&head)?;

    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x_ticks = form.width / X_TICK_DISTANCE;
    let y_ticks = form.height / Y_TICK_DISTANCE;
    let shown = || {
        points()
            .filter(|(x, y)| is_shown(*x, plot.x.logarithmic) && is_shown(*y, plot.y.logarithmic))
    };
    let x = Scale::new(
        shown().map(|point| point.0),
        plot.x.logarithmic,
        Ends::AtValues,
        x_ticks as usize,
    );
    let y = Scale::new(
        shown().map(|point| point.1),
        plot.y.logarithmic,
        Ends::AtTicks,
        y_ticks as usize,
    );
    let mut chart = axes(plot, &body, &x, &y)?;
    for (index, series) in plot.series.iter().enumerate() {
        let places = series
            .points
            .iter()
            .map(|(at, value)| x.place(*at).zip(y.place(*value)));
        let runs = outline::runs(places, (x.low, x.high), form.width as usize);
        let mark = Mark::of(index);
        let color = color(index);
        let lines = runs.iter().filter(|run| run.len() > 1);
        let lines = lines.map(|run| PathElement::new(run.clone(), color.stroke_width(LINE_WIDTH)));
        chart.draw_series(lines).map_err(drawing)?;
        for at in marks::places(&runs, form.width as usize, index) {
            mark.draw(chart.plotting_area(), at, color)?;
        }
    }
    Ok(())
}

fn is_shown(value: f64, logarithmic: bool) -> bool {
    value.is_finite() && (!logarithmic || value > 0.0)
}

/// The grid and what stands beside it.
fn axes<'a, 'b>(plot: &Plot, body: &'a Canvas<'b>, x: &Scale, y: &Scale) -> Result<Chart<'a, 'b>> {
    let labels = y.labels();
    let longest = labels.iter().map(|label| label.chars().count()).max();
    let y_width = Y_LABEL_WIDTH + CHARACTER_WIDTH * to_u32(longest.unwrap_or(0)) + MARGIN;
    let mut chart = ChartBuilder::on(body)
        .margin_top(MARGIN)
        // Half of the last label stands beyond the axis.
        .margin_right(3 * CHARACTER_WIDTH)
        .x_label_area_size(X_AXIS_HEIGHT)
        .y_label_area_size(y_width)
        .build_cartesian_2d(x.clone(), y.clone())
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRAY.mix(GRID_OPACITY))
        .axis_style(GRAY)
        .label_style(text(TEXT_SIZE, Pos::default()))
        .axis_desc_style(text(TEXT_SIZE, Pos::default()))
        .x_desc(plot.x.label.clone())
        .y_desc(plot.y.label.clone())
        .draw()
        .map_err(drawing)?;
    Ok(chart)
}

/// Rows of names above the plot, each with its line.
#[derive(Debug)]
struct Legend {
    /// Of each row: index of the series, its left end, its name.
    rows: Vec<Vec<(usize, u32, String)>>,
}

impl Legend {
    fn new(plot: &Plot, width: u32) -> Self {
        let mut rows: Vec<Vec<_>> = Vec::new();
        let mut left = u32::MAX;
        for (index, series) in plot.series.iter().enumerate() {
            let letters_max = (width - SAMPLE_WIDTH) / CHARACTER_WIDTH;
            let name = shortened(&series.name, letters_max as usize);
            let needed = SAMPLE_WIDTH + CHARACTER_WIDTH * to_u32(name.chars().count());
            if left.saturating_add(needed) > width {
                rows.push(Vec::new());
                left = 0;
            }
            if let Some(row) = rows.last_mut() {
                row.push((index, left, name));
            }
            left += needed + NAME_GAP;
        }
        Self { rows }
    }

    fn height(&self) -> u32 {
        to_u32(self.rows.len()) * ROW_HEIGHT + MARGIN
    }

    fn draw(&self, area: &Canvas<'_>) -> Result<()> {
        for (number, row) in self.rows.iter().enumerate() {
            let middle = to_i32(MARGIN + to_u32(number) * ROW_HEIGHT + ROW_HEIGHT / 2);
            for (index, left, name) in row {
                let from = to_i32(MARGIN + left);
                let to = from + to_i32(SAMPLE_WIDTH - 8);
                let line = vec![(from, middle), (to, middle)];
                let style = color(*index).stroke_width(LINE_WIDTH);
                area.draw(&PathElement::new(line, style)).map_err(drawing)?;
                Mark::of(*index).draw(area, ((from + to) / 2, middle), color(*index))?;
                let style = text(TEXT_SIZE, Pos::new(HPos::Left, VPos::Center));
                let at = (from + to_i32(SAMPLE_WIDTH - 2), middle);
                area.draw(&Text::new(name.clone(), at, style))
                    .map_err(drawing)?;
            }
        }
        Ok(())
    }
}

fn color(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()].0
}

fn text(size: f64, anchor: Pos) -> TextStyle<'static> {
    TextStyle::from((FontFamily::SansSerif, size).into_font())
        .color(&BLACK)
        .pos(anchor)
}

fn shortened(name: &str, letters_max: usize) -> String {
    if name.chars().count() <= letters_max {
        return name.to_owned();
    }
    let kept = name.chars().take(letters_max.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// Pixels and counts of rows are small.
fn to_i32(pixels: u32) -> i32 {
    i32::try_from(pixels).unwrap_or(i32::MAX)
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
