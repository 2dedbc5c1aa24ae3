//! The history of this producer's epochs, from which subscribers learn how many cookies of earlier epochs they lost.
//!
//! # How it works
//!
//! An epoch is one run of the process. A small record, a file in memory (`/dev/shm`), contains the last 16 epochs and the
//! end of each. It survives a crash of the process, but not of the machine. The entry of the current epoch contains an upper
//! bound on its sequence numbers:
//!
//! - Before a cookie gets a sequence number beyond the bound, the bound is raised, by `BOUND_STEP` more than needed.
//! - When the log has sealed all cookies because of their age, the bound is lowered to the last sequence number. It is
//!   therefore exact for a producer that is killed while idle.
//! - When the log is closed, the entry becomes exact.
//!
//! The bound thus holds whenever the process is killed: cookies are appended only after it is raised. It is too high by at
//! most `BOUND_STEP`. Raising it by the capacity of each chunk instead would make the bound looser, because the smallest
//! cookies have a tenth of the usual size, and would cause more writes at low rates.
//!
//! After a restart, a subscriber has lost the rest of its cursor's epoch, and all later epochs before the current one.
//! The number of lost cookies is reported only if all these epochs are recorded.
//!
//! # The epoch
//!
//! The epoch is unique among the runs of a producer. Consumers compare epochs only for equality: if an epoch repeated, a consumer
//! would resume in the middle of a run that it never read. The lowest bits are random. A clock that is set back, or starts at the
//! same time with every boot, thus does not repeat an epoch. The other bits are the start time, for operators.
//!
//! # Constraints
//!
//! - The record must be in memory, because appends beyond the bound wait for its write. A directory on disk is rejected.
//! - A wrong bound is worse than none. A corrupt record is discarded. A process removes the record if a write fails, or
//!   if it cannot lock the record because another process with the same id is running. No process then uses this record.
//! - All runs with one id must use the same machine and directory: the record does not cover runs elsewhere.
//! - An epoch is larger than all recorded epochs, even if the clock was set back.
//! - Without a usable record, the producer logs a warning and runs without one.
//!
//! # Cost
//!
//! The record costs one `pwrite` of 400 bytes to memory per `BOUND_STEP` cookies, and two per chunk that is sealed because
//! of its age, under the lock of the log.

mod file;
mod record;

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    path::Path,
    sync::Arc,
};

use prometheus::IntGauge;
use proto::{
    units::{Epoch, Sequence},
    v1::{Cursor, EpochEnd, Tail},
};
use runtime::{metrics::Registry, unix_micros};

use self::{
    file::RecordFile,
    record::{EPOCHS_MAX, RecordEntry},
};
pub(crate) use self::{
    file::open_private,
    record::{fnv, fnv_after},
};
use crate::log::Progress;

/// Number of sequence numbers that are reserved together.
pub const BOUND_STEP: u64 = 1024;

/// Default directory of the record: the in-memory directory of Linux.
pub(crate) const DEFAULT_DIR: &str = "/dev/shm";

/// Maximum bytes of a producer's id in its file name, which also contains a hash of the full id.
const NAME_BYTES_MAX: usize = 48;

/// Two runs that start at the same time get the same epoch once in 65,536; the time is accurate to 66 ms.
const EPOCH_RANDOM_BITS: u32 = 16;

/// The current epoch and the recorded ends of earlier epochs.
#[derive(Debug, Clone)]
pub struct EpochHistory {
    epoch: Epoch,
    earlier: Vec<RecordEntry>,
    /// Another process may remove it.
    file: Option<Arc<RecordFile>>,
}

/// Updates the entry of the current epoch, which is the last one of the record, under the lock of the log.
#[derive(Debug)]
pub struct CurrentEpoch {
    entries: Vec<RecordEntry>,
    /// `None` after a failed write.
    file: Option<Arc<RecordFile>>,
    recorded: IntGauge,
}

/// Begins an epoch of the producer `id`: `candidate`, or the next epoch after the recorded ones if that is larger. The record
/// is in `dir`, if this is a directory in memory.
///
/// Reads and writes a small file once, and never waits for another process.
///
/// # Errors
/// When the metric is registered already.
pub fn begin(
    dir: &Path,
    id: &str,
    candidate: Epoch,
    registry: &Registry,
) -> prometheus::Result<(EpochHistory, Option<CurrentEpoch>)> {
    let recorded: IntGauge = registry.add(metric_defs::producer::EPOCH_HISTORY_RECORDED)?;
    let path = dir.join(record_name(id));
    let error = match open(&path, candidate, &recorded) {
        Ok((history, current)) => return Ok((history, Some(current))),
        Err(error) => error,
    };
    // Otherwise the next run would compute losses without this epoch.
    remove(&path);
    tracing::warn!(
        path = %path.display(),
        %error,
        "epoch history unavailable; the loss from a crash will have no known maximum"
    );
    let history = EpochHistory {
        epoch: candidate,
        earlier: Vec::new(),
        file: None,
    };
    Ok((history, None))
}

