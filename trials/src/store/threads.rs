//! The threads of the writers, and the rate at which they write.

use std::{num::NonZeroU32, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep_until},
};

/// A runtime whose threads share a name, for counting their CPU time. Neither the runtime nor its threads ever end, because
/// the CPU time of ended threads is lost.
pub(super) fn named_runtime(name: &'static str) -> Result<&'static Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name(name)
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()
        .context("failed to start threads")?;
    Ok(Box::leak(Box::new(runtime)))
}

/// Waits for the send time of the next cookie after `cookies` cookies; returns immediately without a rate.
pub(super) async fn wait_due(began: Instant, rate: Option<NonZeroU32>, cookies: u64) {
    if let Some(rate) = rate {
        let due = Duration::from_secs_f64(cookies as f64 / f64::from(rate.get()));
        sleep_until(began + due).await;
    }
}
