//! What time it is, for whatever depends on the time of day: this machine's clock, or one that is set by hand.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// The longest sleep: the machine's clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// A source of the time of day. Clones show the same time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// This machine's.
    System,
    /// One that stands still until it is set.
    Manual(ManualClock),
}

/// A clock that is set by hand.
#[derive(Debug, Clone)]
pub struct ManualClock(watch::Sender<Timestamp>);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(watch::Sender::new(now))
    }

    /// Sets it, forward or back; anyone who waits for it wakes.
    pub fn set(&self, now: Timestamp) {
        self.0.send_replace(now);
    }

    /// Sets it forward.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

impl Clock {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Manual(clock) => *clock.0.borrow(),
        }
    }

    /// The time in microseconds since the Unix epoch.
    #[must_use]
    pub fn unix_micros(&self) -> u64 {
        unix_micros(self.now())
    }

    /// Waits until `until`, or less; at most until somebody sets the clock from `seen` to another time. Who wakes
    /// looks at the clock again.
    pub async fn wait(&self, seen: Timestamp, until: Timestamp) {
        match self {
            Self::System => {
                let left = Duration::try_from(until.duration_since(Timestamp::now()));
                sleep(left.unwrap_or_default().min(SLEEP_MAX)).await;
            }
            Self::Manual(clock) => {
                let mut shown = clock.0.subscribe();
                let set = shown.wait_for(|now| *now != seen || *now >= until);
                set.await.expect("the clock is held here");
            }
        }
    }
}

/// A moment in microseconds since the Unix epoch; 0 for any before it.
pub(crate) fn unix_micros(at: Timestamp) -> u64 {
    u64::try_from(at.as_microsecond()).unwrap_or_default()
}

/// Corrects this machine's clock where it is set back or ahead. Times are in microseconds since the Unix epoch.
#[derive(Debug)]
pub(crate) struct ClockJumps {
    started: (u64, Instant),
    latest: (u64, Instant),
}

impl ClockJumps {
    /// Of a clock that shows `unix_micros` at `at`.
    pub(crate) fn new(unix_micros: u64, at: Instant) -> Self {
        let started = (unix_micros, at);
        let latest = started;
        Self { started, latest }
    }

    /// The time when the clock shows `unix_micros` at `at`; when it is set back, goes on from where it was.
    ///
    /// For judging the clocks of others: measured by a clock that was set back by an hour, every producer's would be an hour
    /// ahead.
    pub(crate) fn steady(&mut self, unix_micros: u64, at: Instant) -> u64 {
        let steady = unix_micros.max(passed(self.latest, at));
        self.latest = (steady, at);
        steady
    }

    /// What the clock shows at `at` or, if that is earlier, what it showed at first and the time since.
    ///
    /// For what has expired and cannot be had again: a clock that is set ahead must not decide that.
    pub(crate) fn earlier(&self, unix_micros: u64, at: Instant) -> u64 {
        unix_micros.min(passed(self.started, at))
    }
}

/// What a clock shows at `at` that showed `unix_micros` then.
fn passed((unix_micros, then): (u64, Instant), at: Instant) -> u64 {
    let passed = at.saturating_duration_since(then).as_micros();
    unix_micros.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_clock_goes_on_when_the_machines_is_set_back() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut clock = ClockJumps::new(10_000_000, start);
        assert_eq!(clock.steady(11_000_000, start + second), 11_000_000);
        assert_eq!(clock.steady(3_000_000, start + 2 * second), 12_000_000);
        assert_eq!(clock.steady(4_000_000, start + 3 * second), 13_000_000);
        assert_eq!(clock.steady(90_000_000, start + 4 * second), 90_000_000);
        assert_eq!(clock.steady(14_000_000, start + 5 * second), 91_000_000);
    }

    #[test]
    fn earlier_clock_is_not_hastened_when_the_machines_is_set_ahead() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let clock = ClockJumps::new(10_000_000, start);
        assert_eq!(clock.earlier(90_000_000, start + second), 11_000_000);
        assert_eq!(clock.earlier(12_000_000, start + 2 * second), 12_000_000);
        assert_eq!(clock.earlier(3_000_000, start + 3 * second), 3_000_000);
        assert_eq!(clock.earlier(90_000_000, start + 4 * second), 14_000_000);
    }

    #[tokio::test]
    async fn setting_the_clock_wakes_all_who_wait() {
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
        assert_eq!(clock.now(), start - hour, "also when it was set before");
        clock.wait(start - hour, start - hour).await;
    }
}
