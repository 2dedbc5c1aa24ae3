//! The assets file of an application of kind `list`: one JSON object per line, with the metadata of the stored object.
//!
//! A [maker](crate::maker) can resume reading at a stored position. At the end of a job, a copy with the results replaces the
//! file. Fields of other programs are kept. Assets that a client sends with a new job are stored in a file whose first line
//! describes the job.

mod result_file;

pub mod cookies;

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use runtime::reload::BYTE_ORDER_MARK;
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_64;

pub use self::result_file::ResultFile;
use crate::{
    client::http_url,
    jobs::removals_max,
    messages::{ASSET_BYTES_MAX, Asset, AssetResult, Filter, Outcome, URL_BYTES_MAX},
};

/// Maximum number of lines of a file, and of assets of a job.
pub const ASSETS_MAX: u64 = 10_000_000;

/// Maximum bytes of a file, so that the results of the largest job fit into their stream.
pub const SOURCE_BYTES_MAX: u64 = 1 << 30;

/// A file, or one of its lines, is longer than permitted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TooLarge(String);

/// Assets of one batch, and the position after them if another maker can continue there.
pub type Page = (Vec<Asset>, Option<String>);

/// A line of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// The asset.
    #[serde(flatten)]
    pub asset: Asset,
    /// Unix seconds of the last check.
    checked_at: Option<u64>,
    /// Unix seconds of the last request for the object.
    requested_at: Option<u64>,
}

/// Selects the assets of a job. Its times are relative to the creation of the job, so that each reader selects the same ones.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The filter of the job.
    pub filter: Filter,
    /// Creation of the job in Unix seconds.
    pub created_at: u64,
    /// Seconds without a request after which an object is removed.
    pub prune_after: Option<u64>,
}

impl Selection {
    /// The asset, if it is part of the job.
    pub fn select(&self, line: Line) -> Option<Asset> {
        let (mut asset, filter) = (line.asset, &self.filter);
        let age = |time: u64| self.created_at.saturating_sub(time);
        let prefix = filter.prefix.as_deref().unwrap_or_default();
        let sample = filter.sample;
        let is_selected = asset.name().starts_with(prefix)
            && sample.is_none_or(|share| position(asset.name()) < share);
        let checked = line.checked_at.map_or(u64::MAX, age);
        let is_old = checked >= filter.older_than.unwrap_or(0);
        let unused = self.prune_after.zip(line.requested_at);
        asset.unused = unused.is_some_and(|(max, at)| age(at) > max);
        (is_selected && (is_old || asset.unused)).then_some(asset)
    }
}

/// Position of a key in a sample, from 0 to 1.
fn position(key: &str) -> f64 {
    let parts = u32::try_from(xxh3_64(key.as_bytes()) >> 32).unwrap_or(u32::MAX);
    f64::from(parts) / (f64::from(u32::MAX) + 1.0)
}

/// Parses the asset of a line.
///
/// # Errors
/// When the line is too long, not JSON, or has no URL.
pub fn parse(line: &[u8]) -> Result<Line> {
    ensure!(line.len() <= ASSET_BYTES_MAX, "longer than 4096 bytes");
    // The text of the error could contain a key.
    let invalid = |it: serde_json::Error| anyhow!("invalid JSON at column {}", it.column());
    let mut line: Line = serde_json::from_slice(line).map_err(invalid)?;
    line.asset.unused = false;
    let url = &line.asset.url;
    let is_valid = url.len() <= URL_BYTES_MAX && http_url(url).is_some();
    ensure!(is_valid, "missing or invalid `url`");
    Ok(line)
}

/// Checks the size of a file. A missing file is not an error.
///
/// # Errors
/// When it exceeds [`SOURCE_BYTES_MAX`].
pub fn check_size(path: &Path) -> Result<()> {
    let size = fs::metadata(path).map_or(0, |found| found.len());
    ensure!(size <= SOURCE_BYTES_MAX, "the file exceeds 1 GiB");
    Ok(())
}

/// Checks the assets of a request. Returns the first line, which describes the job, the position after it, and whether an asset has
/// a key other than its URL.
///
/// # Errors
/// When the file cannot be read or has an invalid line; the error names the line.
pub fn check(path: &Path) -> Result<(Vec<u8>, u64, bool)> {
    let mut lines = Lines::open(path, 0)?;
    let description = lines.next()?.unwrap_or_default().to_vec();
    let (start, mut has_keys) = (lines.position, false);
    while let Some(line) = lines.asset()? {
        has_keys |= line.asset.has_key();
    }
    Ok((description, start, has_keys))
}

