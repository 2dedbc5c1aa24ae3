//! The rate-limit algorithms: parameters, checks, options in a limits file, shares and descriptions.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::rate::{
    Count, PERIOD_MAX, Parsed, REQUESTS_MAX, Rate, RateError, Time, in_range, period,
};

/// Maximum `limit` of a sliding log, which stores 8 bytes per call and key.
pub const LOG_MAX: u64 = 1 << 20;

/// Maximum number of steps of a step window, which stores 16 bytes per used step and key.
pub const STEPS_MAX: u64 = 1 << 16;

/// Start of the windows of a fixed-window limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// Multiples of the window since the Unix epoch: full minutes, hours or days in UTC.
    #[default]
    Clock,
    /// The first call after the end of the previous window.
    FirstCall,
}

/// An algorithm with its parameters.
///
/// | algorithm | admits | use |
/// |---|---|---|
/// | [`TokenBucket`](Self::TokenBucket) (GCRA) | the rate, and a burst after idle time; with a burst of 1, evenly spaced calls | default |
/// | [`LeakyBucket`](Self::LeakyBucket) | evenly spaced calls, with a bounded number of waiting calls | smoothing |
/// | [`SteppedBucket`](Self::SteppedBucket) | calls while tokens remain, which are added in steps | mirroring a partner that does this |
/// | [`FixedWindow`](Self::FixedWindow) | a number per window; up to twice as many around a window boundary | mirroring a partner; quotas |
/// | [`SlidingLog`](Self::SlidingLog) | an exact number in any window; 8 bytes per call | small exact limits |
/// | [`SlidingCounter`](Self::SlidingCounter) | approximately a number in any window | large limits |
/// | [`StepWindow`](Self::StepWindow) | up to a number in any window, in steps | mirroring a partner; calls that are reported late |
/// | [`WarmUp`](Self::WarmUp) | a third of the rate after idle time, then the rate | services with cold caches |
///
/// Append new variants and never reorder them: the limiter saves a variant by its position. Any other change of the saved form
/// requires a new `VERSION` in the limiter's `engine/records.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Token bucket with continuous refill, implemented as GCRA.
    TokenBucket {
        /// Refill rate.
        rate: Rate,
        /// Capacity in requests, at least 1.
        burst: u64,
    },
    /// Token bucket with stepwise refill: `300/min` adds 300 tokens once a minute.
    SteppedBucket {
        /// Tokens added at each step, and interval between steps.
        rate: Rate,
        /// Capacity in requests.
        burst: u64,
    },
    /// Queue with evenly spaced departures. Calls that find the queue full are refused.
    LeakyBucket {
        /// Departure rate.
        rate: Rate,
        /// Maximum number of waiting calls.
        capacity: u64,
    },
    /// Counter per window. Up to twice the limit may pass around a window boundary.
    FixedWindow {
        /// Maximum number of requests per window.
        limit: u64,
        /// Window length.
        window: Duration,
        /// Start of the windows.
        aligned: Alignment,
    },
    /// Exact sliding window: the time of each request is stored.
    SlidingLog {
        /// Maximum number of requests in any window, up to [`LOG_MAX`].
        limit: u64,
        /// Window length.
        window: Duration,
    },
    /// Counters of the current and the previous fixed window. The previous one is weighted by its overlap with the sliding window.
    SlidingCounter {
        /// Maximum number of requests in any window.
        limit: u64,
        /// Window length.
        window: Duration,
    },
    /// Sliding window with a counter per step. The calls of a step leave the window together, one window after the latest of them.
    /// Counts reported calls at the time they were made.
    StepWindow {
        /// Maximum number of requests in any window.
        limit: u64,
        /// Window length.
        window: Duration,
        /// Step length; see [`default_step`].
        step: Duration,
    },
    /// Evenly spaced calls, slower after idle time, like Guava's `SmoothWarmingUp`.
    WarmUp {
        /// Rate when warm.
        rate: Rate,
        /// Time to warm up, and to cool down.
        warm_up: Duration,
    },
}

/// Algorithm names in limits files.
pub const ALGORITHMS: [&str; 9] = [
    "token_bucket",
    "stepped_bucket",
    "leaky_bucket",
    "spacing",
    "fixed_window",
    "sliding_log",
    "sliding_counter",
    "step_window",
    "warm_up",
];

