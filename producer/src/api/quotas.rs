//! Limits of requests and rows per token.
//!
//! A request is admitted if its token is below its request rate and has no overdraft of rows. Rows are counted as they
//! arrive, so an admitted request is never stopped: its rows can overdraw the token's quota, and later requests are
//! rejected until the quota has recovered.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Config,
    problem::{Problem, TOO_MANY},
};
use crate::rate_limits::RateLimits;

/// Maximum overdraft: a request has at most 100,000 rows.
const OVERDRAFT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Limits of requests and rows, by the name of the token.
#[derive(Debug)]
pub(super) struct Quotas {
    limits: RateLimits<String, 2>,
    rows_burst: u64,
}

impl Quotas {
    /// Creates the limits of each token, with bursts of one second.
    pub(super) fn new(config: Config) -> Self {
        let rates = [config.requests_per_second, config.rows_per_second];
        let rates = rates.map(|rate| (format!("{rate}/s"), rate));
        Self {
            limits: RateLimits::new(rates, 2 * runtime::token::TOKENS_MAX),
            rows_burst: config.rows_per_second,
        }
    }

    /// Admits a request of the token `name`.
    ///
    /// # Errors
    /// 429, when the token exceeds its request rate or has overdrawn its row quota.
    pub(super) fn request(&self, name: &str) -> Result<(), Problem> {
        let demands = [0, 1].map(|rate| (rate, name.to_owned()));
        let now = Instant::now();
        let charged = self.limits.charge(&demands, 1, now, Duration::ZERO);
        charged.map_err(|exceeded| {
            let what = ["requests", "rows"][exceeded.rate];
            let detail = format!("too many {what} for this token");
            Problem::new(TOO_MANY, detail).retry_after(exceeded.retry_after.as_secs() + 1)
        })
    }

    /// Counts rows of the token `name`.
    pub(super) fn rows(&self, name: &str, mut rows: u64) {
        let rate = [(1, name.to_owned())];
        while rows > 0 {
            // More than a burst would be refused.
            let part = rows.min(self.rows_burst);
            let now = Instant::now();
            self.limits.charge(&rate, part, now, OVERDRAFT_MAX).ok();
            rows -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(requests_per_second: u64, rows_per_second: u64) -> Quotas {
        Quotas::new(Config {
            deletion_confirmations: 0,
            requests_per_second,
            rows_per_second,
        })
    }

    #[test]
    fn token_over_its_rate_of_requests_is_rejected_and_no_other() {
        let quotas = quotas(2, 1_000);
        assert!(quotas.request("a").is_ok() && quotas.request("a").is_ok());
        assert!(quotas.request("a").is_err() && quotas.request("b").is_ok());
    }

    #[test]
    fn token_in_debt_for_rows_is_rejected() {
        let quotas = quotas(100, 1_000);
        quotas.rows("a", 900);
        assert!(quotas.request("a").is_ok());
        quotas.rows("a", 100_000);
        assert!(quotas.request("a").is_err() && quotas.request("b").is_ok());
    }
}
