//! Keeps the results of a job until it ends, one JSON object per line: in memory while they are few, otherwise in a temporary file. An
//! index takes about 40 bytes of memory per asset.
//!
//! Calls block for a short time.

use std::{
    collections::HashMap,
    env,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use anyhow::Result;
use tempfile::SpooledTempFile;
use xxhash_rust::xxh3::xxh3_64;

use super::directory;
use crate::{
    jobs::{Tally, is_retried},
    messages::{AssetResult, JobResult},
};

/// Maximum bytes of results in memory; more than those of a usual single check.
const MEMORY_BYTES_MAX: usize = 128 << 10;

/// The results of a job.
#[derive(Debug)]
pub struct ResultFile {
    /// Number and outcomes of the results.
    pub tally: Tally,
    file: SpooledTempFile,
    end: u64,
    /// Position of the last result of each asset, by the hash of its name.
    positions: HashMap<u64, u64>,
    /// Positions of the assets whose first attempt failed.
    pub failed: Vec<u64>,
    /// Whether all results are kept, to update the assets file.
    has_list: bool,
}

impl ResultFile {
    /// A file without results. `list` is the assets file, whose directory is used for a temporary file. Without it, only failed assets
    /// are kept.
    pub fn new(list: Option<&Path>) -> Self {
        let dir = list.map_or_else(env::temp_dir, |it| directory(it).to_owned());
        Self {
            tally: Tally::default(),
            file: tempfile::spooled_tempfile_in(MEMORY_BYTES_MAX, dir),
            end: 0,
            positions: HashMap::new(),
            failed: Vec::new(),
            has_list: list.is_some(),
        }
    }

    /// Counts an expected result and appends it; false if its batch was counted before.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, result: &JobResult) -> Result<bool> {
        if !self.tally.count(result) {
            return Ok(false);
        }
        self.file.seek(SeekFrom::Start(self.end))?;
        let is_failed = |one: &AssetResult| is_retried(one, result.attempt);
        let is_needed = |one: &&AssetResult| self.has_list || is_failed(one);
        for one in result.results.iter().filter(is_needed) {
            let mut line = serde_json::to_vec(one)?;
            line.push(b'\n');
            self.file.write_all(&line)?;
            let name = xxh3_64(one.asset.name().as_bytes());
            self.positions.insert(name, self.end);
            if is_failed(one) {
                self.failed.push(self.end);
            }
            self.end += line.len() as u64;
        }
        Ok(true)
    }

    /// The result at a position.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&mut self, position: u64) -> Result<AssetResult> {
        self.file.seek(SeekFrom::Start(position))?;
        let mut line = Vec::new();
        BufReader::new(&mut self.file).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// The last result of an asset.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn find(&mut self, name: &str) -> Result<Option<AssetResult>> {
        let Some(position) = self.positions.get(&xxh3_64(name.as_bytes())) else {
            return Ok(None);
        };
        let found = self.read(*position)?;
        Ok(Some(found).filter(|it| it.asset.name() == name))
    }
}
