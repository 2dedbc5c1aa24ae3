//! The report as one self-contained HTML page, without scripts or external files. It starts with the failed checks and the
//! findings.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    data::Report,
    plot::{self, Plot},
};

const STYLE: &str = include_str!("page/style.css");

/// Renders the page.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn html(report: &Report) -> Result<String> {
    let plots = report
        .plots
        .iter()
        .map(figure)
        .collect::<Result<Vec<_>>>()?;
    let environment = serde_json::to_string_pretty(&report.environment)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (report.title) " – bench " (report.scenario) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.title) }
                p.when {
                    "bench " (report.scenario) " · " (report.environment.ended_at)
                    " · " (format!("{:.1} s", report.seconds))
                }
                (verdict(report))
                @if !report.findings.is_empty() {
                    h2 { "Findings" }
                    ul { @for finding in &report.findings { li { (finding) } } }
                }
                pre tabindex="0" { (report.tables_text()) }
                @for plot in plots { (plot) }
                h2 { "Environment" }
                pre tabindex="0" { (environment) }
            }
        }
    };
    Ok(page.into_string())
}

fn verdict(report: &Report) -> Markup {
    html! {
        @if let Some(warning) = report.environment.profile_warning() {
            p.warning { (warning) }
        }
        @if report.failures.is_empty() {
            p.good { "All checks passed." }
        } @else {
            div.bad {
                p { "Failed checks:" }
                ul { @for failure in &report.failures { li { (failure) } } }
            }
        }
    }
}

fn figure(plot: &Plot) -> Result<Markup> {
    let svg = plot::draw(plot)?;
    Ok(html! { figure role="img" aria-label=(plot.title) { (PreEscaped(svg)) } })
}
