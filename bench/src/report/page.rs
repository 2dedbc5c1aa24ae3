//! The report as one page that needs nothing else: no script, no other file, no network.
//!
//! It begins with what a reader in a hurry wants: whether all is well and what follows.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Environment, Measurement, Plot, Report, Row, Table, grouped, plot};

const STYLE: &str = include_str!("page/style.css");

/// The whole page.
///
/// # Errors
/// When a plot cannot be drawn.
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
            p.good { "Nothing was found to be wrong." }
        } @else {
            div.bad {
                p { "What is wrong:" }
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
            format!("{}, {} usable", environment.cpu, environment.cores),
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
            title: "Where it was measured".to_owned(),
            note: String::new(),
            rows: vec![Row::new("", facts).and(programs)],
        }))
        h2 { "How to repeat it" }
        pre { code { (environment.command.join(" ")) } }
    }
}
