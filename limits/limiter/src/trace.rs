//! Recorded calls: when, whose, for how many requests.
//!
//! Two forms are told apart by their first line:
//!
//! ```text
//! 12.5,dsp-17,1                                            CSV: time, key and, if there are any, requests; a first line of names is skipped
//! {"time": "2026-11-22T10:00:00Z", "key": "17", "n": 1}    NDJSON
//! ```
//!
//! A time is a number of seconds, which counts from anything, or a date and time with an offset. Lines that are empty or begin with `#` mean nothing.

use std::{collections::HashMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde::Deserialize;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// In nanoseconds.
    pub at: u64,
    /// The place of its key in [`Trace::keys`].
    pub key: u32,
    /// How many requests it is for.
    pub requests: u32,
}

/// All calls, in the order of the file, which is that of their times but for [`late`](Self::late) ones.
#[derive(Debug, Default)]
pub struct Trace {
    /// The calls.
    pub calls: Vec<Call>,
    /// Their keys.
    pub keys: Vec<String>,
    /// How many calls are earlier than one before them. They are taken as made when that was.
    pub late: u64,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Csv,
    Ndjson,
}

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "t", alias = "at")]
    time: serde_json::Value,
    key: serde_json::Value,
    #[serde(default = "one", alias = "requests")]
    n: u64,
}

fn one() -> u64 {
    1
}

/// Numbers keys by their first appearance.
#[derive(Default)]
struct Interned {
    numbers: HashMap<String, u32, RandomState>,
}

impl Interned {
    fn number(&mut self, key: &str) -> Result<u32> {
        if let Some(number) = self.numbers.get(key) {
            return Ok(*number);
        }
        let number = u32::try_from(self.numbers.len()).context("more than 2^32 keys")?;
        self.numbers.insert(key.to_owned(), number);
        Ok(number)
    }

    fn into_keys(self) -> Vec<String> {
        let mut keys: Vec<_> = self.numbers.into_iter().collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        keys.into_iter().map(|(key, _)| key).collect()
    }
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, has no call, or a line is none: then which, and why.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`read`](Self::read), but for the file.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut trace = Self::default();
        let mut keys = Interned::default();
        let (mut form, mut last) = (None, 0);
        let mut rest = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let mut number = 0;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = rest[..end].trim_ascii();
            rest = rest.get(end + 1..).unwrap_or_default();
            number += 1;
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let of = || format!("line {number}: {:.100}", String::from_utf8_lossy(line));
            let line = str::from_utf8(line).with_context(of)?;
            let is_first = form.is_none();
            let form = *form.get_or_insert_with(|| Form::of(line));
            if is_first && matches!(form, Form::Csv) && is_header(line) {
                continue;
            }
            let (at, key, requests) = form.call(line).with_context(of)?;
            let at = u64::try_from(at.as_nanos()).ok();
            let at = at.context("a time after the year 2554: seconds are needed");
            let at = at.with_context(of)?;
            trace.late += u64::from(at < last);
            last = last.max(at);
            trace.calls.push(Call {
                at: last,
                key: keys.number(&key)?,
                requests: u32::try_from(requests).with_context(of)?,
            });
        }
        ensure!(!trace.calls.is_empty(), "there is no call in it");
        trace.keys = keys.into_keys();
        Ok(trace)
    }

    /// From the first call to the last.
    #[must_use]
    pub fn span(&self) -> Duration {
        let ends = self.calls.first().zip(self.calls.last());
        ends.map_or(Duration::ZERO, |(first, last)| {
            Duration::from_nanos(last.at - first.at)
        })
    }
}

fn is_header(line: &str) -> bool {
    let first = line.split(',').next().unwrap_or_default();
    let first = first.trim().trim_matches('"').to_ascii_lowercase();
    ["time", "t", "at", "timestamp"].contains(&&*first)
}

impl Form {
    fn of(line: &str) -> Self {
        if line.starts_with('{') {
            Self::Ndjson
        } else {
            Self::Csv
        }
    }

