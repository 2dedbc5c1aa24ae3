//! Requests in a file, to be sent again.
//!
//! One line is one request, of three or four fields with a tab between them, here shown as `→`:
//!
//! ```text
//! # microseconds, target, Cookie header, status when not 200
//! 0→/?d=17&b=x6cDm0→uid=3f27a9d1c0
//! 250→/?d=3→uid=3f27a9d1c0→400
//! ```
//!
//! Times may count from anything, since only their distance from the first is used; a line goes no earlier than the one before
//! it. The target is path and query, the header `-` when there is none, and a status from 400 to 499 says that the
//! request is to be refused. Lines that are empty or begin with `#` mean nothing. An access log has all of this.

use std::{
    fs::{self, File},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempPath;

/// A file of requests, in memory: its text, and 32 bytes for each line.
#[derive(Debug)]
pub struct Recording {
    text: String,
    lines: Vec<Entry>,
    has_malformed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Since the first line.
    micros: u64,
    /// Where the target begins.
    at: usize,
    target_bytes: u32,
    /// 0 for no header.
    cookie_bytes: u32,
    is_malformed: bool,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordedLine<'a> {
    pub(super) target: &'a str,
    pub(super) cookie: Option<&'a str>,
    pub(super) is_malformed: bool,
}

/// A recording and how to send it.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The requests.
    pub recording: Arc<Recording>,
    /// How many times as fast as they were recorded; `None` to leave their times to the plan's schedule, or to send
    /// without one.
    pub speed: Option<f64>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, holds no request, or a line is none, saying which.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the requests in {}", path.display()))?;
        Self::parse(text).with_context(|| path.display().to_string())
    }

    fn parse(text: String) -> Result<Self> {
        let mut lines: Vec<Entry> = Vec::new();
        let (mut first, mut last) = (None, 0);
        let mut at = 0;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let start = at;
            at += line.len();
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut entry = Entry::parse(line, start)
                .with_context(|| format!("line {}: {line:.100}", index + 1))?;
            let first = *first.get_or_insert(entry.micros);
            last = last.max(entry.micros.saturating_sub(first));
            entry.micros = last;
            lines.push(entry);
        }
        ensure!(!lines.is_empty(), "there is no request in it");
        ensure!(
            u32::try_from(lines.len()).is_ok(),
            "more requests than {}",
            u32::MAX
        );
        Ok(Self {
            has_malformed: lines.iter().any(|entry| entry.is_malformed),
            text,
            lines,
        })
    }

    /// How many requests there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn has_malformed(&self) -> bool {
        self.has_malformed
    }

    pub(super) fn line(&self, index: u32) -> RecordedLine<'_> {
        let entry = &self.lines[index as usize];
        let cookie_at = entry.at + entry.target_bytes as usize + 1;
        let target = &self.text[entry.at..cookie_at - 1];
        let cookie = &self.text[cookie_at..cookie_at + entry.cookie_bytes as usize];
        RecordedLine {
            target,
            cookie: (!cookie.is_empty()).then_some(cookie),
            is_malformed: entry.is_malformed,
        }
    }

    /// When line `index` leaves, `speed` times as fast as recorded.
    pub(super) fn nanos(&self, index: u32, speed: f64) -> u64 {
        let nanos = self.lines[index as usize].micros as f64 * 1e3 / speed;
        #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let nanos = nanos as u64;
        nanos
    }

    /// The first `count` lines, each on one of so many connections. A user's lines all are on the same, so that their order is
    /// kept.
    pub(super) fn share_out(&self, connections: usize, count: usize) -> Vec<Vec<u32>> {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut shares = vec![Vec::new(); connections];
        let count = u32::try_from(count.min(self.lines.len())).expect("checked when it was read");
        for index in 0..count {
            let cookie = self.line(index).cookie.unwrap_or_default();
            let hash = hasher.hash_one(user_in(cookie)) % connections as u64;
            shares[usize::try_from(hash).expect("it is below a usize")].push(index);
        }
        shares
    }
}

impl Entry {
    fn parse(line: &str, start: usize) -> Result<Self> {
        let mut fields = line.split('\t');
        let mut next = |name: &str| {
            fields
                .next()
                .with_context(|| format!("the {name} is missing"))
        };
        let micros = next("time")?;
        let target = next("target")?;
        let cookie = next("Cookie header (- for none)")?;
        let status = fields.next();
        ensure!(fields.next().is_none(), "there are more than four fields");
        let at = start + micros.len() + 1;
        let micros = micros
            .parse()
            .ok()
            .with_context(|| format!("{micros:?} is not a number of microseconds"))?;
        ensure!(
            target.starts_with('/') && target.bytes().all(|byte| byte > b' ' && byte != 0x7f),
            "the target is not a path with a query, without spaces"
        );
        ensure!(
            !cookie.bytes().any(|byte| byte < b' ' || byte == 0x7f),
            "the Cookie header holds a control character"
        );
        let status: u16 = match status {
            None => 200,
            Some(status) => status
                .parse()
                .ok()
                .with_context(|| format!("{status:?} is not a status"))?,
        };
        let short = |length: usize| u32::try_from(length).context("the line is too long");
        Ok(Self {
            micros,
            at,
            target_bytes: short(target.len())?,
            cookie_bytes: if cookie == "-" {
                0
            } else {
                short(cookie.len())?
            },
            is_malformed: (400..500).contains(&status),
        })
    }
}

