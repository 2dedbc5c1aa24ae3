//! Reports of nodes that read an archive, and thus have no stream.
//!
//! Only a report whose sender has proven that it may confirm positions counts. Of other reports, only the names are shown.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proto::units::{Sequence, UnixMicros};

use super::{Call, Subscribers};

/// Maximum number of names in unverified reports. Further ones are rejected until others expire.
const UNVERIFIED_MAX: usize = 100;

/// A report of a node that has proven that it may confirm positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The name of the node.
    pub name: String,
    /// When the node sent it, by its clock.
    pub time: UnixMicros,
    /// How long ago that is.
    pub age: Duration,
    /// The position in the log of this producer; `None` if the node has none yet.
    pub position: Option<ReportedPosition>,
}

/// The position of a node in a report. The log has all its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedPosition {
    /// All records up to it are durable.
    pub durable: Sequence,
    /// All deletions up to it have taken effect.
    pub applied: Sequence,
    /// The first record that this run of the node was to receive.
    pub first: Sequence,
    /// The last record that this run has lost; 0 if there is none.
    pub lost_until: Sequence,
}

/// Nodes that have sent a report within the retention time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportingNodes {
    /// Number of nodes whose reports count.
    pub verified: usize,
    /// Names in other reports, which anyone can forge.
    pub unverified: Vec<String>,
    /// Number of rejected reports so far.
    pub rejected: u64,
}

/// Names in reports without a proof, with the times of the last reports.
#[derive(Debug, Default)]
pub(super) struct Unverified {
    names: BTreeMap<String, Instant>,
    rejected: u64,
}

impl Unverified {
    /// Removes the names without a report for the retention time.
    pub(super) fn sweep(&mut self, now: Instant, retention: Duration) {
        let is_kept = |at: &Instant| now.saturating_duration_since(*at) < retention;
        self.names.retain(|_, at| is_kept(at));
    }
}

impl Subscribers {
    /// Records a report, unless the node has a stream: then it confirms its positions itself. Returns false for an older report than the
    /// last one.
    pub fn report(&self, report: &Report) -> bool {
        let table = self.table();
        let key = (Call::Subscribe, report.name.clone());
        let has_stream = table
            .by_name
            .get(&key)
            .is_some_and(|it| it.ended().is_none());
        has_stream || self.confirmations().report(report, Instant::now())
    }

    /// Records the name in a report without a proof. Returns false if there are too many.
    pub fn report_unverified(&self, name: &str) -> bool {
        let names = &mut self.shared.unverified.lock().names;
        let has_capacity = names.len() < UNVERIFIED_MAX || names.contains_key(name);
        if has_capacity {
            names.insert(name.to_owned(), Instant::now());
        }
        has_capacity
    }

    /// Counts a rejected report.
    pub fn reject_report(&self) {
        self.shared.unverified.lock().rejected += 1;
    }

    /// The nodes that have sent reports.
    pub fn reporting(&self) -> ReportingNodes {
        let (now, retention) = (Instant::now(), self.table().retention);
        let verified = self.confirmations().reporting(now, retention).count();
        let mut unverified = self.shared.unverified.lock();
        unverified.sweep(now, retention);
        ReportingNodes {
            verified,
            unverified: unverified.names.keys().cloned().collect(),
            rejected: unverified.rejected,
        }
    }
}
