//! How many cookies are accepted and not in the log: what a kill costs at most. Kept where the record of epochs is kept in memory, so that the next run
//! can tell.
//!
//! As with the sequences of an epoch, a number is reserved ahead: it is never too low. After the machine was started anew nothing is known.

use std::{path::Path, sync::Arc};

use super::{
    DEFAULT_FOLDER, State,
    current::Slot,
    file::{RecordFile, Unusable, is_in_memory},
    folder,
    record::{End, Entry},
};

/// How many are reserved at once.
const AHEAD_COOKIES: u64 = 1024;

/// The number, and the file that it is in.
#[derive(Debug)]
pub(crate) struct HeldRecord {
    slot: Slot,
    entry: Entry,
}

/// What the run before left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftBehind {
    /// Not more than so many were held when it ended.
    AtMost(u64),
    /// Nothing is known of it.
    Unknown,
}

impl HeldRecord {
    /// Opens the record of the producer `id`, and says what the run before left in it. `None` when none can be kept.
    pub(crate) fn open(state: &State, id: &str) -> (Option<Self>, LeftBehind) {
        let Some(folder) = folder(state) else {
            return (None, LeftBehind::Unknown);
        };
        match Self::open_in(&folder, id) {
            Ok((record, left)) => (Some(record), left),
            Err(why) => {
                tracing::warn!(
                    %why,
                    "how many cookies wait is not recorded: after a crash nobody can say how many were lost"
                );
                (None, LeftBehind::Unknown)
            }
        }
    }

    fn open_in(folder: &Path, id: &str) -> Result<(Self, LeftBehind), Unusable> {
        let memory = Path::new(DEFAULT_FOLDER);
        let absolute = folder.canonicalize();
        let folder = absolute.as_deref().unwrap_or(folder);
        let name = super::held_name(folder, id);
        let path = match (is_in_memory(folder), is_in_memory(memory)) {
            (true, _) => folder.join(name),
            (false, true) => memory.join(name),
            (false, false) => return Err(Unusable::NoMemory),
        };
        let file = RecordFile::open(&path)?;
        file.lock()?;
        let left = match file.read()?.as_deref() {
            Ok(
                [
                    Entry {
                        end: End::AtMost(count) | End::Exact(count),
                        ..
                    },
                ],
            ) => LeftBehind::AtMost(*count),
            Ok(_) | Err(_) => LeftBehind::Unknown,
        };
        let entry = Entry {
            epoch: 1,
            end: End::AtMost(0),
            boot: super::boot_id().unwrap_or_default(),
        };
        file.write(&[entry])?;
        let slot = Slot {
            file: Arc::new(file),
            index: 0,
        };
        Ok((Self { slot, entry }, left))
    }

    /// Notes that so many are held.
    ///
    /// # Errors
    /// When it cannot be written: it says nothing any more then, and must be dropped.
    pub(crate) fn note(&mut self, held: u64) -> std::io::Result<()> {
        let (End::AtMost(reserved) | End::Exact(reserved)) = self.entry.end else {
            return Ok(());
        };
        let is_far_below = held.saturating_mul(2).saturating_add(2 * AHEAD_COOKIES) < reserved;
        if held <= reserved && !is_far_below && (held > 0 || reserved == 0) {
            return Ok(());
        }
        self.entry.end = End::AtMost(match held {
            0 => 0,
            held => held.saturating_add(held / 8).saturating_add(AHEAD_COOKIES),
        });
        let Slot { file, index } = &self.slot;
        file.write_one(*index, &self.entry)
            .inspect_err(|_| super::invalidate(file))
    }
}
