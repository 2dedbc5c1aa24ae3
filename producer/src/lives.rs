//! What is known of this producer's former lives, so that a subscriber can be told how much it will never get of them.
//!
//! # How it works
//!
//! A life is one run of the process, named by its epoch. A small record in a file keeps the last 16 of them,
//! and where each ended. It lies in memory (`/dev/shm`): it survives the process however that ends, not the machine, and
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
//! # Constraints
//!
//! - Rather no bound than a wrong one. A record that is damaged is thrown away. A write that fails empties the
//!   record. A life that ended with the machine before it was final counts as unknown. A process that cannot get the
//!   record, because another of the same name runs, leaves a mark in it: lives up to now are not believed.
//! - A name is used on one machine, with one folder: of a life elsewhere the record knows nothing.
//! - An epoch is larger than all recorded before it, also when the clock was set back.
//! - Nothing here fails a producer: it runs without a record, and says so.
//!
//! # Cost
//!
//! One `pwrite` of 48 bytes each `AHEAD_COOKIES` cookies, and two for each chunk that is sealed by age, under the log's
//! lock.

mod file;
mod record;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cookiesync::process::metrics::Registry;
use cookiesync::v1::{Cursor, Tail};
use prometheus::IntGauge;

use crate::log::{Progress, Sequence};

use self::{
    file::{RecordFile, Unusable},
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
    file: Option<Arc<RecordFile>>,
    recorded: IntGauge,
}

/// The life that runs: keeps its entry in the record true. Does nothing when there is no record.
#[derive(Debug, Default)]
pub struct Life {
    record: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    file: Arc<RecordFile>,
    index: usize,
    entry: Entry,
    recorded: IntGauge,
}

/// Begins a life of the producer `id` at `now`, in microseconds since the Unix epoch.
///
/// Touches a small file once, and never waits for another process.
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
        forget(&Path::new(DEFAULT_FOLDER).join(file_name(id)));
        tracing::info!("no record of this producer's lives is kept");
        return Ok((Lives::new(now, Vec::new(), None, recorded), Life::default()));
    };
    let path = folder.join(file_name(id));
    Ok(match open(&path, now) {
        Ok((file, entries)) => {
            recorded.set(1);
            recorded_life(file, entries, now, recorded)
        }
        Err(why) => {
            // One that is locked was marked.
            if !matches!(why, Unusable::Locked) {
                forget(&path);
            }
            tracing::warn!(
                path = %path.display(),
                %why,
                "no record of this producer's lives is kept: after a crash nobody can say how much was lost"
            );
            (Lives::new(now, Vec::new(), None, recorded), Life::default())
        }
    })
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

/// Takes the record and adds the life that begins, the last of the entries.
fn open(path: &Path, now: u64) -> Result<(RecordFile, Vec<Entry>), Unusable> {
    let file = RecordFile::open(path)?;
    if let Err(error) = file.lock() {
        let newest = file
            .read()?
            .ok()
            .and_then(|entries| entries.last().copied());
        let disowned = newest.map_or(now, |entry| entry.epoch.max(now));
        file.set_mark(disowned.max(file.mark()?))?;
        return Err(error);
    }
    let mut entries = match file.read()? {
        Ok(entries) => entries,
        Err(damaged) => {
            tracing::warn!(path = %path.display(), %damaged, "nothing is known of this producer's former lives");
            file.clear()?;
            Vec::new()
        }
    };
    let boot = boot_id();
    for entry in &mut entries {
        let is_of_this_boot = boot == Some(entry.boot);
        if matches!(entry.end, End::AtMost(_)) && !is_of_this_boot {
            entry.end = End::Unknown;
        }
    }
    let mark = file.mark().unwrap_or(0);
    let newest = entries.last().map_or(mark, |entry| entry.epoch.max(mark));
    entries.push(Entry {
        epoch: now.max(newest.saturating_add(1)),
        end: End::AtMost(0),
        boot: boot.unwrap_or_default(),
    });
    entries.drain(..entries.len().saturating_sub(LIVES_MAX));
    if let Err(error) = file.write(&entries) {
        disown(&file);
        return Err(error.into());
    }
    Ok((file, entries))
}

fn recorded_life(
    file: RecordFile,
    mut entries: Vec<Entry>,
    now: u64,
    recorded: IntGauge,
) -> (Lives, Life) {
    let file = Arc::new(file);
    let Some(entry) = entries.pop() else {
        return (Lives::new(now, entries, None, recorded), Life::default());
    };
    let life = Life {
        record: Some(Kept {
            file: Arc::clone(&file),
            index: entries.len(),
            entry,
            recorded: recorded.clone(),
        }),
    };
    (Lives::new(entry.epoch, entries, Some(file), recorded), life)
}

impl Lives {
    fn new(
        epoch: u64,
        entries: Vec<Entry>,
        file: Option<Arc<RecordFile>>,
        recorded: IntGauge,
    ) -> Self {
        let former = Former {
            epoch,
            entries,
            file,
            recorded,
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
        let file = former.file.as_ref()?;
        if former.recorded.get() == 0 || file.mark().ok()? >= cursor.epoch {
            return None;
        }
        tail_of(&former.entries, cursor)
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
        if let Some(kept) = self.record
            && let Err(error) = kept.file.sync()
        {
            tracing::warn!(path = %kept.file.path().display(), %error, "the record of this producer's lives is not safe");
        }
    }
}

impl Life {
    /// Without a record there is nothing to be told any more.
    fn unless_unrecorded(&self, end: Sequence) -> Sequence {
        if self.record.is_some() {
            end
        } else {
            Sequence::MAX
        }
    }

    fn note(&mut self, end: End) {
        let Some(kept) = &mut self.record else {
            return;
        };
        kept.entry.end = end;
        if let Err(error) = kept.file.write_one(kept.index, &kept.entry) {
            kept.recorded.set(0);
            tracing::warn!(
                path = %kept.file.path().display(),
                %error,
                "the record of this producer's lives cannot be written: after a crash nobody can say how much was lost"
            );
            disown(&kept.file);
            self.record = None;
        }
    }
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

/// Names the file of a producer: readable, and another one for each name.
fn file_name(id: &str) -> String {
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
    format!(
        "cookiesync-producer-{shown}-{:016x}",
        record::fnv(id.as_bytes())
    )
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
