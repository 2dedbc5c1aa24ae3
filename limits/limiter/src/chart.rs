//! Chart of arrived and released requests over time.

use anyhow::{Result, anyhow};
use plotters::prelude::{
    AreaSeries, ChartBuilder, Color, IntoDrawingArea, LineSeries, RGBColor, SVGBackend, TRANSPARENT,
};

use runtime::metrics::as_f64;

use crate::replay::{Flow, Outcome};

const SIZE: (u32, u32) = (860, 240);
const ARRIVED: RGBColor = RGBColor(0x7F, 0x7F, 0x7F);
const RELEASED: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const TEXT: RGBColor = RGBColor(0x7F, 0x7F, 0x7F);

/// Draws requests per second over time as SVG: arrived in grey, released in blue.
///
/// # Errors
/// When drawing fails.
pub fn svg(outcome: &Outcome) -> Result<String> {
    let mut text = String::new();
    let drawn = draw(&mut text, &outcome.name, &outcome.flow);
    drawn.map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(text)
}

fn draw(text: &mut String, name: &str, flow: &Flow) -> Result<(), Box<dyn std::error::Error>> {
    let bins = flow.arrived.len().max(flow.released.len());
    let at = |index: usize| as_f64(flow.bin) / 1e9 * as_f64(index as u64);
    let rate = |count: u64| as_f64(count) / at(1);
    let max = flow.arrived.iter().chain(&flow.released).max();
    let max = max.map_or(1, |max| (*max).max(1));
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&TRANSPARENT)?;
    let style = ("sans-serif", 13, &TEXT);
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .caption(
            format!("{name}: requests per second (grey: arrived, blue: released)"),
            style,
        )
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..at(bins.max(1)), 0.0..rate(max) * 1.05)?;
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
    chart.draw_series(AreaSeries::new(
        steps(&flow.arrived),
        0.0,
        ARRIVED.mix(0.25),
    ))?;
    chart.draw_series(LineSeries::new(
        steps(&flow.released),
        RELEASED.stroke_width(2),
    ))?;
    area.present()?;
    Ok(())
}
