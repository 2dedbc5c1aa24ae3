//! Exact limits: the server decides on every call, under all limits of the call in one script run. Use them for small
//! limits and quotas: each call costs one request to the server.
//!
//! Time is the server's clock in microseconds. A decision takes at most [`Config::budget`]. After a few calls without a
//! reply, a circuit breaker stops requests for a second. During this second, callers decide without the server. A call
//! whose reply is late may have been counted.
//!
//! The number of requests in flight is bounded, so that the server can process all of them within the budget. A caller waits for up to
//! half of the budget to send its request; if it cannot, the call is not counted. A server that replies to other calls counts as available.
//!
//! This module stores no limits or keys: each call contains its rules, so they can change at any time. The server stores the state of a
//! key as long as the key has usage. If a rule changes but keeps its name, the number of used requests is carried over.

mod rule;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::rule::{ExactDecision, ExactRule, Operation, Outcome, RemainingQuota};
use crate::server::{Address, Breaker, ServerError};

/// The script that decides on calls.
pub const SCRIPT: &str = include_str!("exact.lua");

/// Maximum number in the script: Lua represents all smaller whole numbers exactly.
const NUMBER_MAX: u64 = 1 << 52;

/// Maximum number of requests in flight. This number of the slowest decisions, 1 to 2 ms each, takes half of the
/// default budget.
const IN_FLIGHT_MAX: usize = 16;

/// Configuration of exact limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Address,
    /// Name of the group. All processes of the same group share their limits.
    pub group: String,
    /// Maximum time for a decision.
    pub budget: Duration,
}

/// The requests of a call under one rule. Name and key become part of a key on the server, so their lengths should be bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRequest {
    /// Name of the rule, shared by all processes of the group.
    pub name: Arc<str>,
    /// The rule.
    pub rule: ExactRule,
    /// The key; each key has its own quota.
    pub key: Arc<str>,
    /// Number of requests.
    pub requests: u64,
}

/// The reason why there is no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExactError {
    /// The server did not respond in time, or is not connected.
    Unavailable,
    /// The server responds to other calls; this one got no permit or no reply in time.
    Busy,
}

/// Limits that a server decides on.
#[derive(Debug)]
pub struct ExactLimits {
    config: Config,
    breaker: Breaker,
    /// Permits of requests in flight.
    permits: Arc<Semaphore>,
    /// Requests keep their permits until the reply or the end of the budget, even if the caller is gone.
    requests: TaskTracker,
    replies: AtomicU64,
}

