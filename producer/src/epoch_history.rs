//! The history of this producer's epochs, from which a subscriber learns how many cookies of earlier epochs it will
//! never get.
//!
//! # How it works
//!
//! An epoch is one run of the process. A small record in a file keeps the last 16 epochs and where each ended. The
//! record is best kept in memory (`/dev/shm`): there it survives the process, however that ends, but not the machine.
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
//! # A record on a disk
//!
//! A disk may stop answering at any moment, and the next run then reads what is on it, however far the log got
//! meanwhile. So a disk cannot hold a true bound of the current epoch unless every append beyond the bound waits for
//! the disk; a thread that writes ahead only makes the error rarer. Therefore the disk first records `no bound`, before
//! the first cookie, and is not written again until the log is closed. Until then the bound is kept in a second file,
//! of one entry, in `/dev/shm`. The next run takes the bound from there if it is of the same epoch and the same boot,
//! and otherwise knows no bound: a container's own `/dev/shm` ends with the container.
//!
//! # Constraints
//!
//! - An append writes only to memory and never waits for a disk. The start waits for it, and the end of the process
//!   may, but not its drain.
//! - No bound is better than a wrong one. A damaged record is discarded. A write that fails empties the record. An
//!   epoch whose machine stopped before the entry was final counts as unknown. A process that cannot lock the record,
//!   because another one of the same name runs, marks it: epochs up to now are not trusted.
//! - A name is used on one machine, with one folder: the record knows nothing of a run elsewhere.
//! - An epoch is larger than all recorded before it, even if the clock was set back.
//! - Nothing here stops a producer: it runs without a record, and logs that it does.
//!
//! # Cost
//!
//! One `pwrite` of 48 bytes to memory for every `AHEAD_COOKIES` cookies, and two for each chunk that is sealed by age,
//! under the lock of the log.

mod current;
pub(crate) mod epoch;
mod file;
mod record;

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use prometheus::IntGauge;
use proto::v1::{Cursor, Tail};
use runtime::metrics::Registry;
use tokio_util::sync::CancellationToken;

pub use self::current::CurrentEpoch;
pub(crate) use self::record::Fnv;
use self::{
    current::{Recording, Slot},
    file::{RecordFile, Unusable, is_in_memory},
    record::{BootId, EPOCHS_MAX, End, Entry},
};

/// How many sequences are reserved at once.
pub const AHEAD_COOKIES: u64 = 1024;

/// Where the record is kept by default: an in-memory folder that every Linux has.
const DEFAULT_FOLDER: &str = "/dev/shm";

/// Most bytes of a producer's name in its file's name; a hash of the whole name follows.
const SHOWN_BYTES_MAX: usize = 48;

/// Where a producer keeps the record of its epochs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// In `/dev/shm`, if there is such a folder.
    Default,
    /// In this folder.
    Folder(PathBuf),
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
    /// In memory: where a process that cannot lock the record marks it as not to be trusted.
    bound: Option<Arc<RecordFile>>,
    finished: CancellationToken,
}

/// The files of one producer.
#[derive(Debug)]
struct Paths {
    record: PathBuf,
    /// The bound of the current epoch, if the record is not in memory.
    bound: Option<PathBuf>,
}

impl Paths {
    fn of(folder: &Path, id: &str) -> Result<Self, Unusable> {
        let memory = Path::new(DEFAULT_FOLDER);
        // Two processes may call different folders by the same relative name.
        let absolute = folder.canonicalize();
        let folder = absolute.as_deref().unwrap_or(folder);
        let bound = match (is_in_memory(folder), is_in_memory(memory)) {
            (true, _) => None,
            (false, true) => Some(memory.join(bound_name(folder, id))),
            (false, false) => return Err(Unusable::NoMemory),
        };
        let record = folder.join(record_name(id));
        Ok(Self { record, bound })
    }
}

/// The files, the entries of former epochs, and the entry of the current one.
#[derive(Debug)]
struct Opened {
    record: RecordFile,
    bound: Option<RecordFile>,
    former: Vec<Entry>,
    entry: Entry,
}

