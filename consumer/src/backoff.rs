//! Growing, jittered delays between attempts: 50 ms to 2 s, or as is said.

use std::time::Duration;

const DELAY_MIN: Duration = Duration::from_millis(50);

/// The longest delay.
pub const DELAY_MAX: Duration = Duration::from_secs(2);

/// How long to wait before the next attempt. Reset it by progress, not by a mere connection.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    next: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(DELAY_MIN, DELAY_MAX)
    }
}

impl Backoff {
    /// Delays that begin at `min` and grow to `max`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        let next = min;
        Self { min, next, max }
    }

    /// The delay to wait now; the following one is twice as long, up to the longest.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        jittered(delay)
    }

    /// Starts from the shortest delay again.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// Between half of `delay` and all of it, so that many processes do not come back at the same moment.
#[must_use]
pub fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_longest_and_start_again_after_progress() {
        let mut backoff = Backoff::default();
        assert!(backoff.delay() <= DELAY_MIN);
        for _ in 0..20 {
            assert!(backoff.delay() >= DELAY_MIN);
        }
        assert!(backoff.delay() >= DELAY_MAX / 2);
        assert!(backoff.delay() <= DELAY_MAX);
        backoff.reset();
        assert!(backoff.delay() <= DELAY_MIN);
    }
}
