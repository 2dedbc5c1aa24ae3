//! The life that runs: keeps its entry true, in memory with each reservation, on a disk once it is over.

use std::{sync::Arc, thread};

use prometheus::IntGauge;
use tokio_util::sync::DropGuard;

use super::{
    AHEAD_COOKIES,
    file::RecordFile,
    record::{End, Entry},
};
use crate::log::{Progress, Sequence};

/// The life that runs. Does nothing when there is no record.
#[derive(Debug, Default)]
pub struct Life {
    pub(super) kept: Option<Kept>,
    /// Tells [`Lives::over`](super::Lives::over).
    pub(super) _over: Option<DropGuard>,
}

/// What is known of it, and where that is written.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) entry: Entry,
    /// In memory: written under the log's lock.
    pub(super) bound: Slot,
    /// The record, where that is another file, on a disk: written by a thread of its own, when all is over.
    pub(super) record: Option<Slot>,
    pub(super) recorded: IntGauge,
}

/// Where an entry lies.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) file: Arc<RecordFile>,
    pub(super) index: usize,
}

impl Progress for Life {
    fn reserve(&mut self, last: Sequence) -> Sequence {
        let end = last.saturating_add(AHEAD_COOKIES);
        self.note(End::AtMost(end));
        self.unless_unrecorded(end)
    }

    fn settle(&mut self, last: Sequence) -> Sequence {
        self.note(End::AtMost(last));
        self.unless_unrecorded(last)
    }

    fn end(&mut self, last: Sequence) {
        self.note(End::Exact(last));
    }

    fn close(self: Box<Self>) {
        let is_on_disk = |kept: &Kept| kept.record.is_some();
        if !self.kept.as_ref().is_some_and(is_on_disk) {
            return;
        }
        let writing = thread::Builder::new()
            .name("record".to_owned())
            .spawn(move || self.write_record());
        if let Err(error) = writing {
            tracing::warn!(%error, "there is no thread to write the record of this producer's lives");
        }
    }
}

impl Life {
    /// Without a record there is nothing to be told any more.
    fn unless_unrecorded(&self, end: Sequence) -> Sequence {
        if self.kept.is_some() {
            end
        } else {
            Sequence::MAX
        }
    }

    fn note(&mut self, end: End) {
        let Some(kept) = &mut self.kept else {
            return;
        };
        kept.entry.end = end;
        let Slot { file, index } = &kept.bound;
        if let Err(error) = file.write_one(*index, &kept.entry) {
            kept.recorded.set(0);
            tracing::warn!(
                path = %file.path().display(),
                %error,
                "the record of this producer's lives cannot be written: after a crash nobody can say how much was lost"
            );
            super::disown(file);
            self.kept = None;
        }
    }

    /// Brings the end to the disk. Takes as long as the disk does.
    pub(super) fn write_record(&self) {
        let Some(kept) = &self.kept else { return };
        let Some(Slot { file, index }) = &kept.record else {
            return;
        };
        let written = file
            .write_one(*index, &kept.entry)
            .and_then(|()| file.sync())
            .and_then(|()| kept.bound.file.remove());
        if let Err(error) = written {
            tracing::warn!(
                path = %file.path().display(),
                %error,
                "the end of this life is in memory alone"
            );
        }
    }
}
