//! The wall clock: the clock of this host, or a manual clock in tests.

use std::time::Duration;

use jiff::Timestamp;
use proto::units::UnixMicros;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// Maximum sleep, because the host's clock may be set at any time.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// A wall clock. Clones share their time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The clock of this host.
    System,
    /// A clock that advances only when it is set.
    Manual(ManualClock),
}

/// A clock that is set explicitly.
#[derive(Debug, Clone)]
pub struct ManualClock(watch::Sender<Timestamp>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(watch::Sender::new(now))
    }

    /// Sets the clock forward or back, and wakes all waiters.
    pub fn set(&self, now: Timestamp) {
        self.0.send_replace(now);
    }

    /// Sets the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Manual(clock) => *clock.0.borrow(),
        }
    }

    /// The time.
    pub fn unix_micros(&self) -> UnixMicros {
        unix_micros(self.now())
    }

    /// Waits until `until`, or until the clock is set to a time other than `seen`. May return early: callers must read the
    /// clock again.
    pub async fn wait(&self, seen: Timestamp, until: Timestamp) {
        match self {
            Self::System => {
                let remaining = Duration::try_from(until.duration_since(Timestamp::now()));
                sleep(remaining.unwrap_or_default().min(SLEEP_MAX)).await;
            }
            Self::Manual(clock) => {
                let mut time = clock.0.subscribe();
                let changed = time.wait_for(|now| *now != seen || *now >= until);
                changed.await.expect("the clock is borrowed");
            }
        }
    }
}

/// The time of this host's clock.
pub fn now() -> UnixMicros {
    UnixMicros(runtime::unix_micros())
}

/// A time; 0 if it is before the Unix epoch.
pub(crate) fn unix_micros(at: Timestamp) -> UnixMicros {
    UnixMicros(u64::try_from(at.as_microsecond()).unwrap_or_default())
}

/// Compensates jumps of the host's clock.
#[derive(Debug)]
pub(crate) struct ClockJumps {
    started: (UnixMicros, Instant),
    latest: (UnixMicros, Instant),
}

impl ClockJumps {
    /// Starts with a clock that shows `now` at `at`.
    pub(crate) fn new(now: UnixMicros, at: Instant) -> Self {
        let started = (now, at);
        let latest = started;
        Self { started, latest }
    }

    /// The time when the clock shows `now` at `at`. If the clock was set back, the previous time continues.
    ///
    /// Used to clamp producers' times: a clock set back by an hour would make every producer seem an hour ahead.
    pub(crate) fn steady(&mut self, now: UnixMicros, at: Instant) -> UnixMicros {
        let steady = now.max(extrapolate(self.latest, at));
        self.latest = (steady, at);
        steady
    }

    /// The earlier of the clock's time and the initial time plus the time since then.
    ///
    /// Used for expiry, which is irreversible: a clock that is set ahead must not expire cookies.
    pub(crate) fn earlier(&self, now: UnixMicros, at: Instant) -> UnixMicros {
        now.min(extrapolate(self.started, at))
    }
}

/// The time at `at` of a clock that showed `time` at `then`.
pub(crate) fn extrapolate((time, then): (UnixMicros, Instant), at: Instant) -> UnixMicros {
    let elapsed = at.saturating_duration_since(then).as_micros();
    time.after(u64::try_from(elapsed).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in seconds.
    fn secs(secs: u64) -> UnixMicros {
        UnixMicros(secs * 1_000_000)
    }

    #[test]
    fn steady_clock_continues_when_the_host_clock_is_set_back() {
        let start = Instant::now();
        let mut clock = ClockJumps::new(secs(10), start);
        for (elapsed, shown, steady) in [
            (1, 11, 11),
            (2, 3, 12),
            (3, 4, 13),
            (4, 90, 90),
            (5, 14, 91),
        ] {
            let at = start + Duration::from_secs(elapsed);
            assert_eq!(clock.steady(secs(shown), at), secs(steady), "{elapsed}");
        }
    }

    #[test]
    fn earlier_clock_ignores_a_host_clock_set_ahead() {
        let start = Instant::now();
        let clock = ClockJumps::new(secs(10), start);
        for (elapsed, shown, earlier) in [(1, 90, 11), (2, 12, 12), (3, 3, 3), (4, 90, 14)] {
            let at = start + Duration::from_secs(elapsed);
            assert_eq!(clock.earlier(secs(shown), at), secs(earlier), "{elapsed}");
        }
    }

    #[tokio::test]
    async fn setting_the_clock_wakes_waiters() {
        let start: Timestamp = "2026-03-10T12:00:00Z".parse().unwrap();
        let hour = Duration::from_secs(3600);
        let manual = ManualClock::new(start);
        let clock = Clock::Manual(manual.clone());
        let waits = async {
            clock.wait(start, start + 2 * hour).await;
            clock.now()
        };
        let sets = async { manual.advance(hour) };
        let (woke_at, ()) = tokio::join!(waits, sets);
        assert_eq!(woke_at, start + hour);
        manual.set(start - hour);
        clock.wait(start, start + hour).await;
        assert_eq!(clock.now(), start - hour, "set before the wait");
        clock.wait(start - hour, start - hour).await;
    }
}