/// The algorithm of a rule in a limits file, with its options. The rule's `rate` sets the limit and its window.
#[derive(Deserialize)]
#[serde(tag = "algorithm", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Options {
    TokenBucket {
        burst: Option<Parsed<Count>>,
    },
    SteppedBucket {
        burst: Option<Parsed<Count>>,
    },
    LeakyBucket {
        capacity: Parsed<Count>,
        #[serde(default)]
        when_full: WhenFull,
    },
    Spacing {},
    FixedWindow {
        #[serde(default)]
        aligned: Alignment,
    },
    SlidingLog {},
    SlidingCounter {},
    StepWindow {
        step: Option<Parsed<Time>>,
    },
    WarmUp {
        warm_up: Parsed<Time>,
    },
}

/// What happens to calls over the rate of a leaky bucket.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenFull {
    #[default]
    Queue,
    Drop,
}

impl Options {
    /// The algorithm with these options. Its parameters are unchecked.
    pub(crate) fn algorithm(self, rate: Rate) -> Algorithm {
        let (limit, window) = rate.written();
        let window = Duration::from_nanos(window);
        let bucket = |burst| Algorithm::TokenBucket { rate, burst };
        let count = |option: Option<Parsed<Count>>, default| option.map_or(default, |it| it.0.0);
        match self {
            Self::TokenBucket { burst } => bucket(count(burst, 1)),
            Self::Spacing {} => bucket(1),
            Self::LeakyBucket {
                capacity: Parsed(Count(capacity)),
                when_full,
            } => match when_full {
                WhenFull::Queue => Algorithm::LeakyBucket { rate, capacity },
                WhenFull::Drop => bucket(capacity),
            },
            Self::SteppedBucket { burst } => Algorithm::SteppedBucket {
                rate,
                burst: count(burst, limit),
            },
            Self::FixedWindow { aligned } => Algorithm::FixedWindow {
                limit,
                window,
                aligned,
            },
            Self::SlidingLog {} => Algorithm::SlidingLog { limit, window },
            Self::SlidingCounter {} => Algorithm::SlidingCounter { limit, window },
            Self::StepWindow { step } => Algorithm::StepWindow {
                limit,
                window,
                step: step.map_or(default_step(window).min(window), |it| it.0.into()),
            },
            Self::WarmUp { warm_up } => Algorithm::WarmUp {
                rate,
                warm_up: warm_up.0.into(),
            },
        }
    }
}

/// Default step of a step window: 10 ms for windows up to 10 s, 100 ms up to a minute, 1 s up to an hour, 1 min up to a day, and
/// 1 h above.
pub fn default_step(window: Duration) -> Duration {
    let seconds = |number| Duration::from_secs(number);
    match window {
        _ if window <= seconds(10) => Duration::from_millis(10),
        _ if window <= seconds(60) => Duration::from_millis(100),
        _ if window <= seconds(3_600) => seconds(1),
        _ if window <= seconds(86_400) => seconds(60),
        _ => seconds(3_600),
    }
}

impl Algorithm {
    /// A token bucket with a rate such as `300/s`.
    ///
    /// ```
    /// use limits::Algorithm;
    ///
    /// let bucket = Algorithm::token_bucket("300/s", 30)?;
    /// assert_eq!(bucket.to_string(), "300/s, up to 30 at once");
    /// # Ok::<(), limits::RateError>(())
    /// ```
    ///
    /// # Errors
    /// If the rate is malformed, or the burst is 0 or too large.
    pub fn token_bucket(rate: &str, burst: u64) -> Result<Self, RateError> {
        let rate = rate.parse()?;
        Self::TokenBucket { rate, burst }.checked()
    }

    /// Returns the algorithm if its parameters are valid.
    ///
    /// # Errors
    /// If a parameter is 0 or too large.
    pub fn checked(self) -> Result<Self, RateError> {
        if let Some((limit, window)) = self.window() {
            in_range("limit", limit, REQUESTS_MAX)?;
            period(window)?;
        }
        match self {
            Self::TokenBucket { burst, .. } | Self::SteppedBucket { burst, .. } => {
                in_range("burst", burst, REQUESTS_MAX)?;
            }
            Self::LeakyBucket { capacity, .. } => {
                in_range("capacity", capacity, REQUESTS_MAX)?;
            }
            Self::SlidingLog { limit, .. } => {
                in_range("sliding_log limit", limit, LOG_MAX)?;
            }
            Self::StepWindow { window, step, .. } => {
                let (window, step) = (period(window)?, period(step)?);
                in_range("step in nanoseconds", step, window)?;
                in_range("number of steps", window.div_ceil(step), STEPS_MAX)?;
            }
            Self::WarmUp { warm_up, .. } => {
                period(warm_up)?;
            }
            Self::FixedWindow { .. } | Self::SlidingCounter { .. } => {}
        }
        Ok(self)
    }

