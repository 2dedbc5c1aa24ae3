//! `bench compare`: two reports of one scenario side by side, and what changed beyond noise.
//!
//! What noise is, is decided in its module `significance` and nowhere else.

mod significance;
mod warnings;

use std::{collections::HashSet, path::PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use self::significance::{Change, Verdict};
use crate::report::{Report, ReportArgs};

/// Compares two reports of the same scenario: A, the earlier, and B.
///
/// A figure has changed when it differs by more than the noise and its samples, where it has any, lie apart.
/// The exit code is 0 when nothing got worse, 1 when a figure did or when B has faults that A has not.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Directory of the earlier report, or its report.json.
    pub a: PathBuf,
    /// Directory of the later report, or its report.json.
    pub b: PathBuf,
    /// Differences up to this many percent are noise. For CPU time it is half of this, since what else the machine
    /// does changes how long work takes more than how much CPU it needs.
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = parse_percent)]
    pub noise: f64,
    /// Where its own report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok();
    let percent = percent.filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
    percent.ok_or_else(|| "expected a percentage of 0 or more".to_owned())
}

/// Compares; the faults of the report are what got worse.
///
/// # Errors
/// When one of the two cannot be read, or they are of different scenarios, or of programs built with different profiles.
pub fn run(args: &CompareArgs) -> Result<Report> {
    let [a, b] = [Report::read(&args.a)?, Report::read(&args.b)?];
    ensure!(
        a.scenario == b.scenario,
        "only reports of the same scenario can be compared: {} is of {}, {} of {}",
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
                "only builds of the same profile can be compared: {program} is a {profile} build in A, a {other} build in B"
            );
        }
    }
    Ok(compare(&a, &b, args.noise))
}

fn compare(a: &Report, b: &Report, noise_percent: f64) -> Report {
    let changes = significance::changes(a, b, noise_percent / 100.0);
    let title = format!("Two runs of bench {} compared", a.scenario);
    let mut report = Report::new("compare", &title);
    let label = |name: &str, report: &Report| {
        let ended_at = &report.environment.ended_at;
        format!("{name} is {} ({ended_at})", report.title)
    };
    report.findings = vec![label("A", a), label("B", b), tally(&changes)];
    let warnings = warnings::of(&a.environment, &b.environment);
    let warnings = warnings.iter().map(|it| format!("Compare with care: {it}"));
    report.findings.extend(warnings);
    let known: HashSet<String> = a.failures.iter().map(|failure| kind(failure)).collect();
    let new = b.failures.iter().filter(|it| !known.contains(&kind(it)));
    report.failures = new.map(|failure| format!("In B: {failure}")).collect();
    let worse = changes.iter().filter(|it| it.verdict == Verdict::Worse);
    report.failures.extend(worse.map(Change::sentence));
    let note = format!(
        "A change counts when it exceeds {noise_percent} % ({} % for CPU time) and the samples of both runs lie apart.",
        noise_percent / 2.0
    );
    let rows: Vec<_> = changes.iter().map(Change::row).collect();
    report.add("Figures", &note, rows);
    report
}

/// How many figures got better or worse.
fn tally(changes: &[Change]) -> String {
    let counts = [Verdict::Worse, Verdict::Better, Verdict::Noise].map(|verdict| {
        let of_it = changes.iter().filter(|change| change.verdict == verdict);
        format!("{} {}", of_it.count(), verdict.name())
    });
    format!("{} figures: {}", changes.len(), counts.join(", "))
}

/// What a fault says without its numbers: by how much it was wrong, on which port and when differ from run to run.
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
    fn faults_are_the_same_whatever_their_numbers() {
        let report = |failures: &[&str]| {
            let mut report = Report::new("load", "made up");
            report.failures = failures
                .iter()
                .map(|failure| (*failure).to_owned())
                .collect();
            report
        };
        let a = report(&["Errors: 1 234, 0.5 %; first: no answer."]);
        let b = report(&["Errors: 3, 12 %; first: no answer.", "12 were not sent."]);
        assert_eq!(compare(&a, &b, 20.0).failures, ["In B: 12 were not sent."]);
        assert_eq!(compare(&b, &a, 20.0).failures, Vec::<String>::new());
    }
}
