//! The history of this producer's epochs, from which a subscriber learns how many cookies of earlier epochs it will
//! never get.
//!
//! # How it works
//!
//! An epoch is one run of the process. A small record in a file in memory (`/dev/shm`) keeps the last 16 epochs and
//! where each ended: it survives the process, however that ends, but not the machine.
//! The entry of the current epoch states that no sequence is *beyond* some bound:
//!
//! - Before a cookie may get a sequence beyond the bound, the bound is raised, by `AHEAD_COOKIES` more than needed.
//! - When the log has sealed everything because of its age, the bound becomes the last sequence: the bound of a
//!   producer that is killed while it is idle is where it ended.
//! - When the log is closed, the entry becomes exact.
//!
//! So the bound holds at every instant, whatever kills the process: a process that is killed while it raises the bound
//! has not yet put the cookies into the log. The bound is too high by at most `AHEAD_COOKIES`. Raising it ahead,
//! instead of once per chunk by what a chunk can hold, gives a tighter bound (the smallest cookies are a tenth of the
//! usual size) and fewer writes while there are few cookies.
//!
//! A subscriber will never get the rest of the epoch of its cursor, nor any of the epochs after it, which it has not
//! seen. It is told their sum only if every one of those epochs is known.
//!
//! # Constraints
//!
//! - The record is in memory only, so nothing waits for a disk: each append beyond the bound would have to. In a directory
//!   on a disk no record is kept.
//! - No bound is better than a wrong one. A damaged record is discarded. A write that fails empties the record. An
//!   epoch whose machine stopped before the entry was final counts as unknown. A process that cannot lock the record,
//!   because another one of the same name runs, marks it: epochs up to now are not trusted.
//! - A name is used on one machine, with one directory: the record knows nothing of a run elsewhere.
//! - An epoch is larger than all recorded before it, even if the clock was set back.
//! - Nothing here stops a producer: it runs without a record, and logs that it does.
//!
//! # Cost
//!
//! One `pwrite` of 656 bytes to memory for every `AHEAD_COOKIES` cookies, and two for each chunk that is sealed by age,
//! under the lock of the log.

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
    current::Recording,
    file::{RecordFile, Unusable},
    record::{BootId, EPOCHS_MAX, End, Entry},
};

/// How many sequences are reserved at once.
pub const AHEAD_COOKIES: u64 = 1024;

/// Where the record is kept by default: an in-memory directory that every Linux has.
const DEFAULT_DIR: &str = "/dev/shm";

/// Most bytes of a producer's name in its file's name; a hash of the whole name follows.
const SHOWN_BYTES_MAX: usize = 48;

/// Where a producer keeps the record of its epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// In `/dev/shm`, if there is such a directory.
    Default,
    /// In this directory.
    Dir(PathBuf),
    /// Nowhere.
    Off,
}

/// What is known of the epochs before this one; clones share it.
#[derive(Debug, Clone)]
pub struct EpochHistory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoch: u64,
    entries: Vec<Entry>,
    /// Where a process that cannot lock the record marks it as not to be trusted.
    record: Option<Arc<RecordFile>>,
}

