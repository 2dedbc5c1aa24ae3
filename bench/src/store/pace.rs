//! When each cookie is due, at a rate.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::{Instant, sleep_until};

/// The pace of one slice, from when it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    began: Instant,
    rate: Option<NonZeroU32>,
}

impl Pace {
    /// So many cookies a second, or as fast as it goes.
    pub(super) fn from_now(rate: Option<NonZeroU32>) -> Self {
        let began = Instant::now();
        Self { began, rate }
    }

    /// Waits until the cookie is due that comes after so many.
    pub(super) async fn wait_for(&self, cookies: u64) {
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(cookies as f64 / f64::from(rate.get()));
            sleep_until(self.began + due).await;
        }
    }
}
