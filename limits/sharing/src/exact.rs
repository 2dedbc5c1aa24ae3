//! Exact limits: each decision is the server's, for all limits of a call at once. For small limits and quotas, at a call to the server each.
//!
//! All limits of a group are in one slot of a cluster. The server's clock counts, in microseconds. An answer takes no longer than its budget, and
//! after a few calls without one the server is not asked for a second (a circuit breaker): what holds meanwhile is for the caller to say. A
//! call that got no answer in time may have been counted all the same.
//!
//! Few questions are under way at a time, so that all of them can be answered within the budget: callers wait here for half of it at most, where
//! what is given up was not counted. A server that answers others meanwhile is not lost.
//!
//! Nothing is kept here of limits and keys: each call says the rules that it is under, so they may change at any time. The server keeps the state of a
//! key until nothing of it is used; what was used stays used, in requests, when a rule of the same name is another.

mod rule;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::rule::{
    ExactDecision, ExactRule, Operation, Outcome, RemainingQuota, UnsupportedLimit,
};
use crate::server::{Address, Breaker, ServerError};

/// The script that decides.
pub const SCRIPT: &str = include_str!("exact.lua");

/// The largest number that the server's arithmetic has every smaller one of.
const NUMBER_MAX: u64 = 1 << 52;

/// Most questions under way: so many of the slowest, of one to two milliseconds, take half of the usual budget.
const UNDER_WAY_MAX: usize = 16;

/// What is needed for exact limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Address,
    /// Whose limits these are.
    pub group: String,
    /// How long an answer may take.
    pub budget: Duration,
}

/// What a call asks of one rule. Names and keys become part of a key of the server: they should be bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRequest {
    /// The name of the rule: those of the same name and group are the same to all processes.
    pub name: Arc<str>,
    /// What it is.
    pub rule: ExactRule,
    /// Whose allowance it is.
    pub key: Arc<str>,
    /// How many requests the call is for.
    pub requests: u64,
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExactError {
    /// The server gave none in time, or is not there.
    #[error("the server of shared limits gives no answer")]
    Unavailable,
    /// It is there and answers others.
    #[error("the server of shared limits has too much to do")]
    Busy,
}

/// Decisions of a server.
#[derive(Debug)]
pub struct ExactLimits {
    config: Config,
    breaker: Breaker,
    /// Of questions that are under way.
    places: Arc<Semaphore>,
    /// Questions keep their places until they are answered, or the server had its time, also when nobody waits for them any more.
    questions: TaskTracker,
    replies: AtomicU64,
}

impl ExactLimits {
    /// Without a connection, which [`run`](Self::run) makes.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            breaker: Breaker::default(),
            places: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            questions: TaskTracker::new(),
            replies: AtomicU64::new(0),
        }
    }

    /// Keeps a connection until `stop`. Without one, all calls are [`Lost`](ExactError::Unavailable).
    pub async fn run(&self, stop: CancellationToken) {
        let Config {
            server,
            group,
            budget,
        } = &self.config;
        let keep = self.breaker.run(server, SCRIPT, group, *budget);
        stop.run_until_cancelled(keep).await;
    }

    /// Asks for a call under these rules: all of them count it, or none. It must not go for so long yet, whatever they say. What is asked of one rule for one
    /// key more than once is asked for together.
    ///
    /// # Errors
    /// When there is no answer within the budget: the call may have been counted, or not. It was not where it waited for its turn.
    pub async fn decide(
        &self,
        asks: &[RuleRequest],
        question: Operation,
        pause: Duration,
    ) -> Result<ExactDecision, ExactError> {
        let (began, budget) = (Instant::now(), self.config.budget);
        if !self.is_connected() {
            return Err(ExactError::Unavailable);
        }
        let place = timeout(budget / 2, Arc::clone(&self.places).acquire_owned()).await;
        let Some(link) = self.breaker.link() else {
            return Err(ExactError::Unavailable);
        };
        let Ok(Ok(place)) = place else {
            return Err(ExactError::Busy);
        };
        let answered = self.replies();
        let left = budget.saturating_sub(began.elapsed());
        let asked = merged(asks);
        let (keys, arguments) = self.question(asks, &asked, question, pause);
        let (asking, lost) = (link.clone(), ServerError::Timeout(budget));
        let answer = self.questions.spawn(async move {
            let _place = place;
            asking.run(&keys, &arguments, left).await
        });
        let answer = answer.await.unwrap_or(Err(lost));
        match answer.and_then(|values| answer_of(asks, &asked, &values)) {
            Ok(answer) => {
                self.breaker.heard();
                self.replies.fetch_add(1, Ordering::Relaxed);
                Ok(answer)
            }
            Err(error) if error.may_be_of_call() && self.replies() != answered => {
                Err(ExactError::Busy)
            }
            Err(error) => {
                self.breaker.missed(&link, error);
                Err(ExactError::Unavailable)
            }
        }
    }

    /// How many calls the server answered.
    #[must_use]
    pub fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Whether there is a server.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.breaker.link().is_some()
    }

    /// The keys and arguments of the script for what is asked.
    fn question(
        &self,
        asks: &[RuleRequest],
        asked: &[(usize, u64)],
        question: Operation,
        pause: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let key = |ask: &RuleRequest| {
            // The length tells where the name ends.
            let (group, name) = (&self.config.group, &ask.name);
            let length = name.len();
            format!("cookiesync:{{{group}}}:exact:{length}:{name}:{}", ask.key)
        };
        let keys = asked.iter().map(|(place, _)| key(&asks[*place])).collect();
        let rules = asked.iter().map(|(place, _)| asks[*place].rule);
        let mut arguments = question.arguments(rules, pause);
        for (place, requests) in asked {
            arguments.extend(asks[*place].rule.arguments(*requests));
        }
        (keys, arguments)
    }
}

