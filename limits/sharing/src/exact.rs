//! Exact limits: each decision is the server's, for all limits of a call at once. For small limits and quotas, at a call to the server each.
//!
//! All limits of a group are in one slot of a cluster. The server's clock counts, in microseconds. A decision takes no longer than its budget: without an answer in
//! that time it is made here, by what [`OnLoss`] says, and after a few such calls the server is not asked for a second (a circuit breaker).
//!
//! What is decided here while the server is lost comes on top of what the server counted: see [`OnLoss::SafeShare`].

mod rule;

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use limits::{Algorithm, Decision, Demand, LimitId, Limits, Refusal};
use tokio_util::sync::CancellationToken;

use self::rule::Rule;
pub use self::rule::{Answer, Outcome, UnfitError, arguments};
use crate::server::{Address, Breaker, Link, ServerError};

/// The script that decides.
pub const SCRIPT: &str = include_str!("exact.lua");

/// The largest number that the server's arithmetic has every smaller one of.
const NUMBER_MAX: u64 = 1 << 52;

/// The longest key, in bytes: the server keeps it.
const KEY_BYTES_MAX: usize = 256;

/// Most keys that are remembered for when the server is lost.
const KEYS_MAX: usize = 100_000;

/// What holds while the server does not answer. Never everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// Each of so many processes decides for itself, by its part of each limit; what it was given before counts too. In a window in which the server was lost, all
    /// together may use up to a limit more than the server had counted.
    SafeShare(NonZero<u64>),
    /// Nothing goes.
    Refuse,
}

/// What is needed for exact limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub server: Address,
    /// Whose limits these are.
    pub group: String,
    /// How long a decision may take.
    pub budget: Duration,
    /// What holds without the server.
    pub on_loss: OnLoss,
}

/// What a call asks of one limit, by the number that [`Exact::new`] gave it: its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The limit.
    pub limit: usize,
    /// Whose.
    pub key: String,
    /// How many requests the call is for.
    pub requests: u64,
}

/// What becomes of a call, and of what it was told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How long until it may go; none when it may not.
    pub goes_after: Option<Duration>,
    /// Which limit decided, if one did.
    pub binding: Option<usize>,
    /// When it is worth asking again, if it may not go; none when it is for more requests than ever go at once, or nobody knows.
    pub retry_after: Option<Duration>,
    /// Whether the server decided.
    pub by_server: bool,
}

/// No server was asked, and nobody knows when it is worth asking again.
const REFUSED: Verdict = Verdict {
    goes_after: None,
    binding: None,
    retry_after: None,
    by_server: false,
};

/// Counts of decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the server.
    pub by_server: u64,
    /// Here, as the server was not there.
    pub without: u64,
}

/// The parts of limits that count without the server, and their numbers.
type Local = (Limits<(usize, String)>, Vec<LimitId>);

/// Limits that the server decides on.
#[derive(Debug)]
pub struct Exact {
    config: Config,
    /// Each with its name.
    rules: Vec<(String, Rule)>,
    /// What counts without the server.
    local: Mutex<Local>,
    began: Instant,
    began_unix_nanos: u64,
    breaker: Breaker,
    counts: [AtomicU64; 2],
}

impl Exact {
    /// Limits, by their places. Those of the same name and group are the same limit to all processes.
    ///
    /// # Errors
    /// With all that cannot be exact, and their places.
    pub fn new(
        config: Config,
        limits: &[(String, Algorithm)],
    ) -> Result<Self, Vec<(usize, UnfitError)>> {
        let mut mistakes = Vec::new();
        let (mut rules, mut numbers) = (Vec::new(), Vec::new());
        let mut local = Limits::new(KEYS_MAX);
        for (place, (name, algorithm)) in limits.iter().enumerate() {
            let parts = match config.on_loss {
                OnLoss::SafeShare(parts) => parts.get(),
                OnLoss::Refuse => 1,
            };
            let fitted =
                Rule::of(algorithm).and_then(|rule| Ok((rule, local.add(algorithm.part(parts)?)?)));
            match fitted {
                Ok((rule, number)) => {
                    rules.push((name.clone(), rule));
                    numbers.push(number);
                }
                Err(error) => mistakes.push((place, error)),
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            config,
            rules,
            local: Mutex::new((local, numbers)),
            began: Instant::now(),
            began_unix_nanos: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
            breaker: Breaker::default(),
            counts: Default::default(),
        })
    }

