//! Rate limit for log messages that clients can cause. Suppressed messages are counted.

use std::{
    mem,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Admits up to `lines_max` messages per interval.
#[derive(Debug)]
pub(crate) struct LogGate {
    lines_max: u32,
    interval: Duration,
    state: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// Start of the current interval.
    began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl LogGate {
    pub(crate) fn new(lines_max: u32, interval: Duration) -> Self {
        Self {
            lines_max,
            interval,
            state: Mutex::default(),
        }
    }

    /// Returns `Some` if a message may be written now, with the number of messages suppressed since the previous one.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        self.admit_if(now, || true)
    }

    /// Like [`admit`](Self::admit), but `other`, which is called only if this gate admits the message, must return true, too.
    pub(crate) fn admit_if(&self, now: Instant, other: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        if state.began.is_none_or(|began| now - began >= self.interval) {
            state.began = Some(now);
            state.lines = 0;
        }
        if state.lines == self.lines_max || !other() {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_per_interval_are_bounded_and_suppressed_ones_are_counted() {
        const INTERVAL: Duration = Duration::from_secs(10);
        let gate = LogGate::new(3, INTERVAL);
        let start = Instant::now();
        for (at, admitted) in [
            (start, [Some(0), Some(0), Some(0), None]),
            (start + INTERVAL / 2, [None; 4]),
            (start + INTERVAL, [Some(5), Some(0), Some(0), None]),
            (start + 3 * INTERVAL, [Some(1), Some(0), Some(0), None]),
        ] {
            assert_eq!([(); 4].map(|()| gate.admit(at)), admitted);
        }
    }

    #[test]
    fn message_rejected_by_the_other_gate_counts_only_as_suppressed() {
        let gate = LogGate::new(1, Duration::from_secs(10));
        let now = Instant::now();
        assert_eq!(gate.admit_if(now, || false), None);
        assert_eq!(gate.admit_if(now, || true), Some(1));
        assert_eq!(
            gate.admit_if(now, || panic!("called although this gate is closed")),
            None
        );
    }
}
