//! Result of verifying all stores: lines for the report, and failures if a store has wrong contents or could not be verified.

use serde::Serialize;

use crate::{report::grouped, verify::StoreVerdict};

/// Result of verifying all stores.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verification {
    /// One verdict per node.
    pub verdicts: Vec<StoreVerdict>,
    /// Stores that could not be verified, with reasons.
    pub failed: Vec<String>,
    /// The reason why there is nothing to verify, if any.
    pub not_verified: Option<String>,
    /// Number of scrapes in which the ledger balanced.
    pub balanced: u64,
}

impl Verification {
    /// A verification that failed for all stores.
    pub fn failed(reason: String) -> Self {
        Self {
            failed: vec![reason],
            ..Self::default()
        }
    }

    /// The result in lines.
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
            let examples = verdict.examples.iter();
            lines.extend(examples.map(|example| format!("          {example}")));
        }
        let reasons = self.failed.iter().chain(&self.not_verified);
        lines.extend(reasons.map(|reason| format!("NOT VERIFIED: {reason}")));
        lines
    }

    /// Failures of stores that could not be verified.
    pub fn unverified(&self) -> impl Iterator<Item = String> {
        let reasons = self.failed.iter();
        reasons.map(|reason| format!("not verified: {reason}"))
    }

    /// Failures of all stores.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.verdicts.iter().filter(|verdict| !verdict.has_passed());
        let failed = failed.map(|verdict| {
            let examples = verdict.examples.join("; ");
            format!("{} ({examples})", verdict.line())
        });
        failed.chain(self.unverified()).collect()
    }
}