    /// Keeps a connection until `stop`. Decisions are made without it, too.
    pub async fn run(&self, stop: CancellationToken) {
        let keep = self
            .breaker
            .run(&self.config.server, SCRIPT, &self.config.group);
        stop.run_until_cancelled(keep).await;
    }

    /// Decides on a call: all of its limits count it, or none. It may wait for up to `horizon`. One with a key of more than 256 bytes does not go.
    ///
    /// # Panics
    /// When a limit has no such place.
    pub async fn decide(&self, asks: &[Ask], horizon: Duration) -> Verdict {
        let asks = merged(asks);
        if asks.iter().any(|ask| ask.key.len() > KEY_BYTES_MAX) {
            return REFUSED;
        }
        if let Some(link) = self.breaker.link() {
            match self.ask_server(&link, &asks, horizon).await {
                Ok(verdict) => {
                    self.breaker.heard();
                    self.counts[0].fetch_add(1, Ordering::Relaxed);
                    self.count_here(&asks, verdict);
                    return verdict;
                }
                Err(error) => self.breaker.missed(&link, error),
            }
        }
        self.counts[1].fetch_add(1, Ordering::Relaxed);
        self.decide_here(&asks, horizon)
    }

    /// How many decisions were whose.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let [by_server, without] = [0, 1].map(|it: usize| self.counts[it].load(Ordering::Relaxed));
        Counts { by_server, without }
    }

    /// Whether there is a server.
    #[must_use]
    pub fn has_server(&self) -> bool {
        self.breaker.link().is_some()
    }

    async fn ask_server(
        &self,
        link: &Link,
        asks: &[Ask],
        horizon: Duration,
    ) -> Result<Verdict, ServerError> {
        let key = |ask: &Ask| {
            let (name, rule) = &self.rules[ask.limit];
            // A limit that becomes of another kind counts anew; the length tells where the name ends.
            format!(
                "cookiesync:{{{}}}:exact:{}:{}:{name}:{}",
                self.config.group,
                rule.kind(),
                name.len(),
                ask.key
            )
        };
        let keys: Vec<String> = asks.iter().map(key).collect();
        let mut arguments = vec![horizon.as_micros().min(NUMBER_MAX.into()).to_string()];
        for ask in asks {
            let requests = ask.requests.min(NUMBER_MAX);
            arguments.extend(self.rules[ask.limit].1.arguments(requests));
        }
        let values = link.run(&keys, &arguments, self.config.budget).await?;
        let answer = Answer::read(&values)?;
        let binding = answer
            .binding
            .and_then(|place| asks.get(place))
            .map(|ask| ask.limit);
        let wait = Duration::from_micros(answer.at.saturating_sub(answer.now));
        let (goes_after, retry_after) = match answer.outcome {
            Outcome::Now | Outcome::At => (Some(wait), None),
            Outcome::Wait => (None, Some(Duration::from_micros(answer.retry_after))),
            Outcome::Many => (None, None),
        };
        Ok(Verdict {
            goes_after,
            binding,
            retry_after,
            by_server: true,
        })
    }

    fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.began_unix_nanos.saturating_add(elapsed)
    }

    /// What the server let go is used here too, should it get lost.
    fn count_here(&self, asks: &[Ask], verdict: Verdict) {
        if verdict.goes_after.is_none() || self.config.on_loss == OnLoss::Refuse {
            return;
        }
        let now = self.now();
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        let (limits, numbers) = &mut *local;
        for ask in asks {
            if limits.record(demand(numbers, ask), now, now).is_err() {
                // There is no room for this key: it will be refused without the server.
                return;
            }
        }
    }

    fn decide_here(&self, asks: &[Ask], horizon: Duration) -> Verdict {
        if self.config.on_loss == OnLoss::Refuse {
            return REFUSED;
        }
        let now = self.now();
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        let (limits, numbers) = &mut *local;
        let demands: Vec<_> = asks.iter().map(|ask| demand(numbers, ask)).collect();
        let decision = limits.reserve(&demands, now, horizon);
        let place = |rule: LimitId| numbers.iter().position(|it| *it == rule);
        match decision {
            Decision::Now => Verdict {
                goes_after: Some(Duration::ZERO),
                ..REFUSED
            },
            Decision::At { at, rule } => Verdict {
                goes_after: Some(Duration::from_nanos(at - now)),
                binding: place(rule),
                ..REFUSED
            },
            Decision::Refused { rule, why } => {
                let retry_after = match why {
                    Refusal::Wait { retry_after } => Some(retry_after),
                    Refusal::TooMany { .. } | Refusal::NoRoom => None,
                };
                Verdict {
                    binding: place(rule),
                    retry_after,
                    ..REFUSED
                }
            }
        }
    }
}

