//! CPU time of a process, as the system accounts it.

use std::{process, time::Duration};

use procfs::process::{Process, Stat};

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

/// What Linux tells of a process: its name (`comm`) and its parent (`ppid`) among others; `None` when it has ended.
#[must_use]
pub fn stat(process_id: u32) -> Option<Stat> {
    Process::new(process_id.cast_signed()).ok()?.stat().ok()
}

impl From<Stat> for CpuTime {
    fn from(stat: Stat) -> Self {
        let nanos_per_tick = 1_000_000_000 / procfs::ticks_per_second();
        let time = |ticks: u64| Duration::from_nanos(ticks * nanos_per_tick);
        Self {
            user: time(stat.utime),
            system: time(stat.stime),
        }
    }
}

impl CpuTime {
    /// What this process has used; zero where `/proc` does not tell.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::of(process::id()).unwrap_or_default()
    }

    /// What another process has used; `None` when it has ended or `/proc` does not tell.
    #[must_use]
    pub fn of(process_id: u32) -> Option<Self> {
        stat(process_id).map(Self::from)
    }

    /// What those threads of this process have used whose name is one of `names`. A thread that has ended counts no
    /// more.
    #[must_use]
    pub fn of_threads(names: &[&str]) -> Self {
        let threads = Process::myself().and_then(|process| process.tasks());
        let stats = threads.into_iter().flatten();
        stats
            .filter_map(|thread| thread.ok()?.stat().ok())
            .filter(|stat| names.contains(&stat.comm.as_str()))
            .fold(Self::default(), |sum, of_one| sum.plus(&of_one.into()))
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
}
