//! The file that holds a record: opened with care, locked, written in place.
//!
//! It usually lies in a directory to which every user may write (`/dev/shm`), so nothing found there is trusted: no link
//! is followed, and the file must be a regular file owned by this user that no other user can read or write.
//! `record.rs` knows its content.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FsWord, OFlags, fstatfs},
    process::geteuid,
};

use super::record::{self, DISTRUSTED_AT, Damaged, Entry, OWNED_AT, RECORD_BYTES};

/// Linux's magic number of the in-memory file system, usually found at `/dev/shm` and `/run`.
const TMPFS: FsWord = 0x0102_1994;

/// Whether writing to a file never waits for a disk.
fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| found.f_type == TMPFS)
}

/// A file that may hold a record.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
}

impl Drop for RecordFile {
    /// As with [`runtime::file_lock::FileLock`], closing alone would leave the lock with a child that was just forked.
    fn drop(&mut self) {
        drop(self.file.unlock());
    }
}

/// Why no record can be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a plain file of this user's own that nobody else can read or write")]
    Foreign,
    #[error("another process of this name keeps it")]
    Locked,
    #[error("its directory is on a disk: --state must be in memory (tmpfs)")]
    OnDisk,
}

impl RecordFile {
    /// Opens the file, or creates it.
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
        if !is_in_memory(&file) {
            return Err(Unusable::OnDisk);
        }
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Locks the record for writing until this is dropped or the process ends, however it ends.
    pub(super) fn lock(&self) -> Result<(), Unusable> {
        self.file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Unusable::Locked,
            TryLockError::Error(error) => error.into(),
        })
    }

    /// The epochs in the record.
    pub(super) fn read(&self) -> io::Result<Result<Vec<Entry>, Damaged>> {
        let mut bytes = Vec::new();
        // One byte more than expected, to notice a file that is too long.
        (&self.file)
            .take(RECORD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(record::decode(&bytes))
    }

    /// Writes the record, except for the distrusted epoch.
    pub(super) fn write(&self, entries: &[Entry]) -> io::Result<()> {
        self.file.write_all_at(&record::encode(entries), OWNED_AT)
    }

    /// The epoch up to which the record is not to be trusted.
    pub(super) fn distrusted(&self) -> io::Result<u64> {
        let mut epoch = [0; 8];
        self.file.read_exact_at(&mut epoch, DISTRUSTED_AT)?;
        Ok(u64::from_le_bytes(epoch))
    }

    /// Marks the record as not to be trusted up to `epoch`. Needs no lock.
    pub(super) fn set_distrusted(&self, epoch: u64) -> io::Result<()> {
        self.file.write_all_at(&epoch.to_le_bytes(), DISTRUSTED_AT)
    }

    /// A second descriptor of the same open file, as a child has after a fork.
    #[cfg(test)]
    pub(super) fn duplicate(&self) -> File {
        self.file.try_clone().unwrap()
    }

    /// Empties the file.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.set_distrusted(0)
    }

    /// Makes sure that nobody trusts the file any more.
    pub(super) fn invalidate(&self) -> io::Result<()> {
        let emptied = self.file.set_len(0);
        let removed = std::fs::remove_file(&self.path);
        emptied.or(removed)
    }

    /// A file whose writes fail.
    #[cfg(test)]
    pub(super) fn read_only(path: &Path) -> io::Result<Self> {
        let (file, path) = (File::open(path)?, path.to_owned());
        Ok(Self { file, path })
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
