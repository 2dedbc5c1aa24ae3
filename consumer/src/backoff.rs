//! Exponential backoff with jitter, by default from 50 ms to 2 s.

use std::time::Duration;

const DELAY_MIN: Duration = Duration::from_millis(50);

/// Default maximum delay.
pub const DELAY_MAX: Duration = Duration::from_secs(2);

/// Delays between attempts. Reset it after progress, not after a mere connection.
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
    /// Delays from `min` to `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        let next = min;
        Self { min, next, max }
    }

    /// Returns the next delay, and doubles the following one up to the maximum.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        jittered(delay)
    }

    /// Sets the next delay to the minimum.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// A random value between half of `delay` and `delay`, so that processes do not retry simultaneously.
pub fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_until_reset() {
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
