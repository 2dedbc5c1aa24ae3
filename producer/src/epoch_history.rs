//! The history of this producer's epochs, from which subscribers learn how many cookies of earlier epochs they lost.
//!
//! # How it works
//!
//! An epoch is one run of the process. A small record, a file in memory (`/dev/shm`), contains the last 16 epochs and the
//! end of each. It survives a crash of the process, but not of the machine. The entry of the current epoch contains an upper
//! bound of its sequences:
//!
//! - Before a cookie gets a sequence beyond the bound, the bound is raised, by `BOUND_STEP` more than needed.
//! - When the log has sealed all cookies because of their age, the bound is lowered to the last sequence, so it is exact for
//!   a producer that is killed while idle.
//! - When the log is closed, the entry becomes exact.
//!
//! The bound thus holds whenever the process is killed: cookies are appended only after it is raised. It is too high by at
//! most `BOUND_STEP`. Raising it in steps, instead of by the capacity of each chunk, gives a tighter bound (the smallest
//! cookies have a tenth of the usual size) and fewer writes at low rates.
//!
//! A subscriber has lost the rest of the epoch of its cursor, and all later epochs before the current one. Their sum is
//! reported only if all these epochs are known.
//!
//! # Constraints
//!
//! - The record must be in memory, because appends beyond the bound wait for its write. A directory on disk is rejected.
//! - A wrong bound is worse than none. A corrupt record is discarded. A failed write empties the record. An epoch whose
//!   machine stopped before its entry was exact becomes unknown. A process that cannot lock the record, because another
//!   process with the same id runs, marks all epochs so far as untrusted.
//! - All runs with one id must use the same machine and directory: the record does not cover runs elsewhere.
//! - An epoch is larger than all recorded epochs, even if the clock was set back.
//! - Without a usable record, the producer logs a warning and runs without one.
//!
//! # Cost
//!
//! One `pwrite` of 656 bytes to memory per `BOUND_STEP` cookies, and two per chunk that is sealed by age, under the lock of
//! the log.

mod current;
pub(crate) mod epoch;
mod file;
mod record;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use prometheus::IntGauge;
use proto::v1::{Cursor, Tail};
use runtime::metrics::Registry;

pub use self::current::CurrentEpoch;
pub(crate) use self::record::{fnv, fnv_after};
use self::{
    current::OpenRecord,
    file::{RecordError, RecordFile},
    record::{BootId, EPOCHS_MAX, EpochEnd, RecordEntry},
};

/// Number of sequences that are reserved together.
pub const BOUND_STEP: u64 = 1024;

/// Default directory of the record: the in-memory directory of Linux.
const DEFAULT_DIR: &str = "/dev/shm";

/// Maximum bytes of a producer's id in its file name, which also contains a hash of the full id.
const NAME_BYTES_MAX: usize = 48;

/// Directory of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDir {
    /// `/dev/shm`, if it exists.
    Default,
    /// This directory.
    Dir(PathBuf),
    /// No record.
    Off,
}

/// The current epoch and the recorded ends of earlier epochs; clones share it.
#[derive(Debug, Clone)]
pub struct EpochHistory {
    shared: Arc<HistoryShared>,
}

#[derive(Debug)]
struct HistoryShared {
    epoch: u64,
    entries: Vec<RecordEntry>,
    /// Read before each use, because another process may mark the record as untrusted.
    record: Option<Arc<RecordFile>>,
}

/// Begins an epoch of the producer `id`: `candidate`, or the next epoch after the recorded ones if that is larger.
///
/// Reads and writes a small file once, and never waits for another process.
///
/// # Errors
/// When the metric is registered already.
pub fn begin(
    state: &StateDir,
    id: &str,
    candidate: u64,
    registry: &Registry,
) -> prometheus::Result<(EpochHistory, CurrentEpoch)> {
    let recorded: IntGauge = registry.add(metric_defs::producer::EPOCH_HISTORY_RECORDED)?;
    let Some(dir) = dir(state) else {
        remove(&Path::new(DEFAULT_DIR).join(record_name(id)));
        tracing::info!("epoch history disabled");
        return Ok(unrecorded(candidate));
    };
    let path = dir.join(record_name(id));
    Ok(match open(&path, candidate, &recorded) {
        Ok(opened) => opened,
        Err(error) => {
            // A locked record is in use; it was marked as untrusted instead.
            if !matches!(error, RecordError::Locked) {
                remove(&path);
            }
            tracing::warn!(
                path = %path.display(),
                %error,
                "epoch history unavailable; losses from a crash cannot be bounded"
            );
            unrecorded(candidate)
        }
    })
}

fn unrecorded(epoch: u64) -> (EpochHistory, CurrentEpoch) {
    (
        EpochHistory::new(epoch, Vec::new(), None),
        CurrentEpoch::default(),
    )
}

/// Removes a record that will not contain the current epoch. Otherwise the next run would compute losses without it.
fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(
            path = %path.display(),
            %error,
            "failed to remove an epoch history that lacks the current epoch; remove it before the next start"
        ),
    }
}

