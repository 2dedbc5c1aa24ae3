//! Clock skew of a producer, estimated from arrival times. Does no I/O.

use std::time::Duration;

use tokio::time::Instant;

/// Interval of minima: the result covers one to two intervals.
const INTERVAL: Duration = Duration::from_secs(60);

/// Acceptance time of a chunk by its producer's clock, and receipt time by the clock of this host. Both in microseconds
/// since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Acceptance at the edge.
    pub accepted_unix_micros: u64,
    /// Receipt.
    pub received_unix_micros: u64,
}

/// The minimum time from acceptance to receipt in the current and the previous interval, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Skew {
    began: Option<Instant>,
    current: Option<i64>,
    previous: Option<i64>,
}

impl Arrival {
    /// Age of the chunk; zero if the producer's clock is ahead.
    pub fn age(self) -> Duration {
        let micros = self
            .received_unix_micros
            .saturating_sub(self.accepted_unix_micros);
        Duration::from_micros(micros)
    }

    /// The age in microseconds; negative if the producer's clock is ahead.
    fn signed_micros(self) -> i64 {
        let took = i128::from(self.received_unix_micros) - i128::from(self.accepted_unix_micros);
        i64::try_from(took).unwrap_or(if took < 0 { i64::MIN } else { i64::MAX })
    }
}

impl Skew {
    pub(super) fn record(&mut self, arrival: Arrival, now: Instant) {
        let micros = arrival.signed_micros();
        self.rotate(now);
        self.current = Some(self.current.map_or(micros, |min| min.min(micros)));
    }

    /// The minimum; `None` if no chunk was received in either interval.
    pub(super) fn minimum(&self, now: Instant) -> Option<i64> {
        let intervals = match self.passed(now) {
            passed if passed < INTERVAL => [self.current, self.previous],
            passed if passed < 2 * INTERVAL => [self.current, None],
            _ => [None, None],
        };
        intervals.into_iter().flatten().min()
    }

    /// Starts a new interval if the current one is over.
    fn rotate(&mut self, now: Instant) {
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

    /// An arrival this number of microseconds after acceptance.
    fn after(micros: i64) -> Arrival {
        Arrival {
            accepted_unix_micros: ACCEPTED,
            received_unix_micros: ACCEPTED.saturating_add_signed(micros),
        }
    }

    #[test]
    fn skew_is_the_minimum_of_all_arrivals() {
        let now = Instant::now();
        let mut skew = Skew::default();
        for micros in [900_000, 15_000, 40_000] {
            skew.record(after(micros), now);
        }
        assert_eq!(skew.minimum(now), Some(15_000));
    }

    #[test]
    fn arrivals_expire_after_two_intervals() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut skew = Skew::default();
        assert_eq!(skew.minimum(start), None);
        skew.record(after(-5), start);
        skew.record(after(7), at(61));
        assert_eq!(skew.minimum(at(119)), Some(-5));
        assert_eq!(skew.minimum(at(121)), Some(7));
        assert_eq!(skew.minimum(at(181)), None);
        skew.record(after(9), at(1_000));
        assert_eq!(skew.minimum(at(1_001)), Some(9));
    }
}
