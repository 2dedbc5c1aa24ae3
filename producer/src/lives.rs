//! What is known of this producer's former lives, so that a subscriber can be told how much it will never get of them.
//!
//! # How it works
//!
//! A life is one run of the process, named by its epoch. A small record in a file keeps the last 16 of them,
//! and where each ended. Best it lies in memory (`/dev/shm`): it survives the process however that ends, not the machine, and
//! neither would what it speaks of. While a life runs, its entry says that no sequence is *beyond* some number:
//!
//! - Before a cookie may get a sequence beyond it, the number is raised, by `AHEAD_COOKIES` more than needed.
//! - When the log has sealed all it had because of age, the number becomes the last sequence: of a producer killed while
//!   it was idle, the very end is known.
//! - When the log is closed, the entry becomes exact.
//!
//! So the bound holds at each instant, whatever kills the process: what was killed within a call had not yet put the
//! cookies into the log that the call was for. It is too high by `AHEAD_COOKIES` at most. Raising ahead, and not once a chunk by what a
//! chunk can hold, gives a nearer bound (the smallest cookies are a tenth of usual ones) and fewer writes while there
//! are few cookies.
//!
//! What a subscriber will never get is then the rest of the life that its cursor is from, and all of the lives since, which it
//! has not seen. That is told only when every one of those lives is known.
//!
//! # A record on a disk
//!
//! A disk may stop answering at any moment. What stands on it then is what the next life reads, however far the log got
//! meanwhile. So of a life that runs a disk can hold no number that is true, unless each append that goes beyond it waits for the
//! disk; writing ahead from a thread only makes the wrong moment rarer. Therefore the disk first says `no bound`, before the
//! first cookie, and is not written again until the log is closed. What changes meanwhile is in a second file, of one entry,
//! in `/dev/shm`. The next life takes the number from there if it is of the same epoch and the same start of the machine, and
//! otherwise knows no bound: a container's own `/dev/shm` ends with it.
//!
//! # Constraints
//!
//! - An append writes to memory alone, and never waits for a disk. The beginning waits for it, and so may the
//!   process's end, though not its drain.
//! - Rather no bound than a wrong one. A record that is damaged is thrown away. A write that fails empties the
//!   record. A life that ended with the machine before it was final counts as unknown. A process that cannot get the
//!   record, because another of the same name runs, leaves a mark in it: lives up to now are not believed.
//! - A name is used on one machine, with one folder: of a life elsewhere the record knows nothing.
//! - An epoch is larger than all recorded before it, also when the clock was set back.
//! - Nothing here fails a producer: it runs without a record, and says so.
//!
//! # Cost
//!
//! One `pwrite` of 48 bytes to memory each `AHEAD_COOKIES` cookies, and two for each chunk that is sealed by age, under the log's
//! lock.

mod file;
mod life;
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

pub use self::life::Life;
use self::{
    file::{RecordFile, Unusable, is_in_memory},
    life::{Kept, Slot},
    record::{BootId, End, Entry, LIVES_MAX},
};

/// How many sequences are reserved at once.
pub const AHEAD_COOKIES: u64 = 1024;

/// Where the record is kept unless told otherwise: a folder in memory that every Linux has.
const DEFAULT_FOLDER: &str = "/dev/shm";

/// Longest part of a producer's name that its file's name shows; a hash of all of it follows.
const SHOWN_BYTES_MAX: usize = 48;

/// Where a producer keeps the record of its lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// In `/dev/shm`, if there is such a folder.
    Default,
    /// In this folder.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// What is known of the lives before this one; clones share it.
#[derive(Debug, Clone)]
pub struct Lives {
    shared: Arc<Former>,
}

#[derive(Debug)]
struct Former {
    epoch: u64,
    entries: Vec<Entry>,
    /// In memory: carries the mark of a process that could not get the record.
    bound: Option<Arc<RecordFile>>,
    over: CancellationToken,
}

/// The files of one producer.
#[derive(Debug)]
struct Places {
    record: PathBuf,
    /// Where the bound of the life that runs is, when the record is not in memory.
    bound: Option<PathBuf>,
}