    /// Limit and window length of the window algorithms.
    pub fn window(&self) -> Option<(u64, Duration)> {
        match *self {
            Self::FixedWindow { limit, window, .. }
            | Self::SlidingLog { limit, window }
            | Self::SlidingCounter { limit, window }
            | Self::StepWindow { limit, window, .. } => Some((limit, window)),
            _ => None,
        }
    }

    /// The guaranteed share of one of `members` processes that enforce this limit independently: 1/`members` of it. Bursts
    /// and capacities are rounded up, window limits down.
    ///
    /// # Errors
    /// If the share is too small.
    pub fn guaranteed_share(mut self, members: u64) -> Result<Self, RateError> {
        match &mut self {
            Self::TokenBucket { rate, burst: size }
            | Self::SteppedBucket { rate, burst: size }
            | Self::LeakyBucket {
                rate,
                capacity: size,
            } => {
                *rate = rate.divided(members)?;
                *size = size.div_ceil(members);
            }
            Self::WarmUp { rate, .. } => *rate = rate.divided(members)?,
            Self::FixedWindow { limit, .. }
            | Self::SlidingLog { limit, .. }
            | Self::SlidingCounter { limit, .. }
            | Self::StepWindow { limit, .. } => *limit /= members,
        }
        self.checked()
    }

    /// A share of a token bucket or leaky bucket in millionths. The burst or capacity is rounded up. A share of 0 admits one call in ten
    /// years. `None` for other algorithms: in a window, for example, quota that moves between processes could be used twice.
    pub fn share(mut self, millionths: u64) -> Option<Self> {
        const WHOLE: u64 = 1_000_000;
        let share = millionths.min(WHOLE);
        let (Self::TokenBucket { rate, burst: size }
        | Self::LeakyBucket {
            rate,
            capacity: size,
        }) = &mut self
        else {
            return None;
        };
        *rate = rate.share(share);
        *size = size.saturating_mul(share).div_ceil(WHOLE).max(1);
        Some(self)
    }

    /// Name of the algorithm in limits files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket { .. } => "token_bucket",
            Self::SteppedBucket { .. } => "stepped_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingLog { .. } => "sliding_log",
            Self::SlidingCounter { .. } => "sliding_counter",
            Self::StepWindow { .. } => "step_window",
            Self::WarmUp { .. } => "warm_up",
        }
    }

    /// Maximum number of requests of one call. Larger calls are never admitted.
    pub fn max_burst(&self) -> u64 {
        match *self {
            Self::TokenBucket { burst, .. } | Self::SteppedBucket { burst, .. } => burst,
            // Leaky bucket and warm-up admit requests one by one.
            _ => self.window().map_or(1, |(limit, _)| limit),
        }
    }

    /// Long-run throughput under constant demand for single requests.
    ///
    /// # Panics
    /// If the parameters were not [checked](Self::checked).
    pub fn mean_rate(&self) -> Rate {
        match *self {
            Self::TokenBucket { rate, .. }
            | Self::SteppedBucket { rate, .. }
            | Self::LeakyBucket { rate, .. }
            | Self::WarmUp { rate, .. } => rate,
            Self::FixedWindow { limit, window, .. }
            | Self::SlidingLog { limit, window }
            | Self::StepWindow { limit, window, .. } => {
                Rate::new(limit, window).expect("the parameters were checked")
            }
            // After a full window, one request of the next window must wait until the weight of the full one has dropped. With a
            // limit of 1, that takes the entire next window.
            Self::SlidingCounter { limit, window } => match limit {
                1 => Rate::new(1, window.saturating_mul(2).min(PERIOD_MAX)),
                limit => Rate::new(limit - 1, window),
            }
            .expect("the parameters were checked"),
        }
    }
}

impl fmt::Display for Algorithm {
    /// Maximum numbers of requests; `docs/limits.md` describes what each algorithm guarantees.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window() {
            Some((limit, window)) => write!(formatter, "{limit} in {}", Time::from(window)),
            None => {
                let (rate, max) = (self.mean_rate(), self.max_burst());
                write!(formatter, "{rate}, up to {max} at once")
            }
        }
    }
}

#[cfg(test)]
mod tests;
