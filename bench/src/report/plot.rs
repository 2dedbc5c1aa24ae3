//! Plots, and their drawing as SVG.

use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::{
        ChartBuilder, Circle, Color, DrawingArea, IntoDrawingArea, IntoTextStyle, LineSeries,
        PathElement, RGBColor, SVGBackend, Text, WHITE,
    },
};

use serde::Serialize;

/// A line plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plot {
    /// Heading.
    pub title: &'static str,
    /// Label of the horizontal axis.
    pub x: &'static str,
    /// Label of the vertical axis, with its unit.
    pub y: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// A plot of these lines over time in seconds.
    pub fn new(title: &'static str, y: &'static str, series: Vec<Series>) -> Self {
        let x = "seconds since the start";
        Self {
            title,
            x,
            y,
            series,
        }
    }
}

/// One line of a [`Plot`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Label in the legend.
    pub name: String,
    /// Points in ascending order of x. A value that is not finite interrupts the line; it is `null` in JSON.
    pub points: Vec<(f64, f64)>,
}

/// Colors for all kinds of color vision, after Okabe and Ito.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x8A, 0x64),
    RGBColor(0xAA, 0x33, 0x77),
    RGBColor(0x3A, 0x9B, 0xD6),
    RGBColor(0xB0, 0x7C, 0x00),
    RGBColor(0x55, 0x55, 0x55),
];
const GRAY: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);

const SIZE: (u32, u32) = (960, 360);
const MARGIN: i32 = 8;
const LABEL_AREA: i32 = 64;
/// The legend is next to the plot area, so that it covers no line.
const LEGEND_WIDTH: i32 = 240;
const LEGEND_X: i32 = SIZE.0.cast_signed() - LEGEND_WIDTH + MARGIN;
const LEGEND_LINE: i32 = 18;
const FONT: &str = "sans-serif";
const TEXT_SIZE: i32 = 14;

/// Larger values are not plotted.
const VALUE_MAX: f64 = 1e15;

/// Lines with up to this many points have a dot at each.
const DOTS_MAX: usize = 50;

/// Draws the plot as SVG.
///
/// # Errors
/// The plot cannot be drawn.
pub(super) fn draw(plot: &Plot) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw_on(plot, &area).with_context(|| format!("failed to draw the plot {}", plot.title))?;
    }
    Ok(svg)
}

fn is_shown((x, y): (f64, f64)) -> bool {
    x.abs() <= VALUE_MAX && y.abs() <= VALUE_MAX
}

/// The range from the minimum to the maximum value.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    if low < high { low..high } else { 0.0..1.0 }
}

fn draw_on(plot: &Plot, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
    let points = plot.series.iter().flat_map(|series| &series.points);
    let shown = points.copied().filter(|point| is_shown(*point));
    let x = range(shown.clone().map(|point| point.0));
    // Start at 0, so that heights can be compared.
    let y = range(shown.map(|point| point.1).chain([0.0]));
    area.fill(&WHITE).map_err(drawing)?;
    let mut chart = ChartBuilder::on(area)
        .caption(plot.title, (FONT, 18))
        .margin(MARGIN)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(LABEL_AREA)
        .y_label_area_size(LABEL_AREA)
        .build_cartesian_2d(x, y)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRAY)
        .x_desc(plot.x)
        .y_desc(plot.y)
        .label_style((FONT, TEXT_SIZE))
        .x_label_formatter(&|value| si(*value))
        .y_label_formatter(&|value| si(*value))
        .draw()
        .map_err(drawing)?;
    for (index, Series { name, points }) in plot.series.iter().enumerate() {
        let color = PALETTE[index % PALETTE.len()];
        let runs = points.split(|point| !is_shown(*point));
        for run in runs.filter(|run| !run.is_empty()) {
            let line = LineSeries::new(run.iter().copied(), color.stroke_width(2));
            chart.draw_series(line).map_err(drawing)?;
            if run.len() == 1 || points.len() <= DOTS_MAX {
                let dots = run.iter().map(|at| Circle::new(*at, 3, color.filled()));
                chart.draw_series(dots).map_err(drawing)?;
            }
        }
        // On the whole area: the legend of a chart cannot be outside of it.
        let (x, y) = (LEGEND_X, 4 * MARGIN + LEGEND_LINE * i32::try_from(index)?);
        let stroke = PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2));
        area.draw(&stroke).map_err(drawing)?;
        let style = (FONT, TEXT_SIZE).into_text_style(area);
        let label = Text::new(name.as_str(), (x + 24, y - TEXT_SIZE / 2), style);
        area.draw(&label).map_err(drawing)?;
    }
    Ok(())
}

/// A number with an SI prefix: `1.2 M`.
fn si(value: f64) -> String {
    let (divisor, suffix) = match value.abs() {
        1e12.. => (1e12, " T"),
        1e9.. => (1e9, " G"),
        1e6.. => (1e6, " M"),
        1e3.. => (1e3, " k"),
        0.001.. => (1.0, ""),
        0.0 => return "0".to_owned(),
        _ => return format!("{value:.1e}"),
    };
    let digits = format!("{:.3}", value / divisor);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{suffix}")
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::si;

    #[test]
    fn labels_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.002, "0.002"),
            (0.00002, "2.0e-5"),
            (-12.5, "-12.5"),
            (50_000.0, "50 k"),
            (1_500_000.0, "1.5 M"),
        ] {
            assert_eq!(si(value), expected);
        }
    }
}
