//! The counts of one connection.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// What a connection saw.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) accepted: u64,
    pub(super) refused: BTreeMap<u16, u64>,
    pub(super) refused_as_expected: u64,
    pub(super) accepted_malformed: u64,
    pub(super) malformed: u64,
    pub(super) unanswered: u64,
    pub(super) unsent: u64,
    pub(super) reconnects: u64,
    /// It broke, and could not be opened again.
    pub(super) is_given_up: bool,
    pub(super) last_answer_at: Option<Instant>,
}

/// What an answer says of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// It should have been refused.
    AcceptedMalformed,
    RefusedAsExpected,
    Refused(u16),
}

impl Tally {
    /// Counts what was answered.
    pub(super) fn count(&mut self, verdict: Verdict, requests: u64) {
        match verdict {
            Verdict::Accepted => self.accepted += requests,
            Verdict::AcceptedMalformed => self.accepted_malformed += requests,
            Verdict::RefusedAsExpected => self.refused_as_expected += requests,
            Verdict::Refused(status) => *self.refused.entry(status).or_default() += requests,
        }
    }
}
