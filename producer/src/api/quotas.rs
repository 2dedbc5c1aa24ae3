//! How many requests and rows each token may send.
//!
//! A request needs a free slot of its token, and its token must not be in debt for rows. Rows are counted as they arrive, so
//! a request that began is never stopped halfway: its rows put its token in debt, and later requests are rejected until that
//! is paid off.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use limits::{Algorithm, Decision, Demand, LimitId, Limits, Refusal};

use super::problem::{Kind, Problem};

/// Longest debt: a request has at most 100,000 rows.
const DEBT_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(super) struct Quotas {
    began: Instant,
    limits: Mutex<Limits<String>>,
    requests: LimitId,
    rows: LimitId,
    rows_burst: u64,
}

impl Quotas {
    /// Limits of each token, with bursts of one second.
    pub(super) fn new(requests_per_second: u64, rows_per_second: u64) -> anyhow::Result<Self> {
        let mut limits = Limits::new(2 * runtime::token::TOKENS_MAX);
        let mut add = |rate: u64| {
            let bucket = Algorithm::token_bucket(&format!("{rate}/s"), rate)?;
            anyhow::Ok(limits.add(bucket)?)
        };
        let (requests, rows) = (add(requests_per_second)?, add(rows_per_second)?);
        Ok(Self {
            began: Instant::now(),
            limits: Mutex::new(limits),
            requests,
            rows,
            rows_burst: rows_per_second,
        })
    }

    /// Admits a request of the token `name`.
    ///
    /// # Errors
    /// 429, when the token is over its rate of requests or in debt for rows.
    pub(super) fn request(&self, name: &str) -> Result<(), Problem> {
        for (limit, what) in [(self.rows, "rows"), (self.requests, "requests")] {
            if let Decision::Refused { reason, .. } = self.reserve(limit, name, 1, Duration::ZERO) {
                let wait = match reason {
                    Refusal::Wait { retry_after } => retry_after,
                    _ => Duration::from_secs(1),
                };
                let detail = format!("too many {what} for this token");
                return Err(Problem::new(Kind::TooMany, detail).retry_after(wait.as_secs() + 1));
            }
        }
        Ok(())
    }

    /// Counts rows of the token `name`.
    pub(super) fn rows(&self, name: &str, mut rows: u64) {
        while rows > 0 {
            let part = rows.min(self.rows_burst);
            self.reserve(self.rows, name, part, DEBT_MAX);
            rows -= part;
        }
    }

    fn reserve(&self, limit: LimitId, name: &str, requests: u64, max_wait: Duration) -> Decision {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let demand = Demand {
            limit,
            key: name.to_owned(),
            requests,
        };
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.reserve(&[demand], now, max_wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_over_its_rate_of_requests_is_rejected_and_no_other() {
        let quotas = Quotas::new(2, 1_000).unwrap();
        assert!(quotas.request("a").is_ok() && quotas.request("a").is_ok());
        assert!(quotas.request("a").is_err() && quotas.request("b").is_ok());
    }

    #[test]
    fn token_in_debt_for_rows_is_rejected() {
        let quotas = Quotas::new(100, 1_000).unwrap();
        quotas.rows("a", 900);
        assert!(quotas.request("a").is_ok());
        quotas.rows("a", 100_000);
        assert!(quotas.request("a").is_err() && quotas.request("b").is_ok());
    }
}
