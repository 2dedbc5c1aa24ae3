//! Outcome of `bench e2e`.

use serde::Serialize;

use super::{cluster_run::Verification, step::Step};
use crate::report::grouped;

/// Measurements and failed checks of a run.
#[derive(Debug, Clone, Serialize)]
pub struct E2eOutcome {
    /// Number of consumers, each with its own store.
    pub consumers: usize,
    /// Number of producers.
    pub producers: usize,
    /// Kind of the stores.
    pub store: &'static str,
    /// Expiry mode, if set: `index` or `sweep`.
    pub expiry: Option<String>,
    /// Seed of the cookies.
    pub seed: u64,
    /// Cores shared by all processes.
    pub cores: usize,
    /// Time from the start of the cluster to its stop.
    pub seconds: f64,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// Steps in order of time.
    pub steps: Vec<Step>,
    /// Verification of the stores.
    pub verification: Verification,
    /// Conclusions in sentences.
    pub findings: Vec<String>,
    /// Failed checks; empty if the run passed.
    pub failures: Vec<String>,
}

impl Verification {
    /// One line per node, and one for the ledger.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.balanced > 0 {
            let scrapes = grouped(self.balanced);
            lines.push(format!(
                "balanced  every cookie has exactly one outcome in all {scrapes} scrapes"
            ));
        }
        for verdict in &self.verdicts {
            lines.push(format!("verified  {}", verdict.line()));
            lines.extend(
                verdict
                    .examples
                    .iter()
                    .map(|example| format!("          {example}")),
            );
        }
        lines.extend(
            self.failed
                .iter()
                .chain(&self.not_verified)
                .map(|reason| format!("NOT VERIFIED: {reason}")),
        );
        lines
    }

    /// Stores that could not be verified.
    pub fn unverified(&self) -> impl Iterator<Item = String> {
        self.failed
            .iter()
            .map(|reason| format!("not verified: {reason}"))
    }

    /// Failed checks of the verification.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let failed = self.verdicts.iter().filter(|verdict| !verdict.has_passed());
        let failed = failed.map(|verdict| {
            let examples = verdict.examples.join("; ");
            format!("{} ({examples})", verdict.line())
        });
        failed.chain(self.unverified()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unverified_store_is_a_failure_unlike_no_store() {
        assert!(Verification::default().failures().is_empty());
        let nothing = Verification {
            not_verified: Some("no store".to_owned()),
            ..Verification::default()
        };
        assert!(nothing.failures().is_empty());
        let failed = Verification::failed("node-1: connection refused".to_owned());
        assert_eq!(
            failed.failures(),
            ["not verified: node-1: connection refused"]
        );
        assert_eq!(failed.lines(), ["NOT VERIFIED: node-1: connection refused"]);
    }
}