/// Begins an epoch of the producer `id`: `candidate`, or a larger one if an epoch that large is on record.
///
/// Reads and writes a small file once, and never waits for another process.
///
/// # Errors
/// When the metric is registered already.
pub fn begin(
    state: &State,
    id: &str,
    candidate: u64,
    registry: &Registry,
) -> prometheus::Result<(EpochHistory, CurrentEpoch)> {
    let recorded: IntGauge = registry.add(metric_defs::producer::EPOCH_HISTORY_RECORDED)?;
    let Some(dir) = dir(state) else {
        remove(&Path::new(DEFAULT_DIR).join(record_name(id)));
        tracing::info!("no epoch history is kept");
        return Ok(unrecorded(candidate));
    };
    let path = dir.join(record_name(id));
    Ok(match open(&path, candidate, &recorded) {
        Ok(opened) => opened,
        Err(why) => {
            // A locked record was marked instead.
            if !matches!(why, Unusable::Locked) {
                remove(&path);
            }
            tracing::warn!(
                path = %path.display(),
                %why,
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

/// Removes a record that will not contain the current epoch: the next run would conclude that there was none.
fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(
            path = %path.display(),
            %error,
            "the epoch history cannot be removed: do so before it is used again, as this epoch is missing in it"
        ),
    }
}

fn dir(state: &State) -> Option<PathBuf> {
    match state {
        State::Default => {
            let dir = Path::new(DEFAULT_DIR);
            dir.is_dir().then(|| dir.to_owned())
        }
        State::Dir(dir) => Some(dir.clone()),
        State::Off => None,
    }
}

/// Opens and locks the record, and adds the current epoch.
fn open(
    path: &Path,
    candidate: u64,
    recorded: &IntGauge,
) -> Result<(EpochHistory, CurrentEpoch), Unusable> {
    let record = RecordFile::open(path)?;
    if let Err(error) = record.lock() {
        distrust(&record, candidate)?;
        return Err(error);
    }
    let boot = boot_id();
    let mut former = read(&record)?;
    drop_unproven(&mut former, boot);
    let floor = record.distrusted().unwrap_or(0);
    let newest = former.last().map_or(floor, |entry| entry.epoch.max(floor));
    let entry = Entry {
        epoch: candidate.max(newest.saturating_add(1)),
        end: End::AtMost(0),
        boot: boot.unwrap_or_default(),
    };
    former.drain(..(former.len() + 1).saturating_sub(EPOCHS_MAX));
    let all: Vec<_> = former.iter().copied().chain([entry]).collect();
    if let Err(error) = record.write(&all) {
        invalidate(&record);
        return Err(error.into());
    }
    recorded.set(1);
    let record = Arc::new(record);
    let current = CurrentEpoch {
        recording: Some(Recording {
            entries: all,
            file: Arc::clone(&record),
            recorded: recorded.clone(),
        }),
    };
    let history = EpochHistory::new(entry.epoch, former, Some(record));
    Ok((history, current))
}

/// Marks the record as not to be trusted up to `candidate` or its newest epoch, whichever is larger.
fn distrust(file: &RecordFile, candidate: u64) -> io::Result<()> {
    let newest = file
        .read()?
        .ok()
        .and_then(|entries| entries.last().copied());
    let epoch = newest.map_or(candidate, |entry| entry.epoch.max(candidate));
    file.set_distrusted(epoch.max(file.distrusted().unwrap_or(0)))
}

/// The epochs in a file; a damaged file is emptied.
fn read(file: &RecordFile) -> io::Result<Vec<Entry>> {
    match file.read()? {
        Ok(entries) => Ok(entries),
        Err(damaged) => {
            tracing::warn!(path = %file.path().display(), %damaged, "nothing is known of this producer's former epochs");
            file.clear()?;
            Ok(Vec::new())
        }
    }
}

/// An epoch that had no exact end when the machine stopped counts as unknown; `boot` is the current boot.
fn drop_unproven(former: &mut [Entry], boot: Option<BootId>) {
    for entry in former {
        let is_of_this_boot = boot == Some(entry.boot);
        if matches!(entry.end, End::AtMost(_)) && !is_of_this_boot {
            entry.end = End::Unknown;
        }
    }
}

impl EpochHistory {
    fn new(epoch: u64, entries: Vec<Entry>, record: Option<Arc<RecordFile>>) -> Self {
        let shared = Shared {
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

    /// What the owner of `cursor` will never get of the epochs before this one; `None` when that is not known.
    #[must_use]
    pub fn tail(&self, cursor: &Cursor) -> Option<Tail> {
        let shared = &*self.shared;
        if shared.record.as_ref()?.distrusted().ok()? >= cursor.epoch {
            return None;
        }
        tail_of(&shared.entries, cursor)
    }
}

fn tail_of(entries: &[Entry], cursor: &Cursor) -> Option<Tail> {
    let at = entries
        .iter()
        .position(|entry| entry.epoch == cursor.epoch)?;
    let (mut cookies_max, mut exact) = (0_u64, true);
    for (index, entry) in entries.iter().enumerate().skip(at) {
        let had = if index == at { cursor.sequence } else { 0 };
        let end = match entry.end {
            End::Exact(end) => end,
            End::AtMost(end) => {
                exact = false;
                end
            }
            End::Unknown => return None,
        };
        // A cursor beyond the end contradicts the record.
        cookies_max = cookies_max.checked_add(end.checked_sub(had)?)?;
    }
    Some(Tail { cookies_max, exact })
}

fn invalidate(file: &RecordFile) {
    if let Err(error) = file.invalidate() {
        tracing::error!(
            path = %file.path().display(),
            %error,
            "a record that is wrong cannot be removed: remove it before this producer is started again"
        );
    }
}

/// The file name of the record of a producer: readable, and different for each name.
fn record_name(id: &str) -> String {
    let shown: String = id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(SHOWN_BYTES_MAX)
        .collect();
    format!("cookiesync-producer-{shown}-{:016x}", fnv(id.as_bytes()))
}

/// Identifies this boot of the machine; `None` when the system does not say.
fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some(id.to_be_bytes())
}

#[cfg(test)]
mod tests;