    fn call(self, line: &str) -> Result<(Duration, std::borrow::Cow<'_, str>, u64)> {
        match self {
            Self::Csv => {
                let mut fields = line.split(',').map(|field| field.trim().trim_matches('"'));
                let time = fields.next().unwrap_or_default();
                let key = fields
                    .next()
                    .context("there is no key: time,key or time,key,requests is needed")?;
                let requests = fields.next().filter(|field| !field.is_empty());
                let requests = requests.map_or(Ok(1), str::parse);
                ensure!(fields.next().is_none(), "more than time, key and requests");
                let requests = requests.context("the requests are not a whole number")?;
                Ok((parse_time(time)?, key.into(), requests))
            }
            Self::Ndjson => {
                let line: Line = serde_json::from_str(line)
                    .context("not {\"time\": …, \"key\": …, \"n\": …}")?;
                let time = match &line.time {
                    serde_json::Value::String(text) => parse_time(text)?,
                    serde_json::Value::Number(number) => parse_time(&number.to_string())?,
                    _ => bail!("the time is neither a number nor a text"),
                };
                let key = match line.key {
                    serde_json::Value::String(text) => text,
                    serde_json::Value::Number(number) => number.to_string(),
                    _ => bail!("the key is neither a text nor a number"),
                };
                Ok((time, key.into(), line.n))
            }
        }
    }
}

/// Seconds since anything, without rounding, or a date and time.
///
/// # Errors
/// When it is neither, or before 1970.
pub fn parse_time(text: &str) -> Result<Duration> {
    if let Some(time) = parse_seconds(text) {
        return Ok(time);
    }
    let time: Timestamp = text.parse().ok().with_context(|| {
        format!("`{text}` is neither seconds nor a date and time such as 2026-11-22T10:00:00Z")
    })?;
    Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).context("a time before 1970")
}

fn parse_seconds(text: &str) -> Option<Duration> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !digits(seconds) || !digits(fraction) {
        return None;
    }
    let mut nanos = 0;
    for place in 0..9 {
        let digit = fraction
            .as_bytes()
            .get(place)
            .map_or(0, |digit| u32::from(digit - b'0'));
        nanos = nanos * 10 + digit;
    }
    Some(Duration::new(seconds.parse().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, calls: &[(u64, u32, u32)], keys: &[&str]) {
        let trace = Trace::parse(text.as_bytes()).unwrap();
        let found: Vec<_> = trace
            .calls
            .iter()
            .map(|call| (call.at, call.key, call.requests))
            .collect();
        assert_eq!(found, calls, "{text}");
        assert_eq!(trace.keys, keys);
    }

    #[test]
    fn each_form_is_read() {
        let calls = [
            (500_000_000, 0, 1),
            (1_250_000_001, 1, 3),
            (1_250_000_001, 0, 1),
        ];
        check(
            "time,key,n\n0.5,a\n1.250000001,b,3\n# nothing\n\n1.2,a,1\n",
            &calls,
            &["a", "b"],
        );
        let ndjson = "{\"time\":0.5,\"key\":\"a\"}\n{\"t\":\"1.250000001\",\"key\":\"b\",\"n\":3}\r\n{\"time\":1,\"key\":\"a\",\"requests\":1}";
        check(ndjson, &calls, &["a", "b"]);
        let dated = "1970-01-01T00:00:01Z,a\n1970-01-01T01:00:02+01:00,a";
        check(
            dated,
            &[(1_000_000_000, 0, 1), (2_000_000_000, 0, 1)],
            &["a"],
        );
    }

    #[test]
    fn line_that_is_no_call_is_named() {
        for (text, expected) in [
            ("", "there is no call"),
            ("# nothing\n", "there is no call"),
            ("0,a\n1\n", "line 2: 1"),
            ("0,a\nx,b\n", "line 2: x,b"),
            ("x,b\n", "line 1: x,b"),
            ("1700000000000000000,a\n", "seconds are needed"),
            ("0,a,1.5\n", "line 1"),
            ("0,a,1,9\n", "line 1"),
            ("0,a,99999999999\n", "line 1"),
            ("{\"time\":1}\n", "line 1"),
            ("{\"time\":[],\"key\":\"a\"}\n", "line 1"),
            ("-1,a\n", "line 1"),
            ("1969-01-01T00:00:00Z,a\n", "line 1"),
        ] {
            let error = format!("{:#}", Trace::parse(text.as_bytes()).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Trace::parse(b"0,\xff\n").is_err());
    }
}
