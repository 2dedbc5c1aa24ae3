//! Rate limits for clients of the ports: token buckets on the monotonic clock.

use std::{hash::Hash, time::Duration};

use limits::{Algorithm, Decision, Demand, LimitId, Limits, Refusal};
use parking_lot::Mutex;
use tokio::time::Instant;

/// A rate and its burst.
pub(crate) type Rate = (&'static str, u64);

/// Limiters for `N` rates, each with one token bucket per key.
#[derive(Debug)]
pub(crate) struct RateLimits<K, const N: usize> {
    started: Instant,
    limits: Mutex<Limits<K>>,
    ids: [LimitId; N],
}

impl<K: Hash + Eq + Clone, const N: usize> RateLimits<K, N> {
    /// Tracks up to `keys_max` keys.
    ///
    /// # Panics
    /// If a rate is invalid.
    pub(crate) fn new(rates: [(impl AsRef<str>, u64); N], keys_max: usize) -> Self {
        let mut limits = Limits::new(keys_max);
        let ids = rates.map(|(rate, burst)| {
            let bucket = Algorithm::token_bucket(rate.as_ref(), burst);
            let limit = bucket.and_then(|bucket| limits.add(bucket));
            limit.expect("a valid rate")
        });
        Self {
            started: Instant::now(),
            limits: Mutex::new(limits),
            ids,
        }
    }

    /// Charges requests to all of these rates, given by index, or to none. Requests may be charged up to `max_wait` ahead;
    /// returns the time to wait for them.
    ///
    /// # Errors
    /// When to retry.
    pub(crate) fn charge(
        &self,
        rates: &[(usize, K)],
        requests: u64,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Duration, Duration> {
        let demand = |(rate, key): &(usize, K)| Demand {
            limit: self.ids[*rate],
            key: key.clone(),
            requests,
        };
        let demands: Vec<_> = rates.iter().map(demand).collect();
        let nanos = now.saturating_duration_since(self.started).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        match self.limits.lock().reserve(&demands, nanos, max_wait) {
            Decision::Now => Ok(Duration::ZERO),
            Decision::At { at, .. } => Ok(Duration::from_nanos(at.saturating_sub(nanos))),
            Decision::Refused { reason, .. } => Err(match reason {
                Refusal::Wait { retry_after } => retry_after,
                _ => Duration::from_secs(1),
            }),
        }
    }
}
