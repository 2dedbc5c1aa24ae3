//! The clock of the limits, in nanoseconds since the Unix epoch. It is monotonic.
//!
//! If the system clock is more than a second ahead, because it was set or the machine slept, this clock jumps forward
//! to it. Windows aligned to the clock thus match those of partners. If the system clock is set back, this clock keeps
//! running ahead of it. After a restart it is ahead by at most [`AHEAD_MAX`].

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use runtime::unix_micros;

/// Minimum difference at which the system clock is followed, or reported as behind.
const STEP_MIN: Duration = Duration::from_secs(1);

/// A restart continues the previous run's clock if that clock is ahead of the system clock by up to this duration. Without
/// this maximum, a system clock that was once a day ahead would shift aligned windows for a day.
pub const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A monotonic clock.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    started_unix_nanos: AtomicU64,
    is_behind: AtomicBool,
}

impl Clock {
    /// Starts at the time of the system clock.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            started_unix_nanos: AtomicU64::new(system_nanos()),
            is_behind: AtomicBool::new(false),
        }
    }

    /// Jumps forward to this time, unless it has passed.
    pub fn advance_to(&self, nanos: u64) {
        // Cannot overflow: the sum is a time of the system clock or of the restored state.
        let ahead = nanos.saturating_sub(self.now());
        self.started_unix_nanos.fetch_add(ahead, Ordering::Relaxed);
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let started = self.started_unix_nanos.load(Ordering::Relaxed);
        started.saturating_add(elapsed)
    }

    /// How far the system clock is behind this one.
    pub fn behind(&self) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(system_nanos()))
    }

    /// Compares with the system clock, follows it forward, and logs changes. One task calls this periodically.
    pub fn follow(&self) {
        self.compare(system_nanos());
    }

    fn compare(&self, system: u64) {
        let now = self.now();
        let [ahead, behind] = [(system, now), (now, system)]
            .map(|(later, earlier)| Duration::from_nanos(later.saturating_sub(earlier)));
        if ahead > STEP_MIN {
            self.is_behind.store(false, Ordering::Relaxed);
            self.advance_to(system);
            tracing::warn!(?ahead, "system clock jumped forward; following it");
            return;
        }
        let is_behind = behind > STEP_MIN;
        match (self.is_behind.swap(is_behind, Ordering::Relaxed), is_behind) {
            (false, true) => tracing::warn!(
                ?behind,
                "system clock is behind the limiter's clock; keeping the limiter's clock"
            ),
            (true, false) => tracing::info!("system clock caught up with the limiter's clock"),
            _ => {}
        }
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
        let compare = |system| {
            clock.compare(system);
            clock.is_behind.load(Ordering::Relaxed)
        };
        assert!(!compare(start + 900_000_000));
        assert!(clock.now() < start + HOUR, "a step below a second");
        assert!(!compare(start + HOUR));
        let after = clock.now();
        assert!((start + HOUR..start + 2 * HOUR).contains(&after));
        assert!(compare(start));
        assert!(compare(start));
        assert!((after..start + 2 * HOUR).contains(&clock.now()));
        assert!(!compare(clock.now()));
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
