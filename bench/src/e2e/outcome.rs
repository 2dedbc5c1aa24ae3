//! What a run of `bench e2e` found, and its summary.

use serde::Serialize;

use super::{running::Verification, step::Step};
use crate::report::grouped;

/// What was measured, and what was found to be wrong.
#[derive(Debug, Clone, Serialize)]
pub struct E2eOutcome {
    /// Consumers, each with a store.
    pub consumers: usize,
    /// Producers.
    pub producers: usize,
    /// What the stores are.
    pub store: &'static str,
    /// How cookies expire, where consumers were told: `index` or `sweep`.
    pub expiry: Option<String>,
    /// Makes the same cookies again.
    pub seed: u64,
    /// Cores that everything shared.
    pub cores: usize,
    /// From the first request to the last process's end.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The ladder.
    pub steps: Vec<Step>,
    /// Whether every accepted cookie is in every store.
    pub verification: Verification,
    /// What the run says, in sentences.
    pub findings: Vec<String>,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
}

impl Verification {
    /// A line for each node, and one for the ledger.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.balanced > 0 {
            let scrapes = grouped(self.balanced);
            lines.push(format!(
                "balanced  in {scrapes} scrapes every cookie had one fate"
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
                .map(|why| format!("NOT VERIFIED: {why}")),
        );
        lines
    }

    /// What could not be verified though it is there.
    pub fn not_done(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|why| format!("not verified: {why}"))
    }

    /// What of it is wrong.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let wrong = self.verdicts.iter().filter(|verdict| !verdict.has_passed());
        let wrong = wrong.map(|verdict| {
            let examples = verdict.examples.join("; ");
            format!("{} ({examples})", verdict.line())
        });
        wrong.chain(self.not_done()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_that_is_not_verified_is_a_fault_and_no_store_is_none() {
        assert!(Verification::default().failures().is_empty());
        let nothing = Verification {
            not_verified: Some("there is no store".to_owned()),
            ..Verification::default()
        };
        assert!(nothing.failures().is_empty());
        let failed = Verification::failed("node-1: it is gone".to_owned());
        assert_eq!(failed.failures(), ["not verified: node-1: it is gone"]);
        assert_eq!(failed.lines(), ["NOT VERIFIED: node-1: it is gone"]);
    }
}
