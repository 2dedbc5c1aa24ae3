//! `bench compare`: lists measurements that differ by more than noise between two reports of one scenario. The module
//! `significance` defines noise.

mod significance;
mod warnings;

use std::{collections::HashSet, path::PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use self::significance::{Change, Verdict};
use crate::report::{Report, ReportArgs};

/// Compare two reports of one scenario, A (earlier) and B (later).
///
/// A measurement has changed if it differs by more than --noise and if the samples of both runs, if any, differ
/// significantly. The exit code is 1 if a measurement got worse, or if B has failed checks that A does not have.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Directory or report.json of the earlier report.
    pub a: PathBuf,
    /// Directory or report.json of the later report.
    pub b: PathBuf,
    /// Maximum difference in percent that counts as noise. For CPU time, which varies less than elapsed time on a shared machine,
    /// half of this value applies.
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = parse_percent)]
    pub noise: f64,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok();
    let percent = percent.filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
    percent.ok_or_else(|| "expected a percentage of at least 0".to_owned())
}

/// Compares two reports. Measurements that got worse are failures of the returned report.
///
/// # Errors
/// A report cannot be read, or the reports differ in scenario or build profile.
pub fn run(args: &CompareArgs) -> Result<Report> {
    let [a, b] = [Report::read(&args.a)?, Report::read(&args.b)?];
    ensure!(
        a.scenario == b.scenario,
        "cannot compare different scenarios: {} is a report of {}, but {} is a report of {}",
        args.a.display(),
        a.scenario,
        args.b.display(),
        b.scenario
    );
    for (program, profile) in a.environment.profiles() {
        let mut of_b = b.environment.profiles();
        if let Some((_, other)) = of_b.find(|(name, _)| *name == program) {
            ensure!(
                profile == other,
                "cannot compare different build profiles: {program} is a {profile} build in A, but a {other} build in B"
            );
        }
    }
    Ok(compare(&a, &b, args.noise))
}

fn compare(a: &Report, b: &Report, noise_percent: f64) -> Report {
    let changes = significance::changes(a, b, noise_percent / 100.0);
    let title = format!("Comparison of two runs of bench {}", a.scenario);
    let mut report = Report::new("compare", &title);
    let label = |name: &str, report: &Report| {
        let ended_at = &report.environment.ended_at;
        format!("{name} is {} ({ended_at})", report.title)
    };
    report.findings = vec![label("A", a), label("B", b), tally(&changes)];
    let warnings = warnings::of(&a.environment, &b.environment);
    let warnings = warnings.iter().map(|it| format!("Warning: {it}"));
    report.findings.extend(warnings);
    let known: HashSet<String> = a.failures.iter().map(|failure| kind(failure)).collect();
    let new = b.failures.iter().filter(|it| !known.contains(&kind(it)));
    report.failures = new.map(|failure| format!("In B: {failure}")).collect();
    let worse = changes.iter().filter(|it| it.verdict == Verdict::Worse);
    report.failures.extend(worse.map(Change::sentence));
    let note = format!(
        "A change exceeds {noise_percent} % ({} % for CPU time), and the samples of both runs differ significantly.",
        noise_percent / 2.0
    );
    let rows: Vec<_> = changes.iter().map(Change::row).collect();
    report.add("Measurements", &note, rows);
    report
}

/// Number of measurements by verdict.
fn tally(changes: &[Change]) -> String {
    let counts = [Verdict::Worse, Verdict::Better, Verdict::Noise].map(|verdict| {
        let of_it = changes.iter().filter(|change| change.verdict == verdict);
        format!("{} {}", of_it.count(), verdict.name())
    });
    format!("{} measurements: {}", changes.len(), counts.join(", "))
}

/// The text of a failure without its numbers, which differ between runs.
fn kind(failure: &str) -> String {
    failure
        .chars()
        .filter(|letter| letter.is_alphabetic())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_match_regardless_of_their_numbers() {
        let report = |failures: &[&str]| {
            let mut report = Report::new("load", "made up");
            report.failures = failures
                .iter()
                .map(|failure| (*failure).to_owned())
                .collect();
            report
        };
        let a = report(&["Errors: 1 234, 0.5 %; first: timeout."]);
        let b = report(&["Errors: 3, 12 %; first: timeout.", "12 were not sent."]);
        assert_eq!(compare(&a, &b, 20.0).failures, ["In B: 12 were not sent."]);
        assert_eq!(compare(&b, &a, 20.0).failures, Vec::<String>::new());
    }
}
