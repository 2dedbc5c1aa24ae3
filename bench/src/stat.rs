//! What Linux tells of a process or a thread in its `stat` line.

use std::{fs, path::Path, time::Duration};

/// The part of a `stat` line that is used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The name of the program or thread, of at most 15 bytes.
    pub name: String,
    /// The id of the process that started it.
    pub parent: u32,
    /// CPU time in its own code.
    pub user: Duration,
    /// CPU time in the kernel on its behalf.
    pub system: Duration,
}

impl Stat {
    /// That of a process; `None` when it has ended.
    #[must_use]
    pub fn of(process_id: u32) -> Option<Self> {
        Self::below(Path::new(&format!("/proc/{process_id}")))
    }

    /// That of the process or thread with this folder below `/proc`.
    pub(crate) fn below(folder: &Path) -> Option<Self> {
        let line = fs::read_to_string(folder.join("stat")).ok()?;
        Self::parse(&line, rustix::param::clock_ticks_per_second())
    }

    fn parse(line: &str, ticks_per_second: u64) -> Option<Self> {
        // The name, in parentheses, may hold anything; the parent is the second field after it, and utime and stime are the
        // 12th and 13th.
        let (before, after_name) = line.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after_name.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let mut fields = fields.skip(9);
        let mut time = || {
            let ticks: u64 = fields.next()?.parse().ok()?;
            Some(Duration::from_nanos(
                ticks * (1_000_000_000 / ticks_per_second),
            ))
        };
        Some(Self {
            name: name.to_owned(),
            parent,
            user: time()?,
            system: time()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_with_a_strange_name_is_read() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 5 6 7";
        let expected = Stat {
            name: "a) b (c".to_owned(),
            parent: 1,
            user: Duration::from_millis(1_500),
            system: Duration::from_millis(250),
        };
        assert_eq!(Stat::parse(line, 100), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1", 100), None);
    }
}
