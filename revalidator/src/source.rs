//! The file of a list application: one JSON object a line, which also has the metadata of the stored objects.
//!
//! A job reads it from a position on, and its results are written back in one rename. Fields of other programs are kept.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    apps::is_asset_url,
    messages::{ASSET_BYTES_MAX, Asset, Filter},
};

/// Maximum number of lines of a file.
pub const ASSETS_MAX: u64 = 10_000_000;

/// A line of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(flatten)]
    asset: Asset,
    /// Unix seconds of the last check.
    checked_at: Option<u64>,
    /// Unix seconds of the last request for the object.
    requested_at: Option<u64>,
}

/// What to do with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selected {
    /// The asset is part of the job.
    Check(Asset),
    /// The object is removed, because it was not requested for a long time.
    Prune(Asset),
    /// The line is not part of the job.
    Skip,
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
    fn select(&self, line: Line) -> Selected {
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
        if is_filtered {
            return Selected::Skip;
        }
        let unused = age(line.requested_at);
        if self
            .prune_after
            .zip(unused)
            .is_some_and(|(max, age)| age > max)
        {
            return Selected::Prune(line.asset);
        }
        let checked = age(line.checked_at).unwrap_or(u64::MAX);
        if self.filter.older_than.is_some_and(|min| checked < min) {
            return Selected::Skip;
        }
        Selected::Check(line.asset)
    }
}

/// Position of a key in a sample, from 0 to 1.
fn position(key: &str) -> f64 {
    let parts = u32::try_from(xxh3_64(key.as_bytes()) >> 32).unwrap_or(u32::MAX);
    f64::from(parts) / (f64::from(u32::MAX) + 1.0)
}

/// Parses an asset of a request or a file.
///
/// # Errors
/// When the line is too long, not JSON, or has no URL.
pub fn parse_asset(line: &[u8]) -> Result<Asset> {
    Ok(parse(line)?.asset)
}

fn parse(line: &[u8]) -> Result<Line> {
    ensure!(
        line.len() <= ASSET_BYTES_MAX,
        "longer than {ASSET_BYTES_MAX} bytes"
    );
    let line: Line = serde_json::from_slice(line).context("not a JSON object of an asset")?;
    ensure!(is_asset_url(&line.asset.url), "no valid url");
    Ok(line)
}

/// Reads the lines from `cursor` on, and calls `use_line` with each selected asset and the position after it, until it returns false.
///
/// # Errors
/// When the file cannot be read or has an invalid line; the error names the line.
pub fn read(
    path: &Path,
    cursor: u64,
    selection: &Selection,
    mut use_line: impl FnMut(Selected, u64) -> bool,
) -> Result<()> {
    let mut lines = Lines::open(path, cursor)?;
    while let Some(line) = lines.next()? {
        let parsed = parse(line);
        let parsed =
            parsed.with_context(|| format!("line {} after byte {cursor}", lines.number))?;
        if !use_line(selection.select(parsed), lines.position) {
            return Ok(());
        }
    }
    Ok(())
}

/// Lines that are not empty, without their ends.
struct Lines {
    reader: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    position: u64,
}

impl Lines {
    fn open(path: &Path, position: u64) -> Result<Self> {
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
            let count = self.reader.read_until(b'\n', &mut self.line)?;
            self.number += 1;
            self.position += count as u64;
            ensure!(self.number <= ASSETS_MAX, "more than {ASSETS_MAX} lines");
            if count == 0 || !self.line.trim_ascii().is_empty() {
                return Ok((count > 0).then(|| self.line.trim_ascii()));
            }
        }
    }
}

/// New metadata of a line, or its removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The asset was checked.
    Checked(Asset),
    /// The object was removed.
    Removed,
}

/// Writes the results of a job into a copy of the file, which then replaces the file. Lines that the job prunes are removed.
///
/// # Errors
/// When a file cannot be read or written; the old file is then unchanged.
pub fn write_back(
    path: &Path,
    selection: &Selection,
    prunes: bool,
    updates: &HashMap<String, Update>,
) -> Result<()> {
    let mut lines = Lines::open(path, 0)?;
    let permissions = lines.reader.get_ref().metadata()?.permissions();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let copy = NamedTempFile::new_in(dir.unwrap_or(Path::new(".")))?;
    let mut writer = BufWriter::new(copy);
    while let Some(line) = lines.next()? {
        let update = match parse(line) {
            Err(_) => None,
            Ok(parsed) => {
                let update = updates.get(parsed.asset.name());
                let is_pruned = prunes && matches!(selection.select(parsed), Selected::Prune(_));
                if is_pruned || update == Some(&Update::Removed) {
                    continue;
                }
                update
            }
        };
        if let Some(Update::Checked(asset)) = update {
            let mut object: Map<String, Value> = serde_json::from_slice(line)?;
            let mut set = |field: &str, value: Value| drop(object.insert(field.to_owned(), value));
            set("eTag", asset.e_tag.as_str().into());
            set("hash", asset.hash.as_str().into());
            set("lastModified", asset.last_modified.as_str().into());
            set("checkedAt", selection.created_at.into());
            serde_json::to_writer(&mut writer, &object)?;
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
    copy.persist(path)
        .with_context(|| path.display().to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FILE: &str = concat!(
        "{\"url\":\"https://x.example/1\",\"hash\":\"h1\",\"requestedAt\":900,\"colour\":\"red\"}\n",
        "\n",
        "{\"key\":\"two\",\"url\":\"https://x.example/2\",\"checkedAt\":990}\n",
        "{\"key\":\"three\",\"url\":\"https://x.example/3\",\"requestedAt\":100}",
    );

    fn selection() -> Selection {
        Selection {
            filter: Filter::default(),
            created_at: 1000,
            prune_after: None,
        }
    }

    fn selected(path: &Path, cursor: u64, selection: &Selection) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let add = |it, position| {
            match it {
                Selected::Check(asset) => found.push((asset.name().to_owned(), position)),
                Selected::Prune(asset) => found.push((format!("-{}", asset.name()), position)),
                Selected::Skip => {}
            }
            true
        };
        read(path, cursor, selection, add).unwrap();
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
            let error = read(file.path(), 0, &selection(), |_, _| true).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("line 2") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn results_are_written_back_and_other_fields_are_kept() {
        let file = file();
        let asset = Asset {
            hash: "new".to_owned(),
            e_tag: "\"2\"".to_owned(),
            ..Asset::default()
        };
        let updates = HashMap::from([
            ("https://x.example/1".to_owned(), Update::Checked(asset)),
            ("two".to_owned(), Update::Removed),
            ("unknown".to_owned(), Update::Removed),
        ]);
        let prune = Selection {
            prune_after: Some(500),
            ..selection()
        };
        write_back(file.path(), &selection(), true, &updates).unwrap();
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
        write_back(file.path(), &prune, false, &HashMap::new()).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 2);
        write_back(file.path(), &prune, true, &HashMap::new()).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 1);
    }
}
