//! Limits and answers in the form of the script.

use limits::{Algorithm, Aligned, WhenFull};
use redis::Value;

use super::NUMBER_MAX;
use crate::server::{ServerError, number, text};

/// Why a limit cannot be exact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitError {
    /// The server's script does not have it.
    #[error(
        "a {0} cannot be exact over several processes: token_bucket, spacing, leaky_bucket that drops, and fixed_window by the clock can"
    )]
    Algorithm(&'static str),
    /// The server counts microseconds.
    #[error("its time is not a whole number of microseconds")]
    Nanoseconds,
    /// The server's arithmetic ends at 2^53.
    #[error("its numbers are too large to be exact on the server")]
    Numbers,
    /// Nothing is left of it.
    #[error("its part for the time without the server is too small: {0}")]
    Part(#[from] limits::RateError),
}

/// A limit in the form that the script takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
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

impl Rule {
    pub(super) fn of(algorithm: &Algorithm) -> Result<Self, UnfitError> {
        let micros = |nanos: u64| match nanos % 1000 {
            0 => Ok(nanos / 1000),
            _ => Err(UnfitError::Nanoseconds),
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
                true => Ok(Self::Pace {
                    requests,
                    micros,
                    burst,
                }),
                false => Err(UnfitError::Numbers),
            }
        };
        match *algorithm {
            Algorithm::TokenBucket { rate, burst } => pace(rate, burst),
            Algorithm::Spacing { rate } => pace(rate, 1),
            Algorithm::LeakyBucket {
                rate,
                capacity,
                when_full: WhenFull::Drop,
            } => pace(rate, capacity),
            Algorithm::FixedWindow {
                limit,
                window,
                aligned: Aligned::Clock,
            } => {
                let nanos = u64::try_from(window.as_nanos()).map_err(|_| UnfitError::Numbers)?;
                Ok(Self::Window {
                    limit,
                    micros: micros(nanos)?,
                })
            }
            _ => Err(UnfitError::Algorithm(algorithm.name())),
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Pace { .. } => "pace",
            Self::Window { .. } => "window",
        }
    }

    pub(super) fn arguments(self, requests: u64) -> [String; 5] {
        let numbers = match self {
            Self::Pace {
                requests,
                micros,
                burst,
            } => [requests, micros, burst],
            Self::Window { limit, micros } => [limit, micros, 0],
        };
        let [a, b, c] = numbers.map(|it| it.to_string());
        [self.kind().to_owned(), requests.to_string(), a, b, c]
    }
}

/// What the script says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What becomes of the call.
    pub outcome: Outcome,
    /// The server's clock, in microseconds.
    pub now: u64,
    /// When it may go, or could.
    pub at: u64,
    /// Which of the limits that were asked decided, by its place.
    pub binding: Option<usize>,
    /// In how many microseconds it may ask again.
    pub retry_after: u64,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes now.
    Now,
    /// It goes later.
    At,
    /// It would have to wait for too long.
    Wait,
    /// It is for more requests than ever go at once.
    Many,
}

impl Answer {
    /// Reads an answer of [`SCRIPT`](super::SCRIPT).
    ///
    /// # Errors
    /// When it has another form.
    pub fn read(values: &[Value]) -> Result<Self, ServerError> {
        let outcome = match text(values.first())? {
            "now" => Outcome::Now,
            "at" => Outcome::At,
            "wait" => Outcome::Wait,
            "many" => Outcome::Many,
            _ => return Err(ServerError::Form),
        };
        let binding = usize::try_from(number(values.get(3))?).map_err(|_| ServerError::Form)?;
        Ok(Self {
            outcome,
            now: number(values.get(1))?,
            at: number(values.get(2))?,
            binding: binding.checked_sub(1),
            retry_after: number(values.get(4))?,
        })
    }
}

/// The arguments of [`SCRIPT`](super::SCRIPT) for one limit.
///
/// # Errors
/// When it cannot be exact.
pub fn arguments(algorithm: &Algorithm, requests: u64) -> Result<[String; 5], UnfitError> {
    Ok(Rule::of(algorithm)?.arguments(requests))
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
