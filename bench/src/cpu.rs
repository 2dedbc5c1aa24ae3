//! CPU time of a process, as the system accounts it.

use std::{fs, time::Duration};

use serde::{Deserialize, Serialize};

/// CPU time that a process has used, in its own code and in the kernel on its behalf.
///
/// The system's figures have a resolution of one clock tick, usually 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTime {
    /// In its own code.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

/// [`CpuTime`] in a report.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
pub struct CpuSeconds {
    /// In its own code.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl CpuSeconds {
    /// Both together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.user + self.system
    }
}

impl CpuTime {
    /// What this process has used; zero where `/proc` does not tell.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::read("/proc/self/stat").unwrap_or_default()
    }

    /// What another process has used; `None` when it has ended or `/proc` does not tell.
    #[must_use]
    pub fn of(process_id: u32) -> Option<Self> {
        Self::read(&format!("/proc/{process_id}/stat"))
    }

    /// What those threads of this process have used whose name is one of `names`. A thread that has ended counts no
    /// more.
    #[must_use]
    pub fn of_threads(names: &[&str]) -> Self {
        let tick_rate = rustix::param::clock_ticks_per_second();
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
        let stats = threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
            .filter(|stat| name_of(stat).is_some_and(|name| names.contains(&name)));
        stats
            .filter_map(|stat| Self::parse(&stat, tick_rate))
            .fold(Self::default(), |sum, of_one| sum.plus(&of_one))
    }

    fn read(path: &str) -> Option<Self> {
        Self::parse(
            &fs::read_to_string(path).ok()?,
            rustix::param::clock_ticks_per_second(),
        )
    }

    fn parse(stat: &str, ticks_per_second: u64) -> Option<Self> {
        // The command name, in parentheses, may hold anything; utime and stime are the 12th and 13th after it.
        let (_, after_name) = stat.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        let duration =
            |ticks: u64| Duration::from_nanos(ticks * (1_000_000_000 / ticks_per_second));
        Some(Self {
            user: duration(ticks()?),
            system: duration(ticks()?),
        })
    }

    /// What was used since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }

    /// In its own code and in the kernel.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.user + self.system
    }

    /// For a report.
    #[must_use]
    pub fn seconds(&self) -> CpuSeconds {
        CpuSeconds {
            user: self.user.as_secs_f64(),
            system: self.system.as_secs_f64(),
        }
    }
}

/// The name of a program or thread in its `stat` line: what stands in parentheses, of at most 15 bytes.
fn name_of(stat: &str) -> Option<&str> {
    let (before, _) = stat.rsplit_once(')')?;
    before.split_once('(').map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_their_names() {
        let (busy, idle) = ("busy-thread", "idle-thread");
        let worked = |name: &'static str, rounds: u32| {
            let work = move || {
                let began = CpuTime::of_threads(&[name]);
                while (CpuTime::of_threads(&[name]).since(&began)).total() < 20 * rounds * TICK {
                    std::hint::black_box(());
                }
                CpuTime::of_threads(&[busy, idle]).total()
            };
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(work).unwrap().join().unwrap()
        };
        assert!(worked(idle, 0) < 20 * TICK);
        assert!(worked(busy, 1) >= 20 * TICK);
    }

    const TICK: Duration = Duration::from_millis(10);

    #[test]
    fn stat_line_with_a_strange_name_is_read() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 5 6 7";
        let expected = CpuTime {
            user: Duration::from_millis(1_500),
            system: Duration::from_millis(250),
        };
        assert_eq!(CpuTime::parse(stat, 100), Some(expected));
        assert_eq!(CpuTime::parse("7 (a) S 1", 100), None);
        assert_eq!(name_of(stat), Some("a) b (c"));
    }
}
