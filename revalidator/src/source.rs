//! The assets file of an application of kind `list`: one JSON object per line, with the metadata of the stored object.
//!
//! A maker reads it from a position on. At the end of a job, a copy with the results replaces it. Fields of other programs are kept.
//! The assets of a request are in a file whose first line describes the job.

mod result_file;

pub mod cookies;

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_64;

pub use self::result_file::ResultFile;
use crate::{
    apps::is_asset_url,
    jobs::removals_max,
    messages::{ASSET_BYTES_MAX, Asset, AssetResult, Filter, Outcome},
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
    #[serde(flatten)]
    asset: Asset,
    /// Unix seconds of the last check.
    checked_at: Option<u64>,
    /// Unix seconds of the last request for the object.
    requested_at: Option<u64>,
}

impl Line {
    /// The asset, for a check without a selection.
    #[must_use]
    pub fn into_asset(self) -> Asset {
        Asset {
            unused: false,
            ..self.asset
        }
    }
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
    #[must_use]
    pub fn select(&self, line: Line) -> Option<Asset> {
        let age = |time: Option<u64>| time.map(|time| self.created_at.saturating_sub(time));
        let name = line.asset.name();
        let is_filtered = self
            .filter
            .prefix
            .as_ref()
            .is_some_and(|it| !name.starts_with(it))
            || self
                .filter
                .sample
                .is_some_and(|share| position(name) >= share);
        let mut asset = line.asset.clone();
        let unused = self.prune_after.zip(age(line.requested_at));
        asset.unused = unused.is_some_and(|(max, age)| age > max);
        let checked = age(line.checked_at).unwrap_or(u64::MAX);
        let is_new = self.filter.older_than.is_some_and(|min| checked < min);
        (!is_filtered && (asset.unused || !is_new)).then_some(asset)
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
    let line: Line = serde_json::from_slice(line).map_err(invalid)?;
    ensure!(is_asset_url(&line.asset.url), "missing or invalid url");
    Ok(line)
}

/// The bytes of a file; 0 if it does not exist.
///
/// # Errors
/// When it is too large.
pub fn size(path: &Path) -> Result<u64> {
    let size = fs::metadata(path).map_or(0, |found| found.len());
    ensure!(size <= SOURCE_BYTES_MAX, "the file exceeds 1 GiB");
    Ok(size)
}

/// Checks the assets of a request, after a line that describes their job; returns that line, the position after it, and whether an
/// asset has a key other than its URL.
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
            // One more line end, of two bytes.
            let mut rest = (&mut self.reader).take(max as u64 + 2);
            let count = rest.read_until(b'\n', &mut self.line)?;
            self.number += 1;
            self.position += count as u64;
            let length = self.line.trim_ascii().len();
            let error = |what: &str| TooLarge(format!("line {}: {what}", self.number));
            ensure!(length <= max, error("longer than 4096 bytes"));
            ensure!(self.number <= ASSETS_MAX, error("too many lines"));
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

/// Writes the results of a job into a copy of the file, which then replaces the file. At most a fraction `brake` of the selected
/// lines is removed, because results may come from any client of the broker.
///
/// # Errors
/// When a file cannot be read or written, or the job has another maker at the end; the old file is then unchanged.
pub fn write_back(
    path: &Path,
    selection: &Selection,
    brake: f64,
    mut results: ResultFile,
    is_maker: impl FnOnce() -> bool,
) -> Result<()> {
    let mut lines = Lines::open(path, 0)?;
    let mut selected = results.failed.len();
    while let Some(line) = lines.next()? {
        selected += usize::from(parse(line).is_ok_and(|it| selection.select(it).is_some()));
    }
    let mut removals = removals_max(selected, brake);
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
    ensure!(is_maker(), "the job has another maker");
    copy.persist(path)
        .with_context(|| path.display().to_string())?;
    Ok(())
}

/// Directory of a file, for temporary files.
#[must_use]
pub fn directory(path: &Path) -> &Path {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::messages::{JobResult, Outcome};

    const FILE: &str = concat!(
        "{\"url\":\"https://x.example/1\",\"hash\":\"h1\",\"requestedAt\":900,\"colour\":\"red\"}\n",
        "\n",
        "{\"key\":\"two\",\"url\":\"https://x.example/2\",\"checkedAt\":990}\n",
        "{\"key\":\"three\",\"url\":\"https://x.example/3\",\"requestedAt\":100}",
    );

    fn result(asset: Asset, outcome: Outcome, is_deleted: bool) -> AssetResult {
        AssetResult {
            asset,
            is_deleted,
            server_response: 1,
            server_error: outcome == Outcome::Failed,
            was_stale: false,
            outcome,
            held_back: false,
        }
    }

    fn batch(number: u64, attempt: u32, results: Vec<AssetResult>) -> JobResult {
        JobResult {
            average_response: 1,
            results,
            revalidator_id: "w".to_owned(),
            job_id: "a".to_owned(),
            batch: number,
            attempt,
        }
    }

    fn selection() -> Selection {
        Selection {
            filter: Filter::default(),
            created_at: 1000,
            prune_after: None,
        }
    }

    fn selected(path: &Path, cursor: u64, selection: &Selection) -> Vec<(String, u64)> {
        let mut lines = Lines::open(path, cursor).unwrap();
        let mut found = Vec::new();
        while let Some(line) = lines.asset().unwrap() {
            let name = line.asset.name().to_owned();
            if let Some(asset) = selection.select(line) {
                let mark = if asset.unused { "-" } else { "" };
                found.push((format!("{mark}{name}"), lines.position));
            }
        }
        found
    }

    fn names(path: &Path, selection: &Selection) -> Vec<String> {
        let found = selected(path, 0, selection);
        found.into_iter().map(|(name, _)| name).collect()
    }

    fn file() -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), FILE).unwrap();
        file
    }

    #[test]
    fn reading_continues_at_a_cursor() {
        let file = file();
        let all = selected(file.path(), 0, &selection());
        assert_eq!(all.len(), 3);
        assert_eq!(all[2].1, FILE.len() as u64);
        for (index, (_, position)) in all.iter().enumerate() {
            assert_eq!(
                selected(file.path(), *position, &selection()),
                all[index + 1..]
            );
        }
    }

    #[test]
    fn filters_select_by_age_prefix_sample_and_use() {
        let file = file();
        let with = |change: fn(&mut Selection)| {
            let mut it = selection();
            change(&mut it);
            names(file.path(), &it)
        };
        assert_eq!(with(|_| ()), ["https://x.example/1", "two", "three"]);
        assert_eq!(
            with(|it| it.filter.older_than = Some(11)),
            ["https://x.example/1", "three"]
        );
        assert_eq!(
            with(|it| it.filter.prefix = Some("t".to_owned())),
            ["two", "three"]
        );
        assert_eq!(
            with(|it| it.prune_after = Some(500)),
            ["https://x.example/1", "two", "-three"]
        );
        assert!(with(|it| it.filter.sample = Some(0.0)).is_empty());
        assert_eq!(with(|it| it.filter.sample = Some(1.0)).len(), 3);
    }

    #[test]
    fn sample_takes_about_its_share() {
        let count = (0..10_000)
            .filter(|it| position(&format!("key-{it}")) < 0.1)
            .count();
        assert!((900..1100).contains(&count), "{count}");
    }

    #[test]
    fn invalid_lines_are_named() {
        let file = NamedTempFile::new().unwrap();
        for (line, what) in [
            ("{", "JSON"),
            ("{\"key\":\"a\"}", "url"),
            ("{\"url\":\"ftp://x/\"}", "url"),
            (
                &format!("{{\"url\":\"https://x/{}\"}}", "a".repeat(5000)),
                "longer",
            ),
        ] {
            fs::write(file.path(), format!("{{\"url\":\"https://x/\"}}\n{line}\n")).unwrap();
            let mut lines = Lines::open(file.path(), 0).unwrap();
            assert!(lines.asset().unwrap().is_some());
            let error = format!("{:#}", lines.asset().unwrap_err());
            assert!(error.contains("line 2") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn results_are_written_back_and_other_fields_are_kept() {
        let file = file();
        let results = |found: &[(&str, &str, bool)]| {
            let one = |(key, hash, is_deleted): &(&str, &str, bool)| {
                let asset = Asset {
                    key: (*key).to_owned(),
                    hash: (*hash).to_owned(),
                    e_tag: "\"2\"".to_owned(),
                    ..Asset::default()
                };
                result(asset, Outcome::Changed, *is_deleted)
            };
            let mut file = ResultFile::new(Some(Path::new("list")));
            let results = batch(0, 1, found.iter().map(one).collect());
            assert!(file.add(&results).unwrap() && !file.add(&results).unwrap());
            file
        };
        let updates = results(&[
            ("https://x.example/1", "new", false),
            ("two", "", true),
            ("unknown", "", true),
        ]);
        write_back(file.path(), &selection(), 1.0, updates, || true).unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["colour"], "red");
        assert_eq!(
            (&lines[0]["hash"], &lines[0]["eTag"], &lines[0]["checkedAt"]),
            (&"new".into(), &"\"2\"".into(), &1000.into())
        );
        assert_eq!(lines[1]["key"], "three");
        let long = results(&[("three", &"h".repeat(4_000), false)]);
        write_back(file.path(), &selection(), 1.0, long, || true).unwrap();
        assert_eq!(names(file.path(), &selection()).len(), 2);
        let removed = || results(&[("three", "", true)]);
        write_back(file.path(), &selection(), 1.0, removed(), || false).unwrap_err();
        assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 2);
        write_back(file.path(), &selection(), 1.0, removed(), || true).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 1);
    }

    #[test]
    fn last_result_of_an_asset_is_found_and_failed_ones_are_listed() {
        let mut file = ResultFile::new(Some(Path::new("list")));
        let asset = |number: usize| Asset {
            key: format!("{number}"),
            // Enough for a file on disk.
            url: "x".repeat(1000),
            ..Asset::default()
        };
        for number in 0..1000 {
            let outcome = if number % 4 == 0 {
                Outcome::Failed
            } else {
                Outcome::Fresh
            };
            let results = vec![result(asset(number), outcome, false)];
            file.add(&batch(number as u64, 1, results)).unwrap();
        }
        assert_eq!(file.failed.len(), 250);
        for (number, position) in (0..).zip(file.failed.clone()) {
            let failed = file.read(position).unwrap();
            let results = vec![result(failed.asset, Outcome::Changed, false)];
            file.add(&batch(number, 2, results)).unwrap();
        }
        for number in [999, 0, 4, 5, 999] {
            let found = file.find(&number.to_string()).unwrap().unwrap();
            let expected = if number % 4 == 0 {
                Outcome::Changed
            } else {
                Outcome::Fresh
            };
            assert_eq!((found.outcome, found.asset), (expected, asset(number)));
        }
        assert_eq!(file.find("1000").unwrap(), None);
    }

    #[test]
    fn file_of_a_request_is_checked_after_its_first_line() {
        let file = NamedTempFile::new().unwrap();
        let check_text = |text: &str| {
            fs::write(file.path(), text).unwrap();
            check(file.path())
        };
        let good = "{\"url\":\"https://x/\"}";
        let (first, start, has_keys) = check_text(&format!("{{}}\r\n\n{good}\n{good}")).unwrap();
        assert_eq!((&first[..], start, has_keys), (&b"{}"[..], 4, false));
        assert_eq!(check_text("").unwrap(), (Vec::new(), 0, false));
        let keyed = "{}\n{\"url\":\"https://x/\",\"key\":\"https://x/2\"}";
        assert!(check_text(keyed).unwrap().2);
        let secret = "{}\n{\"url\":\"https://x/\",\"key\":[\"secret\"]}\n";
        let error = format!("{:#}", check_text(secret).unwrap_err());
        assert!(
            error.contains("line 2") && !error.contains("secret"),
            "{error}"
        );
        for (length, is_valid) in [(4096, true), (4097, false), (1 << 20, false)] {
            let line = |key: &str| format!("{{\"url\":\"https://x/\",\"key\":\"{key}\"}}");
            let line = line(&"k".repeat(length - line("").len()));
            let checked = check_text(&format!("{{}}\n{line}\r\n"));
            let is_large = checked.map_err(|error| error.is::<TooLarge>()).err();
            assert_eq!(is_large, (!is_valid).then_some(true), "{length}");
        }
    }
}
