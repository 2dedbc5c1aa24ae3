//! `bench compare`: two reports of one scenario side by side, and what changed beyond noise.
//!
//! What noise is, is decided in its module `significance` and nowhere else.

mod report;
mod significance;
mod warnings;

use std::{collections::HashSet, path::PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

pub use self::significance::{Change, Verdict};
use crate::report::{Report, ReportArgs, leave};

/// Compares two reports of the same scenario: A, the earlier, and B.
///
/// A figure has changed when it differs by more than the noise and its samples, where it has any, lie apart.
/// The exit code is 0 when nothing got worse, 1 when a figure did or when B has faults that A has not.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Folder of the earlier report, or its report.json.
    pub a: PathBuf,
    /// Folder of the later report, or its report.json.
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

/// What changed from A to B.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Of both.
    pub scenario: String,
    /// Title of A, and when it was measured with which revision.
    pub a: String,
    /// The same of B.
    pub b: String,
    /// Differences of at most this many percent are noise, half of it for CPU time.
    pub noise_percent: f64,
    /// What makes the two hard to compare; empty when nothing does.
    pub warnings: Vec<String>,
    /// Faults of B that A has not, whatever their numbers.
    pub new_faults: Vec<String>,
    /// Every figure of either.
    pub changes: Vec<Change>,
}

/// Compares, and writes a report of its own when one is wanted.
///
/// # Errors
/// When one of the two cannot be read, or they are of different scenarios, or of programs built with different profiles.
pub fn run(args: &CompareArgs) -> Result<Outcome> {
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
    let folder = args.report.prepare("compare")?;
    let outcome = compare(&a, &b, args.noise);
    leave(folder, || {
        report::report(&outcome, report::overlaid(&a.plots, &b.plots))
    })?;
    Ok(outcome)
}

fn compare(a: &Report, b: &Report, noise_percent: f64) -> Outcome {
    let label = |report: &Report| {
        let environment = &report.environment;
        format!(
            "{} ({}, revision {})",
            report.title, environment.started_at, environment.revision
        )
    };
    let known: HashSet<String> = a.faults.iter().map(|fault| kind(fault)).collect();
    let is_new = |fault: &&String| !known.contains(&kind(fault));
    Outcome {
        scenario: a.scenario.clone(),
        a: label(a),
        b: label(b),
        noise_percent,
        warnings: warnings::of(&a.environment, &b.environment),
        new_faults: b.faults.iter().filter(is_new).cloned().collect(),
        changes: significance::changes(&a.figures, &b.figures, noise_percent / 100.0),
    }
}

/// What a fault says without its numbers: by how much it was wrong, on which port and when differ from run to run.
fn kind(fault: &str) -> String {
    fault
        .chars()
        .filter(|letter| letter.is_alphabetic())
        .collect()
}

impl Outcome {
    /// True when nothing got worse beyond noise.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.new_faults.is_empty() && self.count(Verdict::Worse) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.changes
            .iter()
            .filter(|change| change.verdict == verdict)
            .count()
    }

    /// One line: how many figures got better or worse.
    fn tally(&self) -> String {
        let named = [
            Verdict::Worse,
            Verdict::Better,
            Verdict::Differs,
            Verdict::Noise,
        ];
        let counts = named.map(|verdict| format!("{} {verdict}", self.count(verdict)));
        format!("{} figures: {}", self.changes.len(), counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_same_whatever_their_numbers() {
        let report = |faults: &[&str]| {
            let mut report = Report::new("load", "made up");
            report.faults = faults.iter().map(|fault| (*fault).to_owned()).collect();
            report
        };
        let a = report(&["Errors: 1 234, 0.5 %; first: no answer."]);
        let b = report(&["Errors: 3, 12 %; first: no answer.", "12 were not sent."]);
        assert_eq!(compare(&a, &b, 20.0).new_faults, ["12 were not sent."]);
        assert_eq!(compare(&b, &a, 20.0).new_faults, Vec::<String>::new());
    }
}
