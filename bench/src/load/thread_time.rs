//! How long a thread ran, and waited for a processor, as Linux counts it.

use std::{fs, time::Duration};

/// How long a thread has run, and has waited for a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ThreadTime {
    pub(super) running: Duration,
    pub(super) waiting: Duration,
}

impl ThreadTime {
    /// That of the calling thread; `None` where `/proc` does not tell.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    /// The line holds nanoseconds running, nanoseconds waiting, and a count of turns.
    fn parse(schedstat: &str) -> Option<Self> {
        let mut fields = schedstat.split_ascii_whitespace();
        let mut next = || Some(Duration::from_nanos(fields.next()?.parse().ok()?));
        Some(Self {
            running: next()?,
            waiting: next()?,
        })
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
        }
    }

    /// The shares of `of` that were spent running and waiting.
    pub(super) fn shares(&self, of: Duration) -> (f64, f64) {
        let share = |part: Duration| part.as_secs_f64() / of.as_secs_f64().max(f64::MIN_POSITIVE);
        (share(self.running), share(self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_thread_is_seen_running() {
        assert_eq!(
            ThreadTime::parse("5 7 1\n"),
            Some(ThreadTime {
                running: Duration::from_nanos(5),
                waiting: Duration::from_nanos(7)
            })
        );
        // Not every system tells.
        let Some(before) = ThreadTime::now() else {
            return;
        };
        while ThreadTime::now().unwrap().since(&before).running < Duration::from_millis(20) {
            std::hint::black_box(());
        }
    }
}
