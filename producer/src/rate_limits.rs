//! Rate limits for clients of the ports: token buckets on the monotonic clock.

use std::{
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use limits::{Algorithm, Decision, Demand, LimitId, Limits, Refusal};
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

/// The first rate that is exceeded, and when to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// Index of the rate.
    pub(crate) rate: usize,
    pub(crate) retry_after: Duration,
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
    pub(crate) fn charge(
        &self,
        rates: &[(usize, K)],
        requests: u64,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Duration, Exceeded> {
        let demand = |(rate, key): &(usize, K)| Demand {
            limit: self.ids[*rate],
            key: key.clone(),
            requests,
        };
        let demands: Vec<_> = rates.iter().map(demand).collect();
        let nanos = now.saturating_duration_since(self.started).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let (limit, reason) = match limits.reserve(&demands, nanos, max_wait) {
            Decision::Now => return Ok(Duration::ZERO),
            Decision::At { at, .. } => return Ok(Duration::from_nanos(at.saturating_sub(nanos))),
            Decision::Refused { limit, reason } => (limit, reason),
        };
        Err(Exceeded {
            rate: self.ids.iter().position(|id| *id == limit).unwrap_or(0),
            retry_after: match reason {
                Refusal::Wait { retry_after } => retry_after,
                _ => Duration::from_secs(1),
            },
        })
    }
}
