//! The report as one self-contained HTML page, without scripts or external files. It starts with the failed checks and the
//! findings.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use testkit::numbers::grouped;

use super::{
    data::Report,
    environment::Environment,
    measurement::{Measurement, Row, Table},
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
                @for table in &report.tables { (table_of(table)) }
                @for plot in plots { (plot) }
                (environment(&report.environment))
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

fn table_of(table: &Table) -> Markup {
    html! {
        h2 { (table.title) }
        @if !table.note.is_empty() { p.note { (table.note) } }
        pre tabindex="0" { (table.text()) }
    }
}

fn figure(plot: &Plot) -> Result<Markup> {
    let svg = plot::draw(plot)?;
    Ok(html! { figure role="img" aria-label=(plot.title) { (PreEscaped(svg)) } })
}

fn environment(environment: &Environment) -> Markup {
    let facts = [
        ("ended", environment.ended_at.clone()),
        (
            "bench",
            format!("{}, profile {}", environment.version, environment.profile),
        ),
        (
            "processor",
            format!("{}, {} cores usable", environment.cpu, environment.cores),
        ),
        (
            "memory",
            format!("{} MiB", grouped(environment.memory_bytes >> 20)),
        ),
        ("system", environment.system.clone()),
    ];
    let facts = facts.map(|(name, value)| Measurement::text(name, value));
    let programs = environment.programs.iter();
    let programs = programs.map(|(name, version)| Measurement::text(name, version));
    html! {
        (table_of(&Table {
            title: "Environment".to_owned(),
            note: String::new(),
            rows: vec![Row::new("", facts).with(programs)],
        }))
        h2 { "Command" }
        pre { code { (environment.command.join(" ")) } }
    }
}
