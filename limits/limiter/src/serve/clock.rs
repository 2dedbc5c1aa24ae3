//! The clock of the limits, in nanoseconds since the Unix epoch. It is monotonic.
//!
//! If the system clock is more than a second ahead, because it was set or the machine slept, this clock jumps forward
//! to it. Windows aligned to the clock thus match those of partners. If the system clock is set back, this clock keeps
//! running ahead of it; after a restart by at most [`AHEAD_MAX`].

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use prometheus::IntCounter;
use runtime::unix_micros;

/// Minimum difference at which the system clock is followed, or reported as behind.
const STEP_MIN: Duration = Duration::from_secs(1);

/// Maximum lead of the previous run's clock over the system clock at which a restart continues that clock. Without this
/// maximum, a system clock that was once a day ahead would shift aligned windows for a day.
pub const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A monotonic clock.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    started_unix_nanos: AtomicU64,
    is_behind: AtomicBool,
}

/// A change relative to the system clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockEvent {
    /// The system clock was ahead by this time, and was followed.
    Ahead(Duration),
    /// The system clock fell behind by this time, and is not followed.
    Behind(Duration),
    /// The system clock is no longer behind.
    CaughtUp,
}

impl Clock {
    /// Starts at the time of the system clock.
    #[must_use]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            started_unix_nanos: AtomicU64::new(system_nanos()),
            is_behind: AtomicBool::new(false),
        }
    }

    /// Jumps forward to this time, unless it has passed.
    pub fn advance_to(&self, nanos: u64) {
        self.advance(nanos.saturating_sub(self.now()));
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let started = self.started_unix_nanos.load(Ordering::Relaxed);
        started.saturating_add(elapsed)
    }

    /// How far the system clock is behind this one.
    #[must_use]
    pub fn behind(&self) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(system_nanos()))
    }

    /// Compares with the system clock, logs changes, and counts jumps. One task calls this periodically.
    pub fn follow(&self, steps: &IntCounter) {
        match self.compare(system_nanos()) {
            None => {}
            Some(ClockEvent::Ahead(ahead)) => {
                steps.inc();
                tracing::warn!(?ahead, "system clock jumped forward; following it");
            }
            Some(ClockEvent::Behind(behind)) => tracing::warn!(
                ?behind,
                "system clock is behind the limiter's clock; keeping the limiter's clock"
            ),
            Some(ClockEvent::CaughtUp) => {
                tracing::info!("system clock caught up with the limiter's clock");
            }
        }
    }

    fn compare(&self, system: u64) -> Option<ClockEvent> {
        let now = self.now();
        let step = u64::try_from(STEP_MIN.as_nanos()).unwrap_or(u64::MAX);
        let ahead = system.saturating_sub(now);
        if ahead > step {
            self.is_behind.store(false, Ordering::Relaxed);
            self.advance(ahead);
            return Some(ClockEvent::Ahead(Duration::from_nanos(ahead)));
        }
        let behind = now.saturating_sub(system);
        let is_behind = behind > step;
        let was_behind = self.is_behind.swap(is_behind, Ordering::Relaxed);
        match (was_behind, is_behind) {
            (false, true) => Some(ClockEvent::Behind(Duration::from_nanos(behind))),
            (true, false) => Some(ClockEvent::CaughtUp),
            _ => None,
        }
    }

    fn advance(&self, nanos: u64) {
        // Cannot overflow: the sum is a time of the system clock or of the restored state.
        let started = &self.started_unix_nanos;
        started.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Converts to nanoseconds since 1970, clamped to the range of `u64`.
pub(super) fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond().max(0)).unwrap_or(u64::MAX)
}

/// Formats a time for responses (RFC 3339).
pub(super) fn timestamp(nanos: u64) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(time) => format!("{time:.9}"),
        Err(_) => "9999-12-31T23:59:59.999999999Z".to_owned(),
    }
}

fn system_nanos() -> u64 {
    unix_micros().saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn system_clock_is_followed_forward_but_not_back() {
        let clock = Clock::start();
        let start = clock.now();
        assert_eq!(clock.compare(start), None);
        assert_eq!(clock.compare(start + 900_000_000), None);
        assert!(clock.now() < start + HOUR, "a step below a second");
        let found = clock.compare(start + HOUR);
        assert!(matches!(found, Some(ClockEvent::Ahead(by)) if by > STEP_MIN));
        let after = clock.now();
        assert!((start + HOUR..start + 2 * HOUR).contains(&after));
        // Each change is reported once.
        let found = clock.compare(start);
        assert!(matches!(found, Some(ClockEvent::Behind(by)) if by >= Duration::from_nanos(HOUR)));
        assert_eq!(clock.compare(start), None);
        assert!(clock.now() >= after);
        assert_eq!(clock.compare(clock.now()), Some(ClockEvent::CaughtUp));
        assert_eq!(clock.compare(clock.now()), None);
    }

    #[test]
    fn advance_to_never_sets_the_clock_back() {
        let clock = Clock::start();
        let later = clock.now() + HOUR;
        clock.advance_to(later);
        assert!(clock.now() >= later);
        clock.advance_to(0);
        assert!(clock.now() >= later);
    }
}
