//! The current epoch: keeps its entry in the record true, in memory with each reservation, on a disk when it has ended.

use std::{sync::Arc, thread};

use prometheus::IntGauge;
use tokio_util::sync::DropGuard;

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
    /// Wakes [`EpochHistory::finished`](super::EpochHistory::finished) when dropped.
    pub(super) _finished: Option<DropGuard>,
}

/// The entry, and the files in which it is recorded.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) entry: Entry,
    /// In memory: written under the lock of the log.
    pub(super) bound: Slot,
    /// The record, if that is another file, on a disk: written by a separate thread when the epoch has ended.
    pub(super) record: Option<Slot>,
    pub(super) recorded: IntGauge,
}

/// The place of an entry in a file.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) file: Arc<RecordFile>,
    pub(super) index: usize,
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

    fn close(self: Box<Self>) {
        let is_on_disk = |recording: &Recording| recording.record.is_some();
        if !self.recording.as_ref().is_some_and(is_on_disk) {
            return;
        }
        let writing = thread::Builder::new()
            .name("record".to_owned())
            .spawn(move || self.write_record());
        if let Err(error) = writing {
            tracing::warn!(%error, "there is no thread to write the epoch history");
        }
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
        recording.entry.end = end;
        let Slot { file, index } = &recording.bound;
        if let Err(error) = file.write_one(*index, &recording.entry) {
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

    /// Writes the end to the disk, which may take long.
    pub(super) fn write_record(&self) {
        let Some(recording) = &self.recording else {
            return;
        };
        let Some(Slot { file, index }) = &recording.record else {
            return;
        };
        let written = file
            .write_one(*index, &recording.entry)
            .and_then(|()| file.sync())
            .and_then(|()| recording.bound.file.remove());
        if let Err(error) = written {
            tracing::warn!(
                path = %file.path().display(),
                %error,
                "the end of this epoch is in memory alone"
            );
        }
    }
}
