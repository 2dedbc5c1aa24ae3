//! The file of the epoch history: opened safely, locked, written in place.
//!
//! Every user of the machine can write to the usual directory of this file, `/dev/shm`. Links are therefore not followed, and the
//! file must be a regular file of this user that other users can neither read nor write. `record.rs` defines its content.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use runtime::file_lock::FileLock;
use rustix::{
    fs::{FsWord, OFlags, fstatfs},
    process::geteuid,
};

use super::record::{self, RECORD_BYTES, RecordEntry};

/// Magic number of tmpfs, the in-memory file system of Linux.
const TMPFS: FsWord = 0x0102_1994;

/// Opens or creates a file that only this user can read and write; does not follow symbolic links.
pub(crate) fn open_private(path: &Path, truncate: bool) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(truncate)
        .mode(0o600)
        .custom_flags(no_follow)
        .open(path)
}

/// An open file that may contain a record, locked until this value is dropped or the process ends.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) _lock: FileLock,
}

impl RecordFile {
    /// Opens or creates the file.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = open_private(path, false)?;
        let found = file.metadata()?;
        let is_own = found.is_file()
            && found.uid() == geteuid().as_raw()
            && found.mode() & 0o077 == 0
            && found.nlink() == 1;
        ensure!(
            is_own,
            "the file must be a regular file that only this user can read and write"
        );
        // On a disk, a write could wait.
        let is_in_memory = fstatfs(&file).is_ok_and(|found| found.f_type == TMPFS);
        ensure!(
            is_in_memory,
            "--state is on a disk; it must be in memory (tmpfs)"
        );
        let lock = FileLock::acquire(file.try_clone()?);
        Ok(Self {
            file,
            path: path.to_owned(),
            _lock: lock.context("another process with the same --id is using this file")?,
        })
    }

    /// Reads the entries of the record; empties a corrupt record.
    pub(super) fn read(&self) -> io::Result<Vec<RecordEntry>> {
        let mut bytes = Vec::new();
        // One byte more than expected, to detect a file that is too long.
        (&self.file)
            .take(RECORD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)?;
        if let Some(entries) = record::decode(&bytes) {
            return Ok(entries);
        }
        tracing::warn!(path = %self.path.display(), "corrupt epoch history discarded; earlier epochs are unknown");
        self.file.set_len(0)?;
        Ok(Vec::new())
    }

    pub(super) fn write(&self, entries: &[RecordEntry]) -> io::Result<()> {
        self.file.write_all_at(&record::encode(entries), 0)
    }

    /// Whether another process removed the file.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() == 0)
    }
}
