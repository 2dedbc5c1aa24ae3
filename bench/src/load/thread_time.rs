//! The time for which a thread ran or waited for a CPU, as counted by Linux.

use std::{fs, path::Path, time::Instant};

use procfs::process::Process;

/// A point in time, and the nanoseconds in which a thread had run and waited for a CPU until then.
pub(super) struct ThreadTime(Instant, [u64; 2]);

/// Fractions of time in which a thread ran, and waited for a CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuShares {
    pub(super) running: f64,
    pub(super) waiting: f64,
}

impl ThreadTime {
    /// Times of the calling thread; `None` if `/proc` does not contain them.
    pub(super) fn now() -> Option<Self> {
        let own = fs::read_link("/proc/thread-self").ok()?;
        let thread = Process::new_with_root(Path::new("/proc").join(own)).ok()?;
        let stat = thread.schedstat().ok()?;
        Some(Self(
            Instant::now(),
            [stat.sum_exec_runtime, stat.run_delay],
        ))
    }

    /// Fractions since then, for the same thread; `None` if unknown.
    pub(super) fn shares(&self) -> Option<CpuShares> {
        let now = Self::now()?;
        let nanos = (now.0 - self.0).as_nanos().max(1) as f64;
        let share = |which: usize| now.1[which].saturating_sub(self.1[which]) as f64 / nanos;
        Some(CpuShares {
            running: share(0),
            waiting: share(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn busy_thread_has_running_time() {
        // Not every system has this file.
        let is_supported = Path::new("/proc/thread-self/schedstat").exists();
        let before = ThreadTime::now();
        assert_eq!(before.is_some(), is_supported);
        let Some(before) = before else {
            return;
        };
        let ran = || {
            let nanos = before.0.elapsed().as_nanos() as f64;
            before.shares().unwrap().running * nanos
        };
        while ran() < Duration::from_millis(20).as_nanos() as f64 {
            std::hint::black_box(());
        }
    }
}