/// Opens and locks the record, and adds the current epoch.
fn open(
    path: &Path,
    candidate: Epoch,
    recorded: &IntGauge,
) -> anyhow::Result<(EpochHistory, CurrentEpoch)> {
    let file = Arc::new(RecordFile::open(path)?);
    let mut earlier = file.read()?;
    let newest = earlier.last().map_or(0, |entry| entry.epoch.0);
    let epoch = candidate.max(Epoch(newest.saturating_add(1)));
    earlier.drain(..(earlier.len() + 1).saturating_sub(EPOCHS_MAX));
    let mut entries = earlier.clone();
    entries.push(RecordEntry {
        epoch,
        end: Sequence(0),
        is_exact: false,
    });
    file.write(&entries)?;
    recorded.set(1);
    let current = CurrentEpoch {
        entries,
        file: Some(Arc::clone(&file)),
        recorded: recorded.clone(),
    };
    let history = EpochHistory {
        epoch,
        earlier,
        file: Some(file),
    };
    Ok((history, current))
}

/// Removes a record that will not contain the current epoch.
fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::error!(
            path = %path.display(),
            %error,
            "failed to remove an epoch history that lacks the current epoch; remove the file before the next start"
        ),
        _ => {}
    }
}

impl EpochHistory {
    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The recorded ends of earlier epochs, the oldest first.
    pub fn ends(&self) -> Vec<EpochEnd> {
        let is_usable = self.file.as_ref().is_some_and(|file| !file.is_removed());
        let earlier = self.earlier.iter().filter(|_| is_usable);
        let end = |entry: &RecordEntry| EpochEnd {
            epoch: entry.epoch.0,
            last_sequence: entry.end.0,
            exact: entry.is_exact,
        };
        earlier.map(end).collect()
    }

    /// Number of cookies of earlier epochs that the owner of `cursor` lost; `None` if unknown.
    pub fn tail(&self, cursor: &Cursor) -> Option<Tail> {
        let is_usable = !self.file.as_ref()?.is_removed();
        let mut epochs = self.earlier.iter();
        let at = epochs.position(|entry| entry.epoch.0 == cursor.epoch);
        let missed = &self.earlier[at.filter(|_| is_usable)?..];
        let (mut cookies_max, mut received) = (0_u64, cursor.sequence);
        for entry in missed {
            // Unknown if the cursor is beyond the recorded end.
            cookies_max = cookies_max.checked_add(entry.end.0.checked_sub(received)?)?;
            received = 0;
        }
        let exact = missed.iter().all(|entry| entry.is_exact);
        Some(Tail { cookies_max, exact })
    }
}

impl Progress for CurrentEpoch {
    fn reserve(&mut self, last: Sequence) -> Sequence {
        self.update(Sequence(last.0.saturating_add(BOUND_STEP)), false)
    }

    fn settle(&mut self, last: Sequence) -> Sequence {
        self.update(last, false)
    }

    fn end(&mut self, last: Sequence) {
        self.update(last, true);
    }
}

impl CurrentEpoch {
    /// Returns `end`; without a record `Sequence::MAX`, so that the log reserves nothing more.
    fn update(&mut self, end: Sequence, is_exact: bool) -> Sequence {
        let Some(file) = &self.file else {
            return Sequence::MAX;
        };
        if let Some(current) = self.entries.last_mut() {
            (current.end, current.is_exact) = (end, is_exact);
        }
        if let Err(error) = file.write(&self.entries) {
            self.recorded.set(0);
            tracing::warn!(
                path = %file.path.display(),
                %error,
                "failed to write the epoch history; the loss from a crash will have no known maximum"
            );
            remove(&file.path);
            self.file = None;
            return Sequence::MAX;
        }
        end
    }
}

/// The epoch of a run that starts now.
pub(crate) fn new_epoch() -> Epoch {
    // Seeded by the system for each process.
    epoch_at(unix_micros(), RandomState::new().hash_one(0))
}

fn epoch_at(now: u64, random: u64) -> Epoch {
    let mask = (1 << EPOCH_RANDOM_BITS) - 1;
    // Never 0, which means no epoch.
    Epoch(((now & !mask) | (random & mask)).max(1))
}

/// File name of the record of a producer: readable, and unique per id.
fn record_name(id: &str) -> String {
    let readable = id.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
    let readable: String = readable.chars().take(NAME_BYTES_MAX).collect();
    format!("cookiesync-producer-{readable}-{:016x}", fnv(id.as_bytes()))
}

#[cfg(test)]
mod tests;
