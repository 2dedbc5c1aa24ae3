//! The current epoch: keeps its entry in the record true with each reservation.

use std::sync::Arc;

use prometheus::IntGauge;

use super::{
    AHEAD_COOKIES,
    file::RecordFile,
    record::{End, Entry},
};
use crate::log::{Progress, Sequence};

/// The entry of the current epoch. Does nothing when there is no record.
#[derive(Debug, Default)]
pub struct CurrentEpoch {
    pub(super) recording: Option<Recording>,
}

/// The entries, of which the last is the current epoch's, and their file, which is written under the lock of the log.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) entries: Vec<Entry>,
    pub(super) file: Arc<RecordFile>,
    pub(super) recorded: IntGauge,
}

impl Progress for CurrentEpoch {
    fn reserve(&mut self, last: Sequence) -> Sequence {
        let end = last.saturating_add(AHEAD_COOKIES);
        self.note(End::AtMost(end));
        self.or_max(end)
    }

    fn settle(&mut self, last: Sequence) -> Sequence {
        self.note(End::AtMost(last));
        self.or_max(last)
    }

    fn end(&mut self, last: Sequence) {
        self.note(End::Exact(last));
    }
}

impl CurrentEpoch {
    /// `end`, or with no record `Sequence::MAX`: then there is nothing to reserve any more.
    fn or_max(&self, end: Sequence) -> Sequence {
        if self.recording.is_some() {
            end
        } else {
            Sequence::MAX
        }
    }

    fn note(&mut self, end: End) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        if let Some(current) = recording.entries.last_mut() {
            current.end = end;
        }
        let file = &recording.file;
        if let Err(error) = file.write(&recording.entries) {
            recording.recorded.set(0);
            tracing::warn!(
                path = %file.path().display(),
                %error,
                "the epoch history cannot be written: after a crash nobody can say how much was lost"
            );
            super::invalidate(file);
            self.recording = None;
        }
    }
}
