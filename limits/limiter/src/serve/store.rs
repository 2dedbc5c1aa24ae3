//! The embedded store of records in the `--state` directory.
//!
//! Written records survive the end of the process; synced records also survive a failure of the machine. After a failed
//! write the content of the disk is unknown, so the store must be opened again.

use std::{
    fs::{self, File},
    io::{Error, ErrorKind},
    path::{Path, PathBuf},
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, Slice};
use runtime::{open_files, unfinished_store};

use super::engine::Changes;

/// Size of the block cache. Only compactions and the start read.
const CACHE_BYTES: u64 = 4 << 20;

/// Bytes of records in memory before they are written to a file: most are replaced before that. Each such write delays calls
/// by about 3 ms per MiB.
const MEMTABLE_BYTES: u64 = 4 << 20;

/// An open store; it locks its directory.
pub struct Store {
    database: Database,
    records: Keyspace,
    path: PathBuf,
    /// Whether this process created the store.
    pub is_new: bool,
}

impl Store {
    /// Opens a directory, created if missing, and locks it until the process ends.
    ///
    /// # Errors
    /// When the directory is in use or damaged, or an operation fails.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        let is_new = !unfinished_store::remove(dir)?;
        let database = Database::builder(dir)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(open_files::of_store()))
            .open()
            .map_err(unusable)?;
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

    /// Reads all records, sorted by key.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn read(&self) -> anyhow::Result<Vec<(Slice, Slice)>> {
        let records = self.records.iter().map(|record| record.into_inner());
        records.collect::<Result<_, _>>().map_err(unusable)
    }

    /// Writes all changes or none. They are not synced.
    ///
    /// # Errors
    /// When the write fails; the store is unusable then.
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

    /// Syncs all written changes to disk without blocking writes. A sync by the database would lock its journal.
    ///
    /// # Errors
    /// When the sync fails; the store is unusable then.
    pub fn sync(&self) -> fjall::Result<()> {
        let mut synced = false;
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jnl") {
                match File::open(path).and_then(|journal| journal.sync_data()) {
                    Ok(()) => synced = true,
                    // The database removed a journal, because its records are in synced tables.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if synced {
            return Ok(());
        }
        // Writes to removed files succeed but are lost.
        Err(Error::new(ErrorKind::NotFound, "the journal was removed").into())
    }
}

fn unusable(error: fjall::Error) -> anyhow::Error {
    match error {
        fjall::Error::Locked => anyhow::anyhow!("in use by another limiter"),
        fjall::Error::Io(error) => error.into(),
        error => anyhow::anyhow!(
            "the store is damaged ({error}): restore the directory from a backup, or remove it to start with unused quotas"
        ),
    }
}
