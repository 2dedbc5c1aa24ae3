//! Recorded calls, as CSV.
//!
//! A line is `time,key` or `time,key,requests`, such as `12.5,dsp-17,1`. A time is a number of seconds from any start, or a
//! date and time with an offset. A header line, empty lines and lines starting with `#` are skipped.

use std::{collections::HashMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use foldhash::fast::RandomState;
use jiff::Timestamp;

/// A recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Time in nanoseconds.
    pub at: u64,
    /// Index of its key in [`Trace::keys`].
    pub key: u32,
    /// Number of requests.
    pub requests: u32,
}

/// Recorded calls, sorted by time.
#[derive(Debug, Default)]
pub struct Trace {
    /// The calls.
    pub calls: Vec<Call>,
    /// Their keys.
    pub keys: Vec<String>,
    /// Number of calls with a time before that of the previous call. They get the time of that call.
    pub late: u64,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// When the file cannot be read, has no calls, or a line is invalid.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// When the text has no calls, or a line is invalid.
    pub fn parse(text: &str) -> Result<Self> {
        let mut trace = Self::default();
        let mut numbers = HashMap::with_hasher(RandomState::default());
        // Some editors write a byte-order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let is_header = index == 0 && line.starts_with("time");
            if !is_header && !line.is_empty() && !line.starts_with('#') {
                let added = trace.add(line, &mut numbers);
                added.with_context(|| format!("line {}: {line:.100}", index + 1))?;
            }
        }
        ensure!(!trace.calls.is_empty(), "the file contains no calls");
        Ok(trace)
    }

    /// Adds the call of a line; keys are numbered by first appearance.
    fn add(&mut self, line: &str, numbers: &mut HashMap<String, u32, RandomState>) -> Result<()> {
        let mut fields = line.split(',').map(|field| field.trim().trim_matches('"'));
        let time = parse_time(fields.next().unwrap_or_default())?;
        let at = u64::try_from(time.as_nanos()).ok();
        let at = at.context("the time is after the year 2554; write it in seconds")?;
        let key = fields.next();
        let key = key.context("missing key: use time,key or time,key,requests")?;
        let requests = fields.next().filter(|field| !field.is_empty());
        let requests = requests.map_or(Ok(1), str::parse);
        let requests = requests.context("invalid requests: use a whole number below 2^32")?;
        ensure!(
            fields.next().is_none(),
            "too many fields: use time,key or time,key,requests"
        );
        let number = match numbers.get(key) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.keys.len()).context("more than 2^32 keys")?;
                numbers.insert(key.to_owned(), number);
                self.keys.push(key.to_owned());
                number
            }
        };
        let last = self.calls.last().map_or(0, |call| call.at);
        self.late += u64::from(at < last);
        self.calls.push(Call {
            at: at.max(last),
            key: number,
            requests,
        });
        Ok(())
    }
}

/// Parses seconds, or a date and time.
///
/// # Errors
/// When the time is malformed, or before 1970.
fn parse_time(text: &str) -> Result<Duration> {
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).context("invalid time in seconds");
    }
    let time: Timestamp = text.parse().ok().with_context(|| {
        format!(
            "invalid time `{text}`: use seconds or a date and time such as 2026-11-22T10:00:00Z"
        )
    })?;
    Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH))
        .context("invalid time: before 1970")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, calls: &[(u64, u32, u32)], keys: &[&str]) {
        let trace = Trace::parse(text).unwrap();
        let found: Vec<_> = trace
            .calls
            .iter()
            .map(|call| (call.at, call.key, call.requests))
            .collect();
        assert_eq!(found, calls, "{text}");
        assert_eq!(trace.keys, keys);
    }

    #[test]
    fn calls_are_parsed() {
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
        let dated = "1970-01-01T00:00:01Z,a\n1970-01-01T01:00:02+01:00,a";
        check(
            dated,
            &[(1_000_000_000, 0, 1), (2_000_000_000, 0, 1)],
            &["a"],
        );
    }

    #[test]
    fn errors_name_the_invalid_line() {
        for (text, expected) in [
            ("", "no calls"),
            ("# nothing\n", "no calls"),
            ("0,a\n1\n", "line 2: 1"),
            ("0,a\nx,b\n", "line 2: x,b"),
            ("x,b\n", "line 1: x,b"),
            ("1700000000000000000,a\n", "write it in seconds"),
            ("0,a,1.5\n", "line 1"),
            ("0,a,1,9\n", "line 1"),
            ("0,a,99999999999\n", "line 1"),
            ("-1,a\n", "line 1"),
            ("1969-01-01T00:00:00Z,a\n", "line 1"),
        ] {
            let error = format!("{:#}", Trace::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
