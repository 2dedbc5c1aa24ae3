//! How much of a time a thread ran, and waited for a processor, as Linux counts it.

use std::{fs, path::Path, time::Instant};

use procfs::process::Process;

/// From when on a thread is watched, and the nanoseconds for which it had run and waited by then.
pub(super) struct ThreadTime(Instant, [u64; 2]);

/// The shares of a time for which a thread ran, and waited for a processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuShares {
    pub(super) running: f64,
    pub(super) waiting: f64,
}

impl ThreadTime {
    /// That of the calling thread; `None` where `/proc` does not tell.
    pub(super) fn now() -> Option<Self> {
        let own = fs::read_link("/proc/thread-self").ok()?;
        let thread = Process::new_with_root(Path::new("/proc").join(own)).ok()?;
        let told = thread.schedstat().ok()?;
        Some(Self(
            Instant::now(),
            [told.sum_exec_runtime, told.run_delay],
        ))
    }

    /// What the same thread did from then until now; `None` where that is unknown.
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
    fn busy_thread_is_seen_running() {
        // Not every system tells.
        let is_told = Path::new("/proc/thread-self/schedstat").exists();
        let before = ThreadTime::now();
        assert_eq!(before.is_some(), is_told);
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
