//! Keeps short what outsiders could fill the log with: in an interval only so many lines are written. The metrics count everything.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Admits so many lines in each interval.
#[derive(Debug)]
pub(crate) struct LogGate {
    lines_max: u32,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the current interval began.
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogGate {
    pub(crate) fn new(lines_max: u32, interval: Duration) -> Self {
        Self {
            lines_max,
            interval,
            state: Mutex::default(),
        }
    }

    /// Whether a line is written now; if so, returns how many were left out since the last one.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        self.admit_if(now, || true)
    }

    /// The same for a line that is written only if `others` admit it too; they are asked only if this gate admits it.
    pub(crate) fn admit_if(&self, now: Instant, others: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.began.is_none_or(|began| now - began >= self.interval) {
            state.began = Some(now);
            state.lines = 0;
        }
        if state.lines == self.lines_max || !others() {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_interval_are_bounded_and_those_left_out_are_counted() {
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
    fn line_that_another_gate_does_not_admit_uses_up_no_place_and_is_counted() {
        let gate = LogGate::new(1, Duration::from_secs(10));
        let now = Instant::now();
        assert_eq!(gate.admit_if(now, || false), None);
        assert_eq!(gate.admit_if(now, || true), Some(1));
        assert_eq!(gate.admit_if(now, || panic!("asked in vain")), None);
    }
}