fn dir(state: &StateDir) -> Option<PathBuf> {
    match state {
        StateDir::Default => {
            let dir = Path::new(DEFAULT_DIR);
            dir.is_dir().then(|| dir.to_owned())
        }
        StateDir::Dir(dir) => Some(dir.clone()),
        StateDir::Off => None,
    }
}

/// Opens and locks the record, and adds the current epoch.
fn open(
    path: &Path,
    candidate: u64,
    recorded: &IntGauge,
) -> Result<(EpochHistory, CurrentEpoch), RecordError> {
    let record = RecordFile::open(path)?;
    if let Err(error) = record.lock() {
        mark_untrusted(&record, candidate)?;
        return Err(error);
    }
    let boot = boot_id();
    let mut earlier = read(&record)?;
    drop_unconfirmed_bounds(&mut earlier, boot);
    let floor = record.untrusted_until().unwrap_or(0);
    let newest = earlier.last().map_or(floor, |entry| entry.epoch.max(floor));
    let entry = RecordEntry {
        epoch: candidate.max(newest.saturating_add(1)),
        end: EpochEnd::AtMost(0),
        boot: boot.unwrap_or_default(),
    };
    earlier.drain(..(earlier.len() + 1).saturating_sub(EPOCHS_MAX));
    let all: Vec<_> = earlier.iter().copied().chain([entry]).collect();
    if let Err(error) = record.write(&all) {
        invalidate(&record);
        return Err(error.into());
    }
    recorded.set(1);
    let record = Arc::new(record);
    let current = CurrentEpoch {
        record: Some(OpenRecord {
            entries: all,
            file: Arc::clone(&record),
            recorded: recorded.clone(),
        }),
    };
    let history = EpochHistory::new(entry.epoch, earlier, Some(record));
    Ok((history, current))
}

/// Marks the record as untrusted up to `candidate` or its newest epoch, whichever is larger.
fn mark_untrusted(file: &RecordFile, candidate: u64) -> io::Result<()> {
    let newest = file
        .read()?
        .ok()
        .and_then(|entries| entries.last().copied());
    let epoch = newest.map_or(candidate, |entry| entry.epoch.max(candidate));
    file.set_untrusted_until(epoch.max(file.untrusted_until().unwrap_or(0)))
}

/// Reads the entries of a record; empties a corrupt one.
fn read(file: &RecordFile) -> io::Result<Vec<RecordEntry>> {
    match file.read()? {
        Ok(entries) => Ok(entries),
        Err(error) => {
            tracing::warn!(path = %file.path().display(), %error, "corrupt epoch history discarded; earlier epochs are unknown");
            file.clear()?;
            Ok(Vec::new())
        }
    }
}

/// Marks epochs as unknown if they had no exact end when the machine stopped; `boot` is the current boot.
fn drop_unconfirmed_bounds(earlier: &mut [RecordEntry], boot: Option<BootId>) {
    for entry in earlier {
        let is_of_this_boot = boot == Some(entry.boot);
        if matches!(entry.end, EpochEnd::AtMost(_)) && !is_of_this_boot {
            entry.end = EpochEnd::Unknown;
        }
    }
}

impl EpochHistory {
    fn new(epoch: u64, entries: Vec<RecordEntry>, record: Option<Arc<RecordFile>>) -> Self {
        let shared = HistoryShared {
            epoch,
            entries,
            record,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Number of cookies of earlier epochs that the owner of `cursor` lost; `None` if unknown.
    #[must_use]
    pub fn tail(&self, cursor: &Cursor) -> Option<Tail> {
        let shared = &*self.shared;
        if shared.record.as_ref()?.untrusted_until().ok()? >= cursor.epoch {
            return None;
        }
        tail_of(&shared.entries, cursor)
    }
}

fn tail_of(entries: &[RecordEntry], cursor: &Cursor) -> Option<Tail> {
    let at = entries
        .iter()
        .position(|entry| entry.epoch == cursor.epoch)?;
    let (mut cookies_max, mut exact) = (0_u64, true);
    for (index, entry) in entries.iter().enumerate().skip(at) {
        let received = if index == at { cursor.sequence } else { 0 };
        let end = match entry.end {
            EpochEnd::Exact(end) => end,
            EpochEnd::AtMost(end) => {
                exact = false;
                end
            }
            EpochEnd::Unknown => return None,
        };
        // Unknown if the cursor is beyond the recorded end.
        cookies_max = cookies_max.checked_add(end.checked_sub(received)?)?;
    }
    Some(Tail { cookies_max, exact })
}

fn invalidate(file: &RecordFile) {
    if let Err(error) = file.invalidate() {
        tracing::error!(
            path = %file.path().display(),
            %error,
            "failed to remove an outdated epoch history; remove it before the next start"
        );
    }
}

/// File name of the record of a producer: readable, and unique per id.
fn record_name(id: &str) -> String {
    let readable: String = id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(NAME_BYTES_MAX)
        .collect();
    format!("cookiesync-producer-{readable}-{:016x}", fnv(id.as_bytes()))
}

/// Id of this boot of the machine; `None` if the system does not provide it.
fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some(id.to_be_bytes())
}

#[cfg(test)]
mod tests;
