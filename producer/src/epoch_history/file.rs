//! The file of a record: opened safely, locked, written in place.
//!
//! Every user can write to its usual directory, `/dev/shm`. Links are therefore not followed, and the file must be a regular
//! file of this user that other users can neither read nor write. `record.rs` defines its content.

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

use super::record::{
    self, CorruptRecord, OWNED_OFFSET, RECORD_BYTES, RecordEntry, UNTRUSTED_OFFSET,
};

/// Magic number of tmpfs, the in-memory file system of Linux.
const TMPFS: FsWord = 0x0102_1994;

/// Whether writes never wait for a disk.
fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| found.f_type == TMPFS)
}

/// An open file that may contain a record.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
}

impl Drop for RecordFile {
    /// Unlocks explicitly: closing the file would leave it locked by a child that was just forked.
    fn drop(&mut self) {
        drop(self.file.unlock());
    }
}

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a regular file that only this user can read and write")]
    Foreign,
    #[error("another process with the same --id uses it")]
    Locked,
    #[error("--state is on a disk; it must be in memory (tmpfs)")]
    OnDisk,
}

impl RecordFile {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path) -> Result<Self, RecordError> {
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
            return Err(RecordError::Foreign);
        }
        if !is_in_memory(&file) {
            return Err(RecordError::OnDisk);
        }
        let path = path.to_owned();
        Ok(Self { file, path })
    }

    /// Locks the record until this value is dropped or the process ends.
    pub(super) fn lock(&self) -> Result<(), RecordError> {
        self.file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecordError::Locked,
            TryLockError::Error(error) => error.into(),
        })
    }

    /// Reads the entries of the record.
    pub(super) fn read(&self) -> io::Result<Result<Vec<RecordEntry>, CorruptRecord>> {
        let mut bytes = Vec::new();
        // One byte more than expected, to detect a file that is too long.
        (&self.file)
            .take(RECORD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)?;
        Ok(record::decode(&bytes))
    }

    /// Writes the entries, leaving the untrusted epoch unchanged.
    pub(super) fn write(&self, entries: &[RecordEntry]) -> io::Result<()> {
        self.file
            .write_all_at(&record::encode(entries), OWNED_OFFSET)
    }

    /// The epoch up to which the record is untrusted, inclusive.
    pub(super) fn untrusted_until(&self) -> io::Result<u64> {
        let mut epoch = [0; 8];
        self.file.read_exact_at(&mut epoch, UNTRUSTED_OFFSET)?;
        Ok(u64::from_le_bytes(epoch))
    }

    /// Marks the record as untrusted up to `epoch`. Needs no lock.
    pub(super) fn set_untrusted_until(&self, epoch: u64) -> io::Result<()> {
        self.file
            .write_all_at(&epoch.to_le_bytes(), UNTRUSTED_OFFSET)
    }

    /// A second descriptor of the same open file, as in a forked child.
    #[cfg(test)]
    pub(super) fn duplicate(&self) -> File {
        self.file.try_clone().unwrap()
    }

    /// Empties the file.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.set_untrusted_until(0)
    }

    /// Empties and removes the file, so that no later process uses it.
    pub(super) fn invalidate(&self) -> io::Result<()> {
        let emptied = self.file.set_len(0);
        let removed = std::fs::remove_file(&self.path);
        emptied.or(removed)
    }

    /// A read-only file, whose writes fail.
    #[cfg(test)]
    pub(super) fn read_only(path: &Path) -> io::Result<Self> {
        let (file, path) = (File::open(path)?, path.to_owned());
        Ok(Self { file, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