/// The value of the HTTP cookie `uid`, or the whole header when there is none.
fn user_in(header: &str) -> &str {
    header
        .split(';')
        .find_map(|pair| pair.trim().strip_prefix("uid="))
        .unwrap_or(header)
}

/// A file that a recording is written to. It is begun before the load, so that a mistake costs no run, under another name
/// until it is whole, so that a failure costs no older recording.
#[derive(Debug)]
pub(super) struct RecordingFile {
    path: PathBuf,
    /// Deleted unless it is renamed.
    partial: TempPath,
    file: BufWriter<File>,
}

impl RecordingFile {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let describe = || format!("cannot write the recording {}", path.display());
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let mut file = BufWriter::new(File::create(&partial).with_context(describe)?);
        let partial = TempPath::try_from_path(partial).with_context(describe)?;
        let head =
            "# cookiesync requests: microseconds, target, Cookie header, status when not 200";
        writeln!(file, "{head}").with_context(describe)?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            file,
        })
    }

    pub(super) fn write(
        &mut self,
        at: Duration,
        target: &str,
        cookie: Option<&str>,
        is_malformed: bool,
    ) -> Result<()> {
        let (micros, cookie) = (at.as_micros(), cookie.unwrap_or("-"));
        let status = if is_malformed { "\t400" } else { "" };
        writeln!(self.file, "{micros}\t{target}\t{cookie}{status}").with_context(|| self.describe())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.file.flush().with_context(|| self.describe())?;
        let describe = self.describe();
        self.partial.persist(&self.path).context(describe)
    }

    fn describe(&self) -> String {
        format!("cannot write the recording {}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Recording> {
        Recording::parse(text.to_owned())
    }

    #[test]
    fn lines_are_read_with_their_times() {
        let text =
            "# no line\n1000\t/?d=1&b=x\tuid=a; t=1\n\n1250\t/?d=1\t-\t400\r\n1100\t/\tuid=b\t200";
        let recording = parse(text).unwrap();
        let lines: Vec<_> = (0..3)
            .map(|index| {
                let line = recording.line(index);
                let nanos = recording.nanos(index, 2.0);
                (nanos, line.target, line.cookie, line.is_malformed)
            })
            .collect();
        let expected = [
            (0, "/?d=1&b=x", Some("uid=a; t=1"), false),
            (125_000, "/?d=1", None, true),
            (125_000, "/", Some("uid=b"), false),
        ];
        assert_eq!(lines, expected);
        assert!(recording.has_malformed());
        assert!(!parse("0\t/\t-").unwrap().has_malformed());
    }

    #[test]
    fn recording_replaces_another_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests");
        fs::write(&path, "older").unwrap();
        let begin = || {
            let mut file = RecordingFile::create(&path).unwrap();
            file.write(Duration::ZERO, "/", None, false).unwrap();
            file
        };
        drop(begin());
        assert_eq!(fs::read_to_string(&path).unwrap(), "older");
        begin().finish().unwrap();
        assert_eq!(Recording::read(&path).unwrap().len(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (line, problem) in [
            ("x\t/\tuid=a", "\"x\" is not a number of microseconds"),
            ("-1\t/\tuid=a", "\"-1\" is not a number of microseconds"),
            ("0", "the target is missing"),
            ("0\t/", "the Cookie header (- for none) is missing"),
            ("0\t?d=1\tuid=a", "the target is not a path"),
            ("0\t/ x\tuid=a", "the target is not a path"),
            (
                "0\t/\tuid=\u{1}",
                "the Cookie header holds a control character",
            ),
            ("0\t/\tuid=a\tOK", "\"OK\" is not a status"),
            ("0\t/\tuid=a\t200\t", "there are more than four fields"),
        ] {
            let error = format!(
                "{:#}",
                parse(&format!("0\t/\tuid=a\n{line}\n")).unwrap_err()
            );
            assert!(error.starts_with("line 2: "), "{error}");
            assert!(error.contains(problem), "{error}");
        }
        let empty = format!("{:#}", parse("# nothing\n").unwrap_err());
        assert_eq!(empty, "there is no request in it");
    }

    #[test]
    fn users_stay_on_one_connection() {
        let text: String = (0..600)
            .map(|line| {
                format!(
                    "{line}\t/?n={line}\tt=1; uid=user-{}; x={line}\n",
                    line % 50
                )
            })
            .collect();
        let recording = parse(&text).unwrap();
        let shares = recording.share_out(4, 500);
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 500);
        for (connection, lines) in shares.iter().enumerate() {
            assert!(!lines.is_empty() && lines.is_sorted());
            for (other, others) in shares.iter().enumerate() {
                let meet = lines
                    .iter()
                    .any(|line| others.iter().any(|other| line % 50 == other % 50));
                assert_eq!(meet, connection == other);
            }
        }
    }
}
