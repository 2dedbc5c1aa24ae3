//! Rules, operations and decisions in the format of the script.

use std::time::Duration;

use limits::{
    Algorithm, Alignment, Limit, default_step,
    rate::{Time, gcd},
};
use redis::Value;

use super::NUMBER_MAX;
use crate::server::{ServerError, number, text};

/// A limit in the format of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExactRule {
    /// A rate in lowest terms, with a burst.
    TokenBucket {
        /// Requests of the rate.
        requests: u64,
        /// Microseconds of the rate.
        micros: u64,
        /// Maximum number of requests of one call.
        burst: u64,
    },
    /// A window aligned to the clock.
    Window {
        /// Maximum number of requests.
        limit: u64,
        /// Length in microseconds.
        micros: u64,
    },
}

impl ExactRule {
    /// The rule of a limit.
    ///
    /// ```
    /// use limits::{Algorithm, rules::Rules};
    /// use limits_sharing::exact::ExactRule;
    ///
    /// let quota = Algorithm::token_bucket("50000/day", 100)?;
    /// assert_eq!(ExactRule::new(&quota.into()).unwrap().max_burst(), 100);
    /// let log = Rules::parse("[limits.a]\nrules = [{ id = 'r', rate = '9/s', algorithm = 'sliding_log' }]").unwrap();
    /// assert!(ExactRule::new(&log.limits[0].rules[0].limit).is_err());
    /// # Ok::<(), limits::RateError>(())
    /// ```
    ///
    /// # Errors
    /// If the limit cannot use exact mode.
    pub fn new(limit: &Limit) -> Result<Self, String> {
        if limit.count_refused {
            let what = "a limit with count_refused cannot use exact mode: remove count_refused";
            return Err(what.to_owned());
        }
        let micros = |nanos: u64| match nanos % 1000 {
            0 => Ok(nanos / 1000),
            _ => Err("exact mode requires a period of whole microseconds".to_owned()),
        };
        let token_bucket = |rate: limits::Rate, burst: u64| {
            let (requests, nanos) = rate.written();
            let micros = micros(nanos)?;
            let divisor = gcd(requests, micros);
            let (requests, micros) = (requests / divisor, micros / divisor);
            let fits = micros
                .checked_mul(burst + 1)
                .is_some_and(|it| it < NUMBER_MAX);
            match fits {
                true => Ok(Self::TokenBucket {
                    requests,
                    micros,
                    burst,
                }),
                false => {
                    Err("exact mode requires a smaller product of burst and period".to_owned())
                }
            }
        };
        match limit.algorithm {
            Algorithm::TokenBucket { rate, burst } => token_bucket(rate, burst),
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Alignment::Clock,
            } => {
                let micros = micros(Time::from(window).0)?;
                Ok(Self::Window { limit, micros })
            }
            algorithm => Err(format!(
                "a {} cannot use exact mode: use token_bucket, spacing, leaky_bucket with when_full = \"drop\", or fixed_window with aligned = \"clock\"",
                algorithm.name()
            )),
        }
    }

    /// Maximum number of requests of one call.
    pub fn max_burst(&self) -> u64 {
        match *self {
            Self::TokenBucket { burst, .. } => burst,
            Self::Window { limit, .. } => limit,
        }
    }

    /// Maximum time in microseconds for which a call affects decisions, if no call had to wait.
    pub fn lookback_micros(&self) -> u64 {
        match *self {
            Self::TokenBucket {
                requests,
                micros,
                burst,
            } => micros.saturating_mul(burst).div_ceil(requests),
            Self::Window { micros, .. } => micros,
        }
    }

    /// The script's arguments for `requests` requests under this rule.
    pub fn arguments(&self, requests: u64) -> [String; 5] {
        let (kind, numbers) = match *self {
            Self::TokenBucket {
                requests,
                micros,
                burst,
            } => ("pace", [requests, micros, burst]),
            Self::Window { limit, micros } => ("window", [limit, micros, 0]),
        };
        let [a, b, c] = numbers.map(|it| it.to_string());
        let requests = requests.min(NUMBER_MAX).to_string();
        [kind.to_owned(), requests, a, b, c]
    }
}