fn demand(numbers: &[LimitId], ask: &Ask) -> Demand<(usize, String)> {
    Demand {
        limit: numbers[ask.limit],
        key: (ask.limit, ask.key.clone()),
        requests: ask.requests,
    }
}

/// What is asked of one limit for one key more than once is asked for together, and nothing is not asked.
fn merged(asks: &[Ask]) -> Vec<Ask> {
    let mut all: Vec<Ask> = Vec::with_capacity(asks.len());
    for ask in asks.iter().filter(|ask| ask.requests > 0) {
        let same = all
            .iter_mut()
            .find(|it| (it.limit, &it.key) == (ask.limit, &ask.key));
        match same {
            Some(same) => same.requests = same.requests.saturating_add(ask.requests),
            None => all.push(ask.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use limits::{Aligned, WhenFull};

    use super::*;

    fn config(on_loss: OnLoss) -> Config {
        Config {
            server: Address::parse("redis://127.0.0.1:1").unwrap(),
            group: "test".to_owned(),
            budget: Duration::from_millis(50),
            on_loss,
        }
    }

    fn named(algorithm: Algorithm) -> [(String, Algorithm); 1] {
        [("a".to_owned(), algorithm)]
    }

    fn ask(key: &str, requests: u64) -> Ask {
        Ask {
            limit: 0,
            key: key.to_owned(),
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
            (
                Algorithm::LeakyBucket {
                    rate,
                    capacity: 1,
                    when_full: WhenFull::Queue,
                },
                "leaky_bucket",
            ),
            (
                Algorithm::FixedWindow {
                    limit: 1,
                    window: second,
                    aligned: Aligned::FirstCall,
                },
                "fixed_window",
            ),
        ];
        for (algorithm, name) in unfit {
            let error = Exact::new(config(OnLoss::Refuse), &named(algorithm)).unwrap_err();
            assert_eq!(error, [(0, UnfitError::Algorithm(name))]);
        }
        let fine = Algorithm::token_bucket("1/ns", 1).unwrap();
        assert_eq!(
            Exact::new(config(OnLoss::Refuse), &named(fine)).unwrap_err()[0].1,
            UnfitError::Nanoseconds
        );
        let large = Algorithm::token_bucket("1/3000days", 100).unwrap();
        assert_eq!(
            Exact::new(config(OnLoss::Refuse), &named(large)).unwrap_err()[0].1,
            UnfitError::Numbers
        );
    }

    #[tokio::test]
    async fn without_a_server_each_keeps_to_its_part_or_nothing_goes() {
        let four = NonZero::new(4).unwrap();
        let bucket = Algorithm::token_bucket("40/h", 8).unwrap();
        let exact = Exact::new(config(OnLoss::SafeShare(four)), &named(bucket)).unwrap();
        for expected in [true, true, false] {
            let verdict = exact.decide(&[ask("a", 1)], Duration::ZERO).await;
            assert_eq!(
                (verdict.goes_after.is_some(), verdict.by_server),
                (expected, false)
            );
        }
        assert_eq!(
            exact.counts(),
            Counts {
                by_server: 0,
                without: 3
            }
        );
        let exact = Exact::new(config(OnLoss::Refuse), &named(bucket)).unwrap();
        assert_eq!(
            exact.decide(&[ask("a", 1)], Duration::MAX).await.goes_after,
            None
        );
    }

    #[test]
    fn asks_of_one_key_are_one() {
        let asks = [ask("a", 1), ask("b", 0), ask("a", 2)];
        assert_eq!(merged(&asks), [ask("a", 3)]);
    }
}