/// The script's answer, by the places of the asks.
fn answer_of(
    asks: &[RuleRequest],
    asked: &[(usize, u64)],
    values: &[Value],
) -> Result<ExactDecision, ServerError> {
    let mut answer = ExactDecision::read(values)?;
    let place_of = |index: usize| asked.get(index).map(|(place, _)| *place);
    answer.binding = answer.binding.and_then(place_of);
    let lefts = asked.iter().zip(&answer.remaining);
    let left_of = |ask: &RuleRequest| {
        let mut lefts = lefts.clone();
        let found = lefts.find(|((place, _), _)| same(&asks[*place], ask));
        found.map(|(_, left)| *left)
    };
    answer.remaining = asks.iter().filter_map(left_of).collect();
    Ok(answer)
}

fn same(one: &RuleRequest, other: &RuleRequest) -> bool {
    (&one.name, &one.key) == (&other.name, &other.key)
}

/// The places of what is asked, each once, and for how many requests together.
fn merged(asks: &[RuleRequest]) -> Vec<(usize, u64)> {
    let mut all: Vec<(usize, u64)> = Vec::with_capacity(asks.len());
    for (place, ask) in asks.iter().enumerate() {
        match all.iter_mut().find(|(it, _)| same(&asks[*it], ask)) {
            Some((_, requests)) => *requests = requests.saturating_add(ask.requests),
            None => all.push((place, ask.requests)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use limits::{Algorithm, Alignment, Limit};

    use super::*;

    fn ask(key: &str, requests: u64) -> RuleRequest {
        let limit = Algorithm::token_bucket("1/s", 8).unwrap();
        RuleRequest {
            name: Arc::from("a"),
            rule: ExactRule::new(&limit.into()).unwrap(),
            key: Arc::from(key),
            requests,
        }
    }

    #[test]
    fn what_the_script_does_not_have_is_refused_by_name() {
        let second = Duration::from_secs(1);
        let rate = "1/s".parse().unwrap();
        let unfit = [
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
        for (algorithm, name) in unfit {
            assert_eq!(error(algorithm.into()), UnsupportedLimit::Algorithm(name));
        }
        let fine = Algorithm::token_bucket("1/ns", 1).unwrap();
        assert_eq!(error(fine.into()), UnsupportedLimit::Nanoseconds);
        let large = Algorithm::token_bucket("1/3000days", 100).unwrap();
        assert_eq!(error(large.into()), UnsupportedLimit::Numbers);
        let window = Algorithm::FixedWindow {
            limit: 1,
            window: second,
            aligned: Alignment::Clock,
        };
        let counting = Limit {
            count_refused: true,
            ..window.into()
        };
        assert_eq!(error(counting), UnsupportedLimit::CountRefused);
    }

    #[tokio::test]
    async fn without_a_server_there_is_no_answer() {
        let exact = ExactLimits::new(Config {
            server: Address::parse("redis://127.0.0.1:1").unwrap(),
            group: "test".to_owned(),
            budget: Duration::from_millis(50),
        });
        let asks = [ask("a", 1)];
        let answer = exact.decide(&asks, Operation::Peek, Duration::ZERO);
        assert_eq!(answer.await, Err(ExactError::Unavailable));
        assert_eq!((exact.replies(), exact.is_connected()), (0, false));
    }

    #[test]
    fn asks_of_one_key_are_one() {
        let asks = [ask("a", 1), ask("b", 2), ask("a", 2)];
        assert_eq!(merged(&asks), [(0, 3), (1, 2)]);
    }
}