impl ExactLimits {
    /// Limits without a connection. [`run`](Self::run) connects.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            breaker: Breaker::default(),
            permits: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            requests: TaskTracker::new(),
            replies: AtomicU64::new(0),
        }
    }

    /// Keeps a connection to the server until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let it = &self.config;
        let keep = self.breaker.run(&it.server, SCRIPT, &it.group, it.budget);
        stop.run_until_cancelled(keep).await;
    }

    /// Decides on a call: all rules count it, or none. Its slot is at least `pause` from now. No two requests may have the same rule and
    /// key.
    ///
    /// # Errors
    /// If there is no reply within the budget. The call may have been counted, unless it never got a permit.
    pub async fn decide(
        &self,
        requests: &[RuleRequest],
        operation: Operation,
        pause: Duration,
    ) -> Result<ExactDecision, ExactError> {
        let (began, budget) = (Instant::now(), self.config.budget);
        if !self.is_connected() {
            return Err(ExactError::Unavailable);
        }
        let permit = timeout(budget / 2, Arc::clone(&self.permits).acquire_owned()).await;
        let Some(link) = self.breaker.link() else {
            return Err(ExactError::Unavailable);
        };
        let Ok(Ok(permit)) = permit else {
            return Err(ExactError::Busy);
        };
        let replies = self.replies();
        let rest = budget.saturating_sub(began.elapsed());
        let (keys, arguments) = self.script_call(requests, operation, pause);
        let sender = link.clone();
        let reply = self.requests.spawn(async move {
            let _permit = permit;
            sender.run(&keys, &arguments, rest).await
        });
        let reply = reply.await.unwrap_or(Err(ServerError::Timeout(budget)));
        match reply.and_then(|values| ExactDecision::read(&values)) {
            Ok(decision) => {
                self.breaker.record_success();
                self.replies.fetch_add(1, Ordering::Relaxed);
                Ok(decision)
            }
            Err(error) if error.may_concern_one_call() && self.replies() != replies => {
                Err(ExactError::Busy)
            }
            Err(error) => {
                self.breaker.record_failure(&link, &error);
                Err(ExactError::Unavailable)
            }
        }
    }

    /// Number of replies from the server.
    pub fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Whether the server is connected.
    pub fn is_connected(&self) -> bool {
        self.breaker.link().is_some()
    }

    /// The keys and arguments of the script.
    fn script_call(
        &self,
        requests: &[RuleRequest],
        operation: Operation,
        pause: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let key = |it: &RuleRequest| {
            // The length makes the end of the name unambiguous.
            let (group, name, key) = (&self.config.group, &it.name, &it.key);
            let length = name.len();
            format!("cookiesync:{{{group}}}:exact:{length}:{name}:{key}")
        };
        let mut arguments = operation.arguments(requests.iter().map(|it| it.rule), pause);
        for it in requests {
            arguments.extend(it.rule.arguments(it.requests));
        }
        (requests.iter().map(key).collect(), arguments)
    }
}

#[cfg(test)]
mod tests {
    use limits::{Algorithm, Alignment, Limit};

    use super::*;

    #[test]
    fn unsupported_algorithms_are_rejected_by_name() {
        let second = Duration::from_secs(1);
        let rate = "1/s".parse().unwrap();
        let unsupported = [
            (
                Algorithm::SlidingLog {
                    limit: 1,
                    window: second,
                },
                "sliding_log",
            ),
            (
                Algorithm::SlidingCounter {
                    limit: 1,
                    window: second,
                },
                "sliding_counter",
            ),
            (
                Algorithm::WarmUp {
                    rate,
                    warm_up: second,
                },
                "warm_up",
            ),
            (
                Algorithm::SteppedBucket { rate, burst: 1 },
                "stepped_bucket",
            ),
            (Algorithm::LeakyBucket { rate, capacity: 1 }, "leaky_bucket"),
            (
                Algorithm::FixedWindow {
                    limit: 1,
                    window: second,
                    aligned: Alignment::FirstCall,
                },
                "fixed_window",
            ),
        ];
        let error = |limit: Limit| ExactRule::new(&limit).unwrap_err();
        for (algorithm, name) in unsupported {
            assert!(error(algorithm.into()).contains(name));
        }
        let nanoseconds = Algorithm::token_bucket("1/ns", 1).unwrap();
        assert!(error(nanoseconds.into()).contains("microseconds"));
        let large = Algorithm::token_bucket("1/3000days", 100).unwrap();
        assert!(error(large.into()).contains("burst"));
        let window = Algorithm::FixedWindow {
            limit: 1,
            window: second,
            aligned: Alignment::Clock,
        };
        let counting = Limit {
            count_refused: true,
            ..window.into()
        };
        assert!(error(counting).contains("count_refused"));
    }

    #[tokio::test]
    async fn call_fails_without_a_connection() {
        let exact = ExactLimits::new(Config {
            server: Address::parse("redis://127.0.0.1:1").unwrap(),
            group: "test".to_owned(),
            budget: Duration::from_millis(50),
        });
        let decision = exact.decide(&[], Operation::Peek, Duration::ZERO);
        assert_eq!(decision.await, Err(ExactError::Unavailable));
        assert_eq!((exact.replies(), exact.is_connected()), (0, false));
    }
}
