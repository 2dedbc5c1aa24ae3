//! How fast the store is now, which limits how many recovered cookies a live cookie can wait for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Maximum time to write a batch that recovered cookies fill. A live cookie waits for the current batch and for its own, which together
/// take no longer than half of the default flush interval.
const WRITE_TIME: Duration = Duration::from_millis(50);

/// Bounds of the number of cookies: fewer are not written faster, and more are flushed in any case.
const COOKIES_MIN: usize = 100;
const COOKIES_MAX: usize = 5_000;

/// Number of cookies that the store writes in 50 ms, as last measured; clones share it.
#[derive(Debug, Clone)]
pub(super) struct WriteRate(Arc<AtomicUsize>);

impl Default for WriteRate {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(COOKIES_MIN)))
    }
}

impl WriteRate {
    /// Records that a batch was written. Smaller batches show only the minimum time of a write.
    pub(super) fn wrote(&self, cookies: usize, took: Duration) {
        let before = self.cookies();
        if cookies < before.min(COOKIES_MAX) / 2 && took < WRITE_TIME {
            return;
        }
        // At most doubled, so that one measurement does not admit a batch that takes seconds.
        let in_time = cookies as f64 * WRITE_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let max = before.saturating_mul(2).min(COOKIES_MAX);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and limited"
        )]
        let cookies = in_time.min(max as f64) as usize;
        self.0.store(cookies.max(COOKIES_MIN), Relaxed);
    }

    pub(super) fn cookies(&self) -> usize {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_follows_the_speed_of_the_store() {
        let rate = WriteRate::default();
        let expected = [
            // A fast store: doubled up to the maximum.
            (100, 1, 200),
            (200, 1, 400),
            (5_000, 1, 800),
            (5_000, 1, 1_600),
            (5_000, 1, 3_200),
            (5_000, 25, 5_000),
            // A small batch shows nothing, unless it is slow.
            (10, 10, 5_000),
            (10, 200, COOKIES_MIN),
            (100, 25, 200),
            // A slow store: at once.
            (5_000, 1_000, 250),
            (250, 50, 250),
        ];
        for (cookies, millis, after) in expected {
            rate.wrote(cookies, Duration::from_millis(millis));
            assert_eq!(rate.cookies(), after, "{cookies} cookies in {millis} ms");
        }
    }
}
