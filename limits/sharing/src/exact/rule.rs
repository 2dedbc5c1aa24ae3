//! Limits, questions and answers in the form of the script.

use std::time::Duration;

use limits::{Algorithm, Alignment, Limit, default_step, rate::gcd};
use redis::Value;

use super::NUMBER_MAX;
use crate::server::{ServerError, number, text};

/// Why a limit cannot be exact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedLimit {
    /// The server's script does not have it.
    #[error(
        "a {0} cannot be exact over several processes: token_bucket, spacing, leaky_bucket that drops, and fixed_window by the clock can"
    )]
    Algorithm(&'static str),
    /// The server's script does not count what it refuses.
    #[error("count_refused cannot be exact over several processes")]
    CountRefused,
    /// The server counts microseconds.
    #[error("its time is not a whole number of microseconds")]
    Nanoseconds,
    /// The server's arithmetic ends at 2^53.
    #[error("its numbers are too large to be exact on the server")]
    Numbers,
}

/// A limit in the form that the script takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactRule(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pace {
        requests: u64,
        micros: u64,
        burst: u64,
    },
    Window {
        limit: u64,
        micros: u64,
    },
}

impl ExactRule {
    /// Of a limit.
    ///
    /// # Errors
    /// When it cannot be exact.
    pub fn new(limit: &Limit) -> Result<Self, UnsupportedLimit> {
        if limit.count_refused {
            return Err(UnsupportedLimit::CountRefused);
        }
        let micros = |nanos: u64| match nanos % 1000 {
            0 => Ok(nanos / 1000),
            _ => Err(UnsupportedLimit::Nanoseconds),
        };
        let pace = |rate: limits::Rate, burst: u64| {
            // In lowest terms of microseconds.
            let (requests, nanos) = rate.written();
            let micros = micros(nanos)?;
            let divisor = gcd(requests, micros);
            let (requests, micros) = (requests / divisor, micros / divisor);
            let fits = micros
                .checked_mul(burst + 1)
                .is_some_and(|it| it < NUMBER_MAX);
            match fits {
                true => Ok(Kind::Pace {
                    requests,
                    micros,
                    burst,
                }),
                false => Err(UnsupportedLimit::Numbers),
            }
        };
        let kind = match limit.algorithm {
            Algorithm::TokenBucket { rate, burst } => pace(rate, burst),
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Alignment::Clock,
            } => {
                let nanos =
                    u64::try_from(window.as_nanos()).map_err(|_| UnsupportedLimit::Numbers)?;
                let micros = micros(nanos)?;
                Ok(Kind::Window { limit, micros })
            }
            algorithm => Err(UnsupportedLimit::Algorithm(algorithm.name())),
        };
        Ok(Self(kind?))
    }

    /// Most requests that may go at once.
    #[must_use]
    pub fn max_burst(&self) -> u64 {
        match self.0 {
            Kind::Pace { burst, .. } => burst,
            Kind::Window { limit, .. } => limit,
        }
    }

    /// For how many microseconds a call matters at most, where nothing but calls that may go at once were made.
    #[must_use]
    pub fn lookback_micros(&self) -> u64 {
        match self.0 {
            Kind::Pace {
                requests,
                micros,
                burst,
            } => micros.saturating_mul(burst).div_ceil(requests),
            Kind::Window { micros, .. } => micros,
        }
    }

    /// What the script takes of it, for so many requests.
    #[must_use]
    pub fn arguments(&self, requests: u64) -> [String; 5] {
        let (kind, numbers) = match self.0 {
            Kind::Pace {
                requests,
                micros,
                burst,
            } => ("pace", [requests, micros, burst]),
            Kind::Window { limit, micros } => ("window", [limit, micros, 0]),
        };
        let [a, b, c] = numbers.map(|it| it.to_string());
        let requests = requests.min(NUMBER_MAX).to_string();
        [kind.to_owned(), requests, a, b, c]
    }
}

/// What is asked of all rules of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// When it could go. Takes nothing.
    Peek,
    /// The first moment when it may go, which it takes: nothing beyond the maximum wait.
    Reserve {
        /// How long it may wait.
        max_wait: Duration,
    },
    /// To be counted, as it was made without having been asked for, and when one more request could go. It has the effect that the core's
    /// [`record`](limits::Limits::record_all) gives it.
    Count {
        /// When it was made, in microseconds since 1970 by the server's clock; `None` for now.
        made: Option<u64>,
    },
}

impl Operation {
    /// What the script takes of it, for a call that must not go for so long yet; of one under these rules.
    #[must_use]
    pub fn arguments(self, rules: impl Iterator<Item = ExactRule>, pause: Duration) -> Vec<String> {
        // By how much the clocks of those who tell of calls may be ahead: the largest step of the rules.
        let step =
            |rule: ExactRule| micros(default_step(Duration::from_micros(rule.lookback_micros())));
        self.arguments_with(rules.map(step).max().unwrap_or(0), pause)
    }

    /// The same, with by how many microseconds the time of a call may be ahead.
    #[must_use]
    pub fn arguments_with(self, ahead: u64, pause: Duration) -> Vec<String> {
        let (op, bound) = match self {
            Self::Peek => ("peek", 0),
            Self::Reserve { max_wait } => ("reserve", micros(max_wait)),
            Self::Count { .. } => ("count", ahead),
        };
        let made = match self {
            Self::Count { made: Some(made) } => made.min(NUMBER_MAX).to_string(),
            _ => "-1".to_owned(),
        };
        // Rounded up: not before.
        let pause = pause.saturating_add(Duration::from_nanos(999));
        let [bound, pause] = [bound, micros(pause)].map(|it| it.to_string());
        vec![op.to_owned(), bound, pause, made]
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).map_or(NUMBER_MAX, |micros| micros.min(NUMBER_MAX))
}

/// What the script says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExactDecision {
    /// What becomes of the call.
    pub outcome: Outcome,
    /// The server's clock, in microseconds.
    pub now: u64,
    /// When it may go, or could; of calls that were counted, one more request.
    pub at: u64,
    /// Which of the rules that were asked decided, by its place; none where it is the pause.
    pub binding: Option<usize>,
    /// In how many microseconds it may ask again.
    pub retry_after: u64,
    /// What each rule leaves; empty where nothing was looked at.
    pub remaining: Vec<RemainingQuota>,
}

/// What a rule leaves to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemainingQuota {
    /// Requests that could go at once.
    pub requests: u64,
    /// When one more could, in microseconds of the server's clock.
    pub more_at: u64,
    /// When nothing of it is used any more.
    pub free_at: u64,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes now.
    Now,
    /// It goes later.
    At,
    /// It would have to wait for too long.
    OverMaxWait,
    /// It is for more requests than ever go at once.
    TooMany,
    /// It is counted.
    Counted,
    /// It was made so long ago that it has no effect.
    TooOld,
    /// It is said to have been made in the future.
    TooEarly,
}

impl ExactDecision {
    /// Reads an answer of [`SCRIPT`](super::SCRIPT).
    ///
    /// # Errors
    /// When it has another form.
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
        let left = |values: &[Value]| {
            Ok(RemainingQuota {
                requests: number(values.first())?,
                more_at: number(values.get(1))?,
                free_at: number(values.get(2))?,
            })
        };
        let lefts = values.get(5..).unwrap_or_default().chunks(3).map(left);
        Ok(Self {
            outcome,
            now: number(values.get(1))?,
            at: number(values.get(2))?,
            binding: binding.checked_sub(1),
            retry_after: number(values.get(4))?,
            remaining: lefts.collect::<Result<_, ServerError>>()?,
        })
    }
}
