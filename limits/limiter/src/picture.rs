//! What came and what went in each part of time, as a picture.

use anyhow::{Result, anyhow};
use plotters::prelude::{
    AreaSeries, ChartBuilder, Color, IntoDrawingArea, LineSeries, RGBColor, SVGBackend, TRANSPARENT,
};

use crate::replay::{Flow, Outcome};

const SIZE: (u32, u32) = (860, 240);
const CAME: RGBColor = RGBColor(0x7F, 0x7F, 0x7F);
const WENT: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const TEXT: RGBColor = RGBColor(0x7F, 0x7F, 0x7F);

/// Draws requests a second over time as SVG: grey what came, blue what went.
///
/// # Errors
/// When it cannot be drawn.
pub fn svg(outcome: &Outcome) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, &outcome.name, &outcome.flow)
        .map_err(|error| anyhow!("cannot draw: {error}"))?;
    Ok(text)
}

fn draw(text: &mut String, name: &str, flow: &Flow) -> Result<(), Box<dyn std::error::Error>> {
    let bins = flow.came.len().max(flow.went.len());
    let at = |index: usize| as_f64(flow.bin) / 1e9 * as_f64(index as u64);
    let rate = |count: u64| as_f64(count) / at(1);
    let most = flow.came.iter().chain(&flow.went).max();
    let most = most.map_or(1, |most| (*most).max(1));
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&TRANSPARENT)?;
    let style = ("sans-serif", 13, &TEXT);
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .caption(
            format!("{name}: requests a second, grey in, blue out"),
            style,
        )
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..at(bins.max(1)), 0.0..rate(most) * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(TEXT.mix(0.25))
        .axis_style(TEXT)
        .label_style(style)
        .x_desc("s")
        .draw()?;
    let steps = |counts: &[u64]| -> Vec<(f64, f64)> {
        let padded = (0..bins).map(|index| counts.get(index).copied().unwrap_or(0));
        let corners = padded.enumerate().flat_map(|(index, count)| {
            let height = rate(count);
            [(at(index), height), (at(index + 1), height)]
        });
        corners.collect()
    };
    chart.draw_series(AreaSeries::new(steps(&flow.came), 0.0, CAME.mix(0.25)))?;
    chart.draw_series(LineSeries::new(steps(&flow.went), WENT.stroke_width(2)))?;
    area.present()?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
fn as_f64(number: u64) -> f64 {
    number as f64
}