/// Begins an epoch of the producer `id`: `candidate`, or a larger one if an epoch that large is on record.
///
/// Reads and writes small files once, and never waits for another process.
///
/// # Errors
/// When the metric is registered already.
pub fn begin(
    state: &State,
    id: &str,
    candidate: u64,
    registry: &Registry,
) -> prometheus::Result<(EpochHistory, CurrentEpoch)> {
    let recorded: IntGauge = registry.add(figures::producer::PROGRESS_RECORDED)?;
    let Some(folder) = folder(state) else {
        remove(&Path::new(DEFAULT_FOLDER).join(record_name(id)));
        tracing::info!("no epoch history is kept");
        return Ok(unrecorded(candidate));
    };
    let opened = Paths::of(&folder, id).and_then(|paths| open(&paths, candidate));
    Ok(match opened {
        Ok(opened) => {
            recorded.set(1);
            opened.recorded(recorded)
        }
        Err(why) => {
            let path = folder.join(record_name(id));
            // A locked record was marked instead.
            if !matches!(why, Unusable::Locked) {
                remove(&path);
            }
            tracing::warn!(
                path = %path.display(),
                %why,
                "no epoch history is kept: after a crash nobody can say how much was lost"
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

fn folder(state: &State) -> Option<PathBuf> {
    match state {
        State::Default => {
            let folder = Path::new(DEFAULT_FOLDER);
            folder.is_dir().then(|| folder.to_owned())
        }
        State::Folder(folder) => Some(folder.clone()),
        State::Off => None,
    }
}

/// Opens and locks the files, and adds the current epoch.
fn open(paths: &Paths, candidate: u64) -> Result<Opened, Unusable> {
    let record = RecordFile::open(&paths.record)?;
    let bound = match &paths.bound {
        None => None,
        Some(path) => Some(RecordFile::open(path)?),
    };
    // The file in memory first: the process that holds the locks looks there for marks.
    for file in bound.iter().chain([&record]) {
        if let Err(error) = file.lock() {
            for file in bound.iter().chain([&record]) {
                distrust(file, candidate)?;
            }
            return Err(error);
        }
    }
    let boot = boot_id();
    let last = match &bound {
        None => None,
        Some(file) => read(file)?.pop(),
    };
    let mut former = read(&record)?;
    drop_unproven(&mut former, last, boot);
    let floor = record.distrusted().unwrap_or(0);
    let newest = former.last().map_or(floor, |entry| entry.epoch.max(floor));
    let entry = Entry {
        epoch: candidate.max(newest.saturating_add(1)),
        end: End::AtMost(0),
        boot: boot.unwrap_or_default(),
    };
    former.drain(..(former.len() + 1).saturating_sub(EPOCHS_MAX));
    let end = match bound {
        None => entry.end,
        Some(_) => End::Unknown,
    };
    let begins = Entry { end, ..entry };
    let all: Vec<_> = former.iter().copied().chain([begins]).collect();
    // The record first: the other file still holds the bound that completes it.
    if let Err(error) = record.write(&all) {
        invalidate(&record);
        return Err(error.into());
    }
    if let Some(bound) = &bound {
        bound.write(&[entry])?;
    }
    Ok(Opened {
        record,
        bound,
        former,
        entry,
    })
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

/// Completes the entry of the epoch of `last`, which was in memory. An epoch that had no exact end when the machine
/// stopped counts as unknown; `boot` is the current boot.
fn drop_unproven(former: &mut [Entry], last: Option<Entry>, boot: Option<BootId>) {
    for entry in former {
        if entry.end == End::Unknown
            && let Some(last) = last.filter(|last| last.epoch == entry.epoch)
        {
            *entry = last;
        }
        let is_of_this_boot = boot == Some(entry.boot);
        if matches!(entry.end, End::AtMost(_)) && !is_of_this_boot {
            entry.end = End::Unknown;
        }
    }
}

impl Opened {
    fn recorded(self, recorded: IntGauge) -> (EpochHistory, CurrentEpoch) {
        let slot = |file, index| Slot {
            file: Arc::new(file),
            index,
        };
        let in_record = slot(self.record, self.former.len());
        let (bound, record) = match self.bound {
            None => (in_record, None),
            Some(file) => (slot(file, 0), Some(in_record)),
        };
        let file = Arc::clone(&bound.file);
        let history = EpochHistory::new(self.entry.epoch, self.former, Some(file));
        let current = CurrentEpoch {
            recording: Some(Recording {
                entry: self.entry,
                bound,
                record,
                recorded,
            }),
            _finished: Some(history.shared.finished.clone().drop_guard()),
        };
        (history, current)
    }
}

impl EpochHistory {
    fn new(epoch: u64, entries: Vec<Entry>, bound: Option<Arc<RecordFile>>) -> Self {
        let shared = Shared {
            epoch,
            entries,
            bound,
            finished: CancellationToken::new(),
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
        if shared.bound.as_ref()?.distrusted().ok()? >= cursor.epoch {
            return None;
        }
        tail_of(&shared.entries, cursor)
    }

    /// Waits until the current epoch has ended and its end is on the disk.
    pub async fn finished(&self) {
        if self.shared.bound.is_some() {
            self.shared.finished.cancelled().await;
        }
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

/// The file name of the record of a producer.
fn record_name(id: &str) -> String {
    file_name("producer", id, id.as_bytes())
}

/// The file name of the bound of a record in another folder.
fn bound_name(folder: &Path, id: &str) -> String {
    let whole = [folder.as_os_str(), OsStr::new(id)].map(OsStr::as_bytes);
    file_name("bound", id, &whole.join(&0))
}

/// A readable file name, different for each value of `hashed`.
fn file_name(kind: &str, id: &str, hashed: &[u8]) -> String {
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
    format!("cookiesync-{kind}-{shown}-{:016x}", record::fnv(hashed))
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
