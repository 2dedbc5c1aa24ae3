//! Updates the entry of the current epoch in the record.

use std::sync::Arc;

use prometheus::IntGauge;

use super::{
    BOUND_STEP,
    file::RecordFile,
    record::{EpochEnd, RecordEntry},
};
use crate::log::{Progress, Sequence};

/// The current epoch. Does nothing without a record.
#[derive(Debug, Default)]
pub struct CurrentEpoch {
    pub(super) record: Option<OpenRecord>,
}

/// A record that is written under the lock of the log; its last entry is the current epoch.
#[derive(Debug)]
pub(super) struct OpenRecord {
    pub(super) entries: Vec<RecordEntry>,
    pub(super) file: Arc<RecordFile>,
    pub(super) recorded: IntGauge,
}

impl Progress for CurrentEpoch {
    fn reserve(&mut self, last: Sequence) -> Sequence {
        let end = last.saturating_add(BOUND_STEP);
        self.update(EpochEnd::AtMost(end));
        self.or_max(end)
    }

    fn settle(&mut self, last: Sequence) -> Sequence {
        self.update(EpochEnd::AtMost(last));
        self.or_max(last)
    }

    fn end(&mut self, last: Sequence) {
        self.update(EpochEnd::Exact(last));
    }
}

impl CurrentEpoch {
    /// `end`; without a record `Sequence::MAX`, so that the log reserves nothing more.
    fn or_max(&self, end: Sequence) -> Sequence {
        if self.record.is_some() {
            end
        } else {
            Sequence::MAX
        }
    }

    fn update(&mut self, end: EpochEnd) {
        let Some(record) = &mut self.record else {
            return;
        };
        if let Some(current) = record.entries.last_mut() {
            current.end = end;
        }
        let file = &record.file;
        if let Err(error) = file.write(&record.entries) {
            record.recorded.set(0);
            tracing::warn!(
                path = %file.path().display(),
                %error,
                "failed to write the epoch history; losses from a crash cannot be bounded"
            );
            super::invalidate(file);
            self.record = None;
        }
    }
}
