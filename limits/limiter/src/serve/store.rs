//! The directory in which a limiter keeps its records: an embedded store, of one process at a time.
//!
//! What was written outlives the process, however it ends; where the machine fails, what was not synced is lost. A write that fails stops the store for good:
//! what the disk then holds is known only after opening it again.

use std::{
    io::{Error, ErrorKind},
    path::{Path, PathBuf},
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Slice};
use runtime::unfinished_store;

use super::engine::Changes;

/// Bytes of blocks kept in memory for reading, which only compactions and the start do.
const CACHE_BYTES: u64 = 4 << 20;

/// Bytes of records in memory before they become a file: most are written again soon.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// The directory, for as long as this is there.
pub struct Store {
    database: Database,
    records: Keyspace,
    path: PathBuf,
    /// Whether this process created it.
    pub is_new: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the directory, or makes it, and takes it for this process until its end, however it ends.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let is_new = !unfinished_store::remove(dir)?;
        let database = Database::builder(dir).cache_size(CACHE_BYTES).open();
        let database = database.map_err(unusable)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let records = database.keyspace("records", options).map_err(unusable)?;
        let path = dir.to_owned();
        Ok(Self {
            database,
            records,
            path,
            is_new,
        })
    }

    /// All records, in the order of their keys.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn read(&self) -> anyhow::Result<Vec<(Slice, Slice)>> {
        let records = self.records.iter().map(|record| record.into_inner());
        records.collect::<Result<_, _>>().map_err(unusable)
    }

    /// Writes all of these or none; they are with the system when this returns.
    ///
    /// # Errors
    /// When they are not, and no more can be written.
    pub fn write(&self, changes: Changes) -> fjall::Result<()> {
        let mut batch = self.database.batch();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.records, key, value),
                None => batch.remove(&self.records, key),
            }
        }
        batch.commit()
    }

    /// Returns when all that was written is on the disk.
    ///
    /// # Errors
    /// When it is not known to be, and no more can be written.
    pub fn sync(&self) -> fjall::Result<()> {
        if !self.path.try_exists()? {
            // The system takes what is written to removed files, and loses it.
            let error = Error::new(ErrorKind::NotFound, "its directory was removed");
            return Err(error.into());
        }
        self.database.persist(PersistMode::SyncData)
    }
}

/// Why a store cannot be used, and what to do.
fn unusable(error: fjall::Error) -> anyhow::Error {
    match error {
        fjall::Error::Locked => anyhow::anyhow!("another limiter uses it"),
        fjall::Error::Io(error) => error.into(),
        error => anyhow::anyhow!(
            "the store is damaged ({error}): restore it from a backup, or move it away, and every quota starts unused"
        ),
    }
}
