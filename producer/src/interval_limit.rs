//! Limit of events per interval, for events that clients can cause: log messages and health checks. Suppressed events are counted.

use std::{
    mem,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Admits up to `count_max` events per interval.
#[derive(Debug)]
pub(crate) struct IntervalLimit {
    count_max: u32,
    interval: Duration,
    state: Mutex<IntervalState>,
}

#[derive(Debug, Default)]
struct IntervalState {
    /// Start of the current interval.
    began: Option<Instant>,
    count: u32,
    suppressed: u64,
}

impl IntervalLimit {
    pub(crate) fn new(count_max: u32, interval: Duration) -> Self {
        Self {
            count_max,
            interval,
            state: Mutex::default(),
        }
    }

    /// Returns `Some` if an event is admitted now, with the number of events suppressed since the previous one.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        self.admit_if(now, || true)
    }

    /// Like [`admit`](Self::admit), but `other`, which is called only if this limit admits the event, must return true, too.
    pub(crate) fn admit_if(&self, now: Instant, other: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        if state.began.is_none_or(|began| now - began >= self.interval) {
            state.began = Some(now);
            state.count = 0;
        }
        if state.count == self.count_max || !other() {
            state.suppressed += 1;
            return None;
        }
        state.count += 1;
        Some(mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_per_interval_are_bounded_and_suppressed_ones_are_counted() {
        const INTERVAL: Duration = Duration::from_secs(10);
        let limit = IntervalLimit::new(3, INTERVAL);
        let start = Instant::now();
        for (at, admitted) in [
            (start, [Some(0), Some(0), Some(0), None]),
            (start + INTERVAL / 2, [None; 4]),
            (start + INTERVAL, [Some(5), Some(0), Some(0), None]),
            (start + 3 * INTERVAL, [Some(1), Some(0), Some(0), None]),
        ] {
            assert_eq!([(); 4].map(|()| limit.admit(at)), admitted);
        }
    }

    #[test]
    fn event_rejected_by_the_other_limit_counts_only_as_suppressed() {
        let limit = IntervalLimit::new(1, Duration::from_secs(10));
        let now = Instant::now();
        assert_eq!(limit.admit_if(now, || false), None);
        assert_eq!(limit.admit_if(now, || true), Some(1));
        assert_eq!(
            limit.admit_if(now, || panic!("called although this limit is reached")),
            None
        );
    }
}
