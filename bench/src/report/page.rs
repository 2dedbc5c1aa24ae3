//! The report as one page that needs nothing else: no script, no other file, no network.
//!
//! It begins with what a reader in a hurry wants: whether all is well and what follows.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    Environment, Plot, Report, Table,
    figure::{Cell, Grid},
    grouped, plot,
};

const STYLE: &str = include_str!("page/style.css");

/// A longer text in a table may take several lines of about this length: what fits beside a name on a telephone.
const LINE_LETTERS: usize = 30;

/// Needed in a file of its own, not inside a page.
const SVG_NAMESPACE: &str = " xmlns=\"http://www.w3.org/2000/svg\"";

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
                    "bench " (report.scenario) " · " (report.environment.started_at)
                    " · " (format!("{:.1} s", report.seconds)) " · revision " (report.environment.revision)
                }
                (verdict(report))
                @if !report.findings.is_empty() {
                    h2 { "Findings" }
                    ul { @for finding in &report.findings { li { (sentence(finding)) } } }
                }
                @for table in &report.tables { (table_of(table)) }
                @for plot in plots { (plot) }
                (environment(&report.environment))
            }
        }
    };
    Ok(page.into_string())
}

/// With a capital at the start and a full stop at the end.
fn sentence(text: &str) -> String {
    let mut sentence = text.trim_end().to_owned();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if !sentence.ends_with(['.', '!', '?', '…']) {
        sentence.push('.');
    }
    sentence
}

fn verdict(report: &Report) -> Markup {
    html! {
        @if let Some(warning) = report.environment.profile_warning() {
            p.warning { (sentence(&warning)) }
        }
        @if report.faults.is_empty() {
            p.good { "Nothing was found to be wrong." }
        } @else {
            div.bad {
                p {
                    @match report.faults.len() {
                        1 => "One thing is wrong:",
                        count => { (count) " things are wrong:" },
                    }
                }
                ul { @for fault in &report.faults { li { (sentence(fault)) } } }
            }
        }
    }
}

fn table_of(table: &Table) -> Markup {
    let Grid { headings, lines } = table.grid();
    html! {
        h2 { (table.title) }
        @if !table.note.is_empty() { p.note { (table.note) } }
        div.scroll tabindex="0" {
            table {
                @if headings.iter().any(|heading| !heading.is_empty()) {
                    thead { tr { @for heading in headings { th scope="col" { (heading) } } } }
                }
                tbody {
                    @for line in lines {
                        tr { @for cell in line { td class=[class(&cell)] { (cell.text) } } }
                    }
                }
            }
        }
    }
}

fn class(cell: &Cell) -> Option<&'static str> {
    cell.is_number
        .then_some("number")
        .or_else(|| long(&cell.text))
}

/// The class of a text that may take several lines.
fn long(text: &str) -> Option<&'static str> {
    (text.chars().count() > LINE_LETTERS).then_some("long")
}

fn figure(plot: &Plot) -> Result<Markup> {
    let svg = plot::draw(plot)?.replace(SVG_NAMESPACE, "");
    Ok(html! { figure role="img" aria-label=(plot.title) { (PreEscaped(svg)) } })
}

fn environment(environment: &Environment) -> Markup {
    let Environment {
        started_at,
        command,
        version,
        revision,
        profile,
        cpu,
        cores,
        memory_bytes,
        system,
        programs,
    } = environment;
    let mut facts = vec![
        ("started".to_owned(), started_at.clone()),
        (
            "bench".to_owned(),
            format!("{version}, revision {revision}, profile {profile}"),
        ),
        ("processor".to_owned(), format!("{cpu}, {cores} usable")),
        (
            "memory".to_owned(),
            format!("{} MiB", grouped(memory_bytes >> 20)),
        ),
        ("system".to_owned(), system.clone()),
    ];
    facts.extend(programs.iter().cloned());
    html! {
        h2 { "Where it was measured" }
        div.scroll {
            table { tbody { @for (name, value) in facts {
                tr { th scope="row" { (name) } td class=[long(&value)] { (value) } }
            } } }
        }
        h2 { "How to repeat it" }
        pre { code { (command_line(command)) } }
    }
}

/// As one would type it.
fn command_line(command: &[String]) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:,=@%+".contains(letter);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
