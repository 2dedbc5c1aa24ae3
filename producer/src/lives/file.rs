//! The file that holds a record: opened with care, locked, written in place.
//!
//! It usually lies in a folder that everybody may write to (`/dev/shm`), so nothing that is found there is trusted: no link
//! is followed, and the file must be a plain one of this user's own that nobody else can read or write. Its content is the
//! record's affair.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FsWord, OFlags, statfs},
    process::geteuid,
};

use super::record::{self, Damaged, Entry, MAGIC, MARK_AT, RECORD_BYTES, SLOTS_AT};

/// What Linux calls the file system that is in memory, `/dev/shm` and `/run` usually.
const TMPFS: FsWord = 0x0102_1994;

/// Whether writing to a file in `folder` waits for no disk.
pub(super) fn is_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == TMPFS)
}

/// A file that may hold a record.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
}

/// Why there is no record to be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no plain file of this user's own that nobody else can read or write")]
    Foreign,
    #[error("another process of this name keeps it")]
    Locked,
    #[error("it is on a disk, and there is no /dev/shm in memory for what changes all the time")]
    NoMemory,
}

impl RecordFile {
    /// Opens the file, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, Unusable> {
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(no_follow)
            .open(path)?;
        let found = file.metadata()?;
        let is_own = found.is_file()
            && found.uid() == geteuid().as_raw()
            && found.mode() & 0o077 == 0
            && found.nlink() == 1;
        if !is_own {
            return Err(Unusable::Foreign);
        }
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Takes the right to write the record until the process ends, however it ends.
    pub(super) fn lock(&self) -> Result<(), Unusable> {
        self.file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Unusable::Locked,
            TryLockError::Error(error) => error.into(),
        })
    }

    /// The lives that the record tells of.
    pub(super) fn read(&self) -> io::Result<Result<Vec<Entry>, Damaged>> {
        let mut bytes = Vec::new();
        // One more than there should be, to see that it is too long.
        (&self.file)
            .take(RECORD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(record::decode(&bytes))
    }

    /// Writes a whole record, but for the mark, to the disk if there is one.
    pub(super) fn write(&self, entries: &[Entry]) -> io::Result<()> {
        self.file
            .write_all_at(&record::encode_slots(entries), SLOTS_AT)?;
        self.file.write_all_at(MAGIC, 0)?;
        self.file.sync_all()
    }

    /// Writes one life.
    pub(super) fn write_one(&self, index: usize, entry: &Entry) -> io::Result<()> {
        let slot = record::encode_slot(index, entry);
        self.file.write_all_at(&slot, record::slot_at(index))
    }

    /// Brings what was written to the disk, if there is one.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The epoch up to which lives are not to be believed.
    pub(super) fn mark(&self) -> io::Result<u64> {
        let mut mark = [0; 8];
        self.file.read_exact_at(&mut mark, MARK_AT)?;
        Ok(u64::from_le_bytes(mark))
    }

    /// Says that lives up to `epoch` are not to be believed. Needs no lock.
    pub(super) fn set_mark(&self, epoch: u64) -> io::Result<()> {
        self.file.write_all_at(&epoch.to_le_bytes(), MARK_AT)?;
        self.file.sync_data()
    }

    /// Throws away what the file holds, however long it is.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.set_mark(0)
    }

    /// Removes it; what is open stays so.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// Sees to it that nobody believes what the file says.
    pub(super) fn disown(&self) -> io::Result<()> {
        let emptied = self.file.set_len(0);
        let removed = self.remove();
        emptied.or(removed)
    }

    /// A file whose writes fail.
    #[cfg(test)]
    pub(super) fn read_only(path: &Path) -> io::Result<Self> {
        let (file, path) = (File::open(path)?, path.to_owned());
        Ok(Self { file, path })
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