/// What the script does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Find the earliest slot, without taking it.
    Peek,
    /// Take the earliest slot within the maximum wait.
    Reserve {
        /// Maximum wait.
        max_wait: Duration,
    },
    /// Count a reported call, like [`Limits::record`](limits::Limits::record), and find the earliest slot of one more request.
    Count {
        /// Time of the call, in microseconds since 1970 by the server's clock; `None` for now.
        made: Option<u64>,
    },
}

impl Operation {
    /// The script's arguments for a call under these rules, whose slot is at least `pause` from now.
    pub fn arguments(self, rules: impl Iterator<Item = ExactRule>, pause: Duration) -> Vec<String> {
        // Tolerance for reported calls whose time is in the future: the largest step of the rules.
        let step =
            |rule: ExactRule| micros(default_step(Duration::from_micros(rule.lookback_micros())));
        self.arguments_with(rules.map(step).max().unwrap_or(0), pause)
    }

    /// The script's arguments with an explicit tolerance, in microseconds, for reported calls whose time is in the future.
    pub fn arguments_with(self, tolerance: u64, pause: Duration) -> Vec<String> {
        let (op, bound, made) = match self {
            Self::Peek => ("peek", 0, None),
            Self::Reserve { max_wait } => ("reserve", micros(max_wait), None),
            Self::Count { made } => ("count", tolerance, made),
        };
        let made = made.map_or_else(|| "-1".to_owned(), |made| made.min(NUMBER_MAX).to_string());
        // Round up, because the slot must not be earlier.
        let pause = pause.saturating_add(Duration::from_nanos(999));
        let [bound, pause] = [bound, micros(pause)].map(|it| it.to_string());
        vec![op.to_owned(), bound, pause, made]
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).map_or(NUMBER_MAX, |micros| micros.min(NUMBER_MAX))
}

/// The script's decision on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactDecision {
    /// The outcome of the operation.
    pub outcome: Outcome,
    /// The server's clock, in microseconds.
    pub now: u64,
    /// The earliest slot; for reported calls, that of one more request.
    pub at: u64,
    /// Index of the binding rule; `None` if it is the pause.
    pub binding: Option<usize>,
    /// Microseconds after which the call can be retried.
    pub retry_after: u64,
    /// The remaining quota of each rule; empty if the call was rejected early.
    pub remaining: Vec<RemainingQuota>,
}

/// The remaining quota of a key under one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemainingQuota {
    /// Maximum number of requests that one call could make now.
    pub requests: u64,
    /// When one more request could be made, in microseconds of the server's clock.
    pub more_at: u64,
    /// When the key no longer has any usage.
    pub free_at: u64,
}

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call may be made now.
    Now,
    /// The call has a slot in the future.
    At,
    /// The wait would exceed the maximum wait.
    OverMaxWait,
    /// The call has more requests than a rule ever admits at one time.
    TooMany,
    /// The reported call uses quota.
    Counted,
    /// The reported call is too old to affect any rule.
    TooOld,
    /// The time of the reported call is in the future.
    TooEarly,
}

impl ExactDecision {
    /// Parses a reply of [`SCRIPT`](super::SCRIPT).
    ///
    /// # Errors
    /// [`ServerError::Form`] if the reply is malformed.
    pub fn read(values: &[Value]) -> Result<Self, ServerError> {
        let outcome = match text(values.first())? {
            "now" => Outcome::Now,
            "at" => Outcome::At,
            "wait" => Outcome::OverMaxWait,
            "many" => Outcome::TooMany,
            "counted" => Outcome::Counted,
            "old" => Outcome::TooOld,
            "early" => Outcome::TooEarly,
            _ => return Err(ServerError::Form),
        };
        let binding = usize::try_from(number(values.get(3))?).map_err(|_| ServerError::Form)?;
        let remaining = |values: &[Value]| {
            Ok(RemainingQuota {
                requests: number(values.first())?,
                more_at: number(values.get(1))?,
                free_at: number(values.get(2))?,
            })
        };
        let all = values.get(5..).unwrap_or_default().chunks(3).map(remaining);
        Ok(Self {
            outcome,
            now: number(values.get(1))?,
            at: number(values.get(2))?,
            binding: binding.checked_sub(1),
            retry_after: number(values.get(4))?,
            remaining: all.collect::<Result<_, ServerError>>()?,
        })
    }
}