/// Lines that are not empty, without their ends.
pub struct Lines {
    reader: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    /// Position after the last line.
    pub position: u64,
}

impl Lines {
    /// Opens a file at a position.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, position: u64) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::Start(position))?;
        Ok(Self {
            reader: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            position,
        })
    }

    fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            self.line.clear();
            let max = ASSET_BYTES_MAX;
            // Includes a line end of two bytes.
            let mut rest = (&mut self.reader).take(max as u64 + 2);
            let count = rest.read_until(b'\n', &mut self.line)?;
            if self.position == 0 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            self.number += 1;
            self.position += count as u64;
            let length = self.line.trim_ascii().len();
            let error = |what: &str| TooLarge(format!("line {}: {what}", self.number));
            ensure!(length <= max, error("longer than 4096 bytes"));
            ensure!(self.number <= ASSETS_MAX, error("over 10 million lines"));
            if count == 0 || length > 0 {
                return Ok((count > 0).then(|| self.line.trim_ascii()));
            }
        }
    }

    /// The asset of the next line.
    ///
    /// # Errors
    /// When the file cannot be read or the line is invalid; the error names the line.
    pub fn asset(&mut self) -> Result<Option<Line>> {
        let line = self.next()?.map(parse).transpose();
        line.with_context(|| format!("line {}", self.number))
    }
}

/// Writes the results of a job into a copy of the file, which then replaces the file. At most a fraction `max_removals` of the selected
/// lines is removed, because results may come from any client of the broker.
///
/// # Errors
/// When a file cannot be read or written, or another maker has taken over the job; the old file is then unchanged.
pub fn write_back(
    path: &Path,
    selection: &Selection,
    max_removals: f64,
    mut results: ResultFile,
    is_maker: impl FnOnce() -> bool,
) -> Result<()> {
    let mut lines = Lines::open(path, 0)?;
    let mut selected = results.failed.len();
    while let Some(line) = lines.next()? {
        selected += usize::from(parse(line).is_ok_and(|it| selection.select(it).is_some()));
    }
    let mut removals = removals_max(selected, max_removals);
    lines = Lines::open(path, 0)?;
    let permissions = lines.reader.get_ref().metadata()?.permissions();
    let copy = NamedTempFile::new_in(directory(path))?;
    let mut writer = BufWriter::new(copy);
    while let Some(line) = lines.next()? {
        let result = match parse(line) {
            Err(_) => None,
            Ok(parsed) => {
                let mut result = results.find(parsed.asset.name())?;
                if let Some(removed) = result.as_mut().filter(|it| it.is_deleted) {
                    if removals > 0 {
                        removals -= 1;
                        continue;
                    }
                    // Its object may be missing, so the next job must not request it conditionally.
                    removed.asset = Asset::default();
                }
                let is_kept = |it: &AssetResult| it.server_error || it.outcome == Outcome::Removed;
                result.filter(|it| it.is_deleted || !is_kept(it))
            }
        };
        if let Some(AssetResult { asset, .. }) = result {
            let mut object: Map<String, Value> = serde_json::from_slice(line)?;
            let mut set = |field: &str, value: Value| drop(object.insert(field.to_owned(), value));
            set("eTag", asset.e_tag.as_str().into());
            set("hash", asset.hash.as_str().into());
            set("lastModified", asset.last_modified.as_str().into());
            set("checkedAt", selection.created_at.into());
            let updated = serde_json::to_vec(&object)?;
            // The next job must be able to read it.
            let is_short = updated.len() <= ASSET_BYTES_MAX;
            writer.write_all(if is_short { &updated } else { line })?;
        } else {
            writer.write_all(line)?;
        }
        writer.write_all(b"\n")?;
    }
    let copy = writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    copy.as_file().set_permissions(permissions)?;
    copy.as_file().sync_all()?;
    ensure!(is_maker(), "another process has taken over the job");
    copy.persist(path)
        .with_context(|| path.display().to_string())?;
    Ok(())
}

/// Directory of a file, for temporary files.
pub fn directory(path: &Path) -> &Path {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
