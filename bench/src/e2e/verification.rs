//! Result of verifying all stores: a table and lines for the report, and failures if a store has wrong contents or could not
//! be verified.

use testkit::numbers::grouped;

use crate::{
    report::{Report, Row, unit::COUNT},
    verify::StoreVerdict,
};

const NOTE: &str = "Pairs of a user and a DSP in each store, compared with the accepted requests.";

/// Result of verifying all stores.
#[derive(Debug, Default)]
pub struct Verification {
    /// One verdict per node.
    pub verdicts: Vec<StoreVerdict>,
    /// Stores that could not be verified, with reasons.
    pub failed: Vec<String>,
    /// Number of scrapes in which the ledger balanced.
    pub balanced: u64,
}

impl Verification {
    /// The result if cookies of the backlog were not stored before the timeout.
    pub fn not_stored(cookies: u64) -> Self {
        let cookies = grouped(cookies);
        Self {
            failed: vec![format!(
                "{cookies} cookies of the backlog were not stored in time"
            )],
            ..Self::default()
        }
    }

    /// Adds the result to a report.
    pub fn add_to(&self, report: &mut Report) {
        let row = |verdict: &StoreVerdict| {
            let counts = [("stored", verdict.stored), ("correct", verdict.correct)];
            let counts = counts.into_iter().chain(verdict.differences());
            Row::new(
                &verdict.node,
                counts.map(|(name, count)| COUNT.of(name, count)),
            )
        };
        report.add(
            "Verification",
            NOTE,
            self.verdicts.iter().map(row).collect::<Vec<_>>(),
        );
        if self.balanced > 0 {
            let scrapes = grouped(self.balanced);
            report.findings.push(format!(
                "balanced  every cookie has exactly one outcome in all {scrapes} scrapes"
            ));
        }
        for verdict in &self.verdicts {
            if verdict.has_passed() {
                report
                    .findings
                    .push(format!("verified  {}", verdict.line()));
            } else {
                let examples = verdict.examples.join("; ");
                report
                    .failures
                    .push(format!("{} ({examples})", verdict.line()));
            }
        }
        let failed = self.failed.iter();
        report
            .failures
            .extend(failed.map(|reason| format!("not verified: {reason}")));
    }
}
