//! A token bucket.

use tokio::time::{Duration, Instant};

/// How often something may be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Between two times, in the long run.
    pub(crate) each: Duration,
    /// Times at once after a while without any.
    pub(crate) at_once: u32,
}

impl Rate {
    /// So many times a second.
    pub(crate) const fn per_second(times: u32, at_once: u32) -> Self {
        let each = Duration::from_nanos(1_000_000_000 / times as u64);
        Self { each, at_once }
    }
}

/// Tokens, kept as the time at which the bucket will be full again.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.rate.each;
        let is_there = full_at - now <= self.rate.each * self.rate.at_once;
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
        let mut bucket = Bucket::full(rate, began);
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
        // What is refused costs nothing.
        check(
            rate,
            &[0.0, 0.0, 0.0, 0.05, 0.05, 0.11, 0.11],
            &[true, true, true, false, false, true, false],
        );
        // No more is saved than is given at once.
        check(rate, &[100.0; 4], &yes_yes_yes_no);
    }
}
