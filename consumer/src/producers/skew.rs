//! What can be known of a producer's clock. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The least is over one to two of these.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a chunk was accepted by its producer's clock, and received by ours, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// At the edge.
    pub accepted_unix_micros: u64,
    /// Here.
    pub received_unix_micros: u64,
}

/// The least time from accepted to received, in microseconds by two clocks, over the interval that runs and the one before.
#[derive(Debug, Default)]
pub(super) struct Skew {
    began: Option<Instant>,
    current: Option<i64>,
    previous: Option<i64>,
}

impl Arrival {
    /// How old the chunk was; nothing if the producer's clock is ahead.
    #[must_use]
    pub fn age(self) -> Duration {
        let micros = self
            .received_unix_micros
            .saturating_sub(self.accepted_unix_micros);
        Duration::from_micros(micros)
    }

    /// The same in microseconds, and less than nothing if the producer's clock is ahead.
    fn signed_micros(self) -> i64 {
        let took = i128::from(self.received_unix_micros) - i128::from(self.accepted_unix_micros);
        i64::try_from(took).unwrap_or(if took < 0 { i64::MIN } else { i64::MAX })
    }
}

impl Skew {
    pub(super) fn note(&mut self, arrival: Arrival, now: Instant) {
        let micros = arrival.signed_micros();
        self.turn(now);
        self.current = Some(self.current.map_or(micros, |least| least.min(micros)));
    }

    /// `None` when nothing was received in that time.
    pub(super) fn least(&self, now: Instant) -> Option<i64> {
        let intervals = match self.passed(now) {
            passed if passed < INTERVAL => [self.current, self.previous],
            passed if passed < 2 * INTERVAL => [self.current, None],
            _ => [None, None],
        };
        intervals.into_iter().flatten().min()
    }

    /// Begins the interval that `now` lies in.
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let passed = self.passed(now);
        if passed >= INTERVAL {
            let is_next = passed < 2 * INTERVAL;
            self.previous = self.current.take().filter(|_| is_next);
            self.began = Some(if is_next { began + INTERVAL } else { now });
        }
    }

    fn passed(&self, now: Instant) -> Duration {
        let began = self.began.unwrap_or(now);
        now.saturating_duration_since(began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: u64 = 1_700_000_000_000_000;

    /// It came so many microseconds after it was accepted, by two clocks.
    fn after(micros: i64) -> Arrival {
        Arrival {
            accepted_unix_micros: ACCEPTED,
            received_unix_micros: ACCEPTED.saturating_add_signed(micros),
        }
    }

    #[test]
    fn least_of_what_was_seen_counts_for_delay_only_adds_to_it() {
        let now = Instant::now();
        let mut skew = Skew::default();
        for micros in [900_000, 15_000, 40_000] {
            skew.note(after(micros), now);
        }
        assert_eq!(skew.least(now), Some(15_000));
    }

    #[test]
    fn what_is_two_intervals_old_is_forgotten_and_without_cookies_nothing_is_known() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut skew = Skew::default();
        assert_eq!(skew.least(start), None);
        skew.note(after(-5), start);
        skew.note(after(7), at(61));
        assert_eq!(skew.least(at(119)), Some(-5));
        assert_eq!(skew.least(at(121)), Some(7));
        assert_eq!(skew.least(at(181)), None);
        skew.note(after(9), at(1_000));
        assert_eq!(skew.least(at(1_001)), Some(9));
    }
}