impl Places {
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

/// What was found of former lives, and the life that begins, the last of the entries.
#[derive(Debug)]
struct Begun {
    record: RecordFile,
    bound: Option<RecordFile>,
    former: Vec<Entry>,
    entry: Entry,
}

/// Begins a life of the producer `id` at `now`, in microseconds since the Unix epoch.
///
/// Touches small files once, and never waits for another process.
///
/// # Errors
/// When the metric is registered already.
pub fn begin(
    state: &State,
    id: &str,
    now: u64,
    registry: &Registry,
) -> prometheus::Result<(Lives, Life)> {
    let recorded = IntGauge::new(
        "producer_lives_recorded",
        "1 while it is recorded how far this producer got, for the case that it is killed.",
    )?;
    registry.register(Box::new(recorded.clone()))?;
    let Some(folder) = folder(state) else {
        forget(&Path::new(DEFAULT_FOLDER).join(record_name(id)));
        tracing::info!("no record of this producer's lives is kept");
        return Ok(unrecorded(now));
    };
    let begun = Places::of(&folder, id).and_then(|places| open(&places, now));
    Ok(match begun {
        Ok(begun) => {
            recorded.set(1);
            begun.recorded(recorded)
        }
        Err(why) => {
            let path = folder.join(record_name(id));
            // One that is locked was marked.
            if !matches!(why, Unusable::Locked) {
                forget(&path);
            }
            tracing::warn!(
                path = %path.display(),
                %why,
                "no record of this producer's lives is kept: after a crash nobody can say how much was lost"
            );
            unrecorded(now)
        }
    })
}

fn unrecorded(epoch: u64) -> (Lives, Life) {
    (Lives::new(epoch, Vec::new(), None), Life::default())
}

/// Removes a record in which the life that begins will not be: the next would be told that there was none.
fn forget(path: &Path) {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(
            path = %path.display(),
            %error,
            "the record of this producer's former lives cannot be removed: do so before it is used again, as this life is missing in it"
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

/// Takes the files and adds the life that begins.
fn open(places: &Places, now: u64) -> Result<Begun, Unusable> {
    let record = RecordFile::open(&places.record)?;
    let bound = match &places.bound {
        None => None,
        Some(path) => Some(RecordFile::open(path)?),
    };
    // What is in memory first: it is where the process that has them looks.
    for file in bound.iter().chain([&record]) {
        if let Err(error) = file.lock() {
            for file in bound.iter().chain([&record]) {
                mark(file, now)?;
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
    believe(&mut former, last, boot);
    let floor = record.mark().unwrap_or(0);
    let newest = former.last().map_or(floor, |entry| entry.epoch.max(floor));
    let entry = Entry {
        epoch: now.max(newest.saturating_add(1)),
        end: End::AtMost(0),
        boot: boot.unwrap_or_default(),
    };
    former.drain(..(former.len() + 1).saturating_sub(LIVES_MAX));
    let end = match bound {
        None => entry.end,
        Some(_) => End::Unknown,
    };
    let begins = Entry { end, ..entry };
    let all: Vec<_> = former.iter().copied().chain([begins]).collect();
    // The record before the file that it was completed from.
    if let Err(error) = record.write(&all) {
        disown(&record);
        return Err(error.into());
    }
    if let Some(bound) = &bound {
        bound.write(&[entry])?;
    }
    Ok(Begun {
        record,
        bound,
        former,
        entry,
    })
}

/// Leaves the mark that lives up to now, also the one that runs, are not to be believed.
fn mark(file: &RecordFile, now: u64) -> io::Result<()> {
    let newest = file
        .read()?
        .ok()
        .and_then(|entries| entries.last().copied());
    let disowned = newest.map_or(now, |entry| entry.epoch.max(now));
    file.set_mark(disowned.max(file.mark().unwrap_or(0)))
}

/// The lives that a file tells of; one that is damaged is emptied.
fn read(file: &RecordFile) -> io::Result<Vec<Entry>> {
    match file.read()? {
        Ok(entries) => Ok(entries),
        Err(damaged) => {
            tracing::warn!(path = %file.path().display(), %damaged, "nothing is known of this producer's former lives");
            file.clear()?;
            Ok(Vec::new())
        }
    }
}

/// What is believed of former lives now that the machine runs since `boot`: `last`, which was in memory, completes
/// the one of its epoch.
fn believe(former: &mut [Entry], last: Option<Entry>, boot: Option<BootId>) {
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

impl Begun {
    fn recorded(self, recorded: IntGauge) -> (Lives, Life) {
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
        let lives = Lives::new(self.entry.epoch, self.former, Some(file));
        let life = Life {
            kept: Some(Kept {
                entry: self.entry,
                bound,
                record,
                recorded,
            }),
            _over: Some(lives.shared.over.clone().drop_guard()),
        };
        (lives, life)
    }
}

impl Lives {
    fn new(epoch: u64, entries: Vec<Entry>, bound: Option<Arc<RecordFile>>) -> Self {
        let former = Former {
            epoch,
            entries,
            bound,
            over: CancellationToken::new(),
        };
        Self {
            shared: Arc::new(former),
        }
    }

    /// The epoch of the life that runs.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// What the owner of `cursor` will never get of lives before this one; `None` when that is not known.
    #[must_use]
    pub fn tail(&self, cursor: &Cursor) -> Option<Tail> {
        let former = &*self.shared;
        if former.bound.as_ref()?.mark().ok()? >= cursor.epoch {
            return None;
        }
        tail_of(&former.entries, cursor)
    }

    /// Waits until nothing more is written of the life that runs: it was closed, and the disk has its end.
    pub async fn over(&self) {
        if self.shared.bound.is_some() {
            self.shared.over.cancelled().await;
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

fn disown(file: &RecordFile) {
    if let Err(error) = file.disown() {
        tracing::error!(
            path = %file.path().display(),
            %error,
            "a record that is wrong cannot be removed: remove it before this producer is started again"
        );
    }
}

/// Names the record of a producer.
fn record_name(id: &str) -> String {
    file_name("producer", id, id.as_bytes())
}

/// Names what belongs to a record in another folder.
fn bound_name(folder: &Path, id: &str) -> String {
    let whole = [folder.as_os_str(), OsStr::new(id)].map(OsStr::as_bytes);
    file_name("bound", id, &whole.join(&0))
}

/// Names a file of a producer: readable, and another one for each that is hashed.
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

/// Tells this start of the machine from others; `None` when the system does not say.
fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some(id.to_be_bytes())
}

#[cfg(test)]
mod tests;
