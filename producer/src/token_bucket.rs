//! A token bucket.

use tokio::time::{Duration, Instant};

/// How often something may happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// The time between two events in the long run.
    pub(crate) interval: Duration,
    /// The most events at once after a quiet time.
    pub(crate) burst: u32,
}

impl Rate {
    /// This many times a second.
    pub(crate) const fn per_second(times: u32, burst: u32) -> Self {
        let interval = Duration::from_nanos(1_000_000_000 / times as u64);
        Self { interval, burst }
    }
}

/// A bucket of tokens, stored as the time at which it will be full again.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    full_at: Instant,
}

impl TokenBucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.rate.interval;
        let is_there = full_at - now <= self.rate.interval * self.rate.burst;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rate: Rate, seconds: &[f64], expected: &[bool]) {
        let began = Instant::now();
        let mut bucket = TokenBucket::full(rate, began);
        let taken: Vec<_> = seconds
            .iter()
            .map(|at| bucket.take(began + Duration::from_secs_f64(*at)))
            .collect();
        assert_eq!(taken, expected, "{rate:?} at {seconds:?}");
    }

    #[test]
    fn bucket_gives_a_burst_and_then_its_rate() {
        let rate = Rate::per_second(10, 3);
        let yes_yes_yes_no = [true, true, true, false];
        check(rate, &[0.0; 4], &yes_yes_yes_no);
        // A refusal costs no token.
        check(
            rate,
            &[0.0, 0.0, 0.0, 0.05, 0.05, 0.11, 0.11],
            &[true, true, true, false, false, true, false],
        );
        // No more is saved than one burst.
        check(rate, &[100.0; 4], &yes_yes_yes_no);
    }
}
