//! What a limit is: an algorithm with its numbers, checked; and what it promises in words and in one figure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::rate::{
    Count, PERIOD_MAX, Parsed, REQUESTS_MAX, Rate, RateError, Time, in_range, period,
};

/// Most entries a sliding log keeps, each of 8 bytes for each key.
pub const LOG_MAX: u64 = 1 << 20;

/// Most steps of a step window; it keeps 16 bytes for each in which calls were made, for each key.
pub const STEPS_MAX: u64 = 1 << 16;

const SECOND: u64 = 1_000_000_000;

/// When the windows of a fixed window begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alignment {
    /// At whole multiples of the window since the Unix epoch: at full minutes, hours, days of UTC.
    #[default]
    Clock,
    /// At the first call after the window before has ended.
    FirstCall,
}

/// An algorithm and its numbers. See the crate's page for how to choose one.
///
/// Append new variants and never reorder them: a saved limit has the position of its variant. Any other change needs another version
/// (`VERSION` in the limiter's `engine/records.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// GCRA, which is a token bucket refilled continuously: `burst` at once, then the rate.
    TokenBucket {
        /// The rate.
        rate: Rate,
        /// How many may go at once after a pause; at least 1.
        burst: u64,
    },
    /// A token bucket to which tokens come in steps: all of `rate`'s requests, once each time that `rate` names.
    SteppedBucket {
        /// How many tokens come, and how often.
        rate: Rate,
        /// How many tokens there may be.
        burst: u64,
    },
    /// A queue that leaks at the rate: calls go one by one, and so many may wait.
    LeakyBucket {
        /// How fast it leaks.
        rate: Rate,
        /// How many calls it holds; the rest is refused.
        capacity: u64,
    },
    /// So many in each window; twice as many may pass around its edge.
    FixedWindow {
        /// Most calls in a window.
        limit: u64,
        /// Its length.
        window: Duration,
        /// When it begins.
        aligned: Alignment,
    },
    /// So many in any window: each call is remembered until it has left the window.
    SlidingLog {
        /// Most calls in a window, at most [`LOG_MAX`].
        limit: u64,
        /// Its length.
        window: Duration,
    },
    /// Two fixed windows, of which the former counts by the share that the sliding window still covers.
    SlidingCounter {
        /// Most calls in a window.
        limit: u64,
        /// Its length.
        window: Duration,
    },
    /// A sliding window that moves in steps, with a counter for each step: the calls of a step leave it a window after the latest of them.
    /// Takes calls that were made before now.
    StepWindow {
        /// Most calls in a window.
        limit: u64,
        /// Its length.
        window: Duration,
        /// How far it moves at once; see [`default_step`].
        step: Duration,
    },
    /// Slow after a pause, and at the rate when warm (as Guava's `SmoothWarmingUp` is): a call passes at once when those before are
    /// paid for, and the next waits for what it costs.
    WarmUp {
        /// The rate when warm.
        rate: Rate,
        /// How long it takes to warm up, and to cool down.
        warm_up: Duration,
    },
}

/// The names that rules have for algorithms.
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

/// An algorithm as a rule of a file names it, with its options; windows and limits are those of the rule's rate.
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

/// What a leaky bucket does with a call that finds it full.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenFull {
    #[default]
    Queue,
    Drop,
}

impl Options {
    /// The algorithm with these options, not yet checked.
    pub(crate) fn algorithm(self, rate: Rate) -> Algorithm {
        let (limit, window) = rate.written();
        let window = Duration::from_nanos(window);
        let bucket = |burst| Algorithm::TokenBucket { rate, burst };
        let count =
            |given: Option<Parsed<Count>>, unless_set| given.map_or(unless_set, |it| it.0.0);
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

/// The step of a window that names none, in parts of what the window's length is: 10 ms up to 10 s, 100 ms up to a minute, 1 s
/// up to an hour, 1 min up to a day, else 1 h.
#[must_use]
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
    /// A token bucket of this rate, written as in `300/s`, which lets so many go at once.
    ///
    /// # Errors
    /// When the text is not a rate, or the burst is zero or too large.
    pub fn token_bucket(rate: &str, burst: u64) -> Result<Self, RateError> {
        let rate = rate.parse()?;
        Self::TokenBucket { rate, burst }.checked()
    }

    /// The same, if its numbers can be kept to.
    ///
    /// # Errors
    /// When a number is zero, or larger than is allowed.
    pub fn checked(self) -> Result<Self, RateError> {
        if let Some((limit, window)) = self.window() {
            in_range("a limit", limit, REQUESTS_MAX)?;
            period(window)?;
        }
        match self {
            Self::TokenBucket { burst, .. } | Self::SteppedBucket { burst, .. } => {
                in_range("a burst", burst, REQUESTS_MAX)?;
            }
            Self::LeakyBucket { capacity, .. } => {
                in_range("a capacity", capacity, REQUESTS_MAX)?;
            }
            Self::SlidingLog { limit, .. } => {
                in_range("a limit of a sliding log", limit, LOG_MAX)?;
            }
            Self::StepWindow { window, step, .. } => {
                let (window, step) = (period(window)?, period(step)?);
                in_range("a step in nanoseconds", step, window)?;
                in_range("a number of steps", window.div_ceil(step), STEPS_MAX)?;
            }
            Self::WarmUp { warm_up, .. } => {
                period(warm_up)?;
            }
            Self::FixedWindow { .. } | Self::SlidingCounter { .. } => {}
        }
        Ok(self)
    }

    /// The limit and the window of those that count in windows of time, and not by a rate.
    pub(crate) fn window(&self) -> Option<(u64, Duration)> {
        match *self {
            Self::FixedWindow { limit, window, .. }
            | Self::SlidingLog { limit, window }
            | Self::SlidingCounter { limit, window }
            | Self::StepWindow { limit, window, .. } => Some((limit, window)),
            _ => None,
        }
    }

    /// What one of so many keeps to by itself, so that all together keep to this: a part of the rate. Bursts and capacities are rounded up, limits
    /// of windows down.
    ///
    /// # Errors
    /// When a part is too small to be kept to.
    pub fn static_share(mut self, parts: u64) -> Result<Self, RateError> {
        match &mut self {
            Self::TokenBucket { rate, burst: room }
            | Self::SteppedBucket { rate, burst: room }
            | Self::LeakyBucket {
                rate,
                capacity: room,
            } => {
                *rate = rate.divided(parts)?;
                *room = room.div_ceil(parts);
            }
            Self::WarmUp { rate, .. } => *rate = rate.divided(parts)?,
            Self::FixedWindow { limit, .. }
            | Self::SlidingLog { limit, .. }
            | Self::SlidingCounter { limit, .. }
            | Self::StepWindow { limit, .. } => *limit /= parts,
        }
        self.checked()
    }

    /// What one of several keeps to while it has this share of it, in millionths: that share of the rate, and of a burst or a capacity, rounded
    /// up. With no share nothing new goes, for ten years. `None` of windows and logs: what moves from one to the other within a window would be counted
    /// twice.
    #[must_use]
    pub fn share(mut self, millionths: u64) -> Option<Self> {
        const WHOLE: u64 = 1_000_000;
        let share = millionths.min(WHOLE);
        let (Self::TokenBucket { rate, burst: room }
        | Self::LeakyBucket {
            rate,
            capacity: room,
        }) = &mut self
        else {
            return None;
        };
        *rate = rate.share(share);
        *room = room.saturating_mul(share).div_ceil(WHOLE).max(1);
        Some(self)
    }

    /// The name that rules have for it.
    #[must_use]
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

    /// Most requests that one call may be for: more would never pass.
    #[must_use]
    pub fn max_burst(&self) -> u64 {
        match *self {
            Self::TokenBucket { burst, .. } | Self::SteppedBucket { burst, .. } => burst,
            // Without a window, one by one.
            _ => self.window().map_or(1, |(limit, _)| limit),
        }
    }

    /// What it lets go in the long run, if there is always somebody who waits for one request.
    ///
    /// # Panics
    /// When its numbers were not [checked](Self::checked).
    #[must_use]
    pub fn mean_rate(&self) -> Rate {
        match *self {
            Self::TokenBucket { rate, .. }
            | Self::SteppedBucket { rate, .. }
            | Self::LeakyBucket { rate, .. }
            | Self::WarmUp { rate, .. } => rate,
            Self::FixedWindow { limit, window, .. }
            | Self::SlidingLog { limit, window }
            | Self::StepWindow { limit, window, .. } => {
                Rate::new(limit, window).expect("its numbers were checked")
            }
            // After a full window, the first call of the next has no room before one of the full one has left it; and of one,
            // none in all of the next.
            Self::SlidingCounter { limit, window } => match limit {
                1 => Rate::new(1, window.saturating_mul(2).min(PERIOD_MAX)),
                limit => Rate::new(limit - 1, window),
            }
            .expect("its numbers were checked"),
        }
    }

    /// Most requests that can be released in any window of so many nanoseconds (from a moment, without the moment that ends it),
    /// whatever is asked for. What a partner sees at worst.
    #[must_use]
    pub fn max_in(&self, nanos: u64) -> u64 {
        let windows = |limit: u64, window: Duration, more: u64| {
            let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
            limit.saturating_mul(nanos.div_ceil(window).saturating_add(more))
        };
        let paced = |rate: Rate, burst: u64| rate.requests_in(nanos).saturating_add(burst);
        match *self {
            Self::TokenBucket { rate, burst } => paced(rate, burst),
            Self::SteppedBucket { rate, burst } => {
                let (tokens, step) = rate.written();
                burst.saturating_add(tokens.saturating_mul(nanos.div_ceil(step)))
            }
            Self::LeakyBucket { rate, .. } | Self::WarmUp { rate, .. } => paced(rate, 1),
            Self::FixedWindow {
                limit,
                window,
                aligned,
            } => windows(
                limit,
                window,
                u64::from(aligned == Alignment::Clock || nanos > 0),
            ),
            Self::SlidingLog { limit, window } | Self::StepWindow { limit, window, .. } => {
                windows(limit, window, 0)
            }
            Self::SlidingCounter { limit, window } => windows(limit, window, 1),
        }
    }
}

impl fmt::Display for Algorithm {
    /// The promise in words.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenBucket { rate, burst: 1 } => {
                write!(formatter, "{rate}, evenly spaced, nothing saved up")
            }
            Self::TokenBucket { rate, burst } => write!(
                formatter,
                "{rate}, and bursts of up to {burst} after a pause: at most {} in any second",
                self.max_in(SECOND)
            ),
            Self::SteppedBucket { rate, burst } => {
                let (tokens, step) = rate.written();
                write!(
                    formatter,
                    "{tokens} tokens each {}, and up to {burst} saved: at most {} in any second",
                    Time(step),
                    self.max_in(SECOND)
                )
            }
            Self::LeakyBucket { rate, capacity } => write!(
                formatter,
                "{rate}, evenly spaced; up to {capacity} wait, and what comes beyond is refused"
            ),
            Self::FixedWindow {
                limit,
                window,
                aligned,
            } => write!(
                formatter,
                "{limit} in each window of {} that begins {}; up to {} around its edge",
                Time::from(*window),
                match aligned {
                    Alignment::Clock => "by the clock (UTC)",
                    Alignment::FirstCall => "with a call",
                },
                limit.saturating_mul(2)
            ),
            Self::SlidingLog { limit, window } => {
                write!(formatter, "at most {limit} in any {}", Time::from(*window))
            }
            Self::SlidingCounter { limit, window } => write!(
                formatter,
                "about {limit} in any {}: counted as if the calls of the window before were spread evenly",
                Time::from(*window)
            ),
            Self::StepWindow {
                limit,
                window,
                step,
            } => write!(
                formatter,
                "at most {limit} in any {}, which moves in steps of {}",
                Time::from(*window),
                Time::from(*step)
            ),
            Self::WarmUp { rate, warm_up } => write!(
                formatter,
                "{rate} when warm, a third of it when cold; {} to warm up or cool down",
                Time::from(*warm_up)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_is_found_by_the_length_of_the_window() {
        for (seconds, step_millis) in [
            (1, 10),
            (10, 10),
            (11, 100),
            (60, 100),
            (61, 1_000),
            (3_600, 1_000),
            (3_601, 60_000),
            (86_400, 60_000),
            (86_401, 3_600_000),
        ] {
            let step = default_step(Duration::from_secs(seconds));
            assert_eq!(step, Duration::from_millis(step_millis), "{seconds} s");
        }
        let just_above = Duration::from_secs(10) + Duration::from_nanos(1);
        assert_eq!(default_step(just_above), Duration::from_millis(100));
    }

    #[test]
    fn promise_is_in_words() {
        let words = Algorithm::token_bucket("300/s", 300).unwrap().to_string();
        assert_eq!(
            words,
            "300/s, and bursts of up to 300 after a pause: at most 600 in any second"
        );
        let log = Algorithm::SlidingLog {
            limit: 1_000,
            window: Duration::from_secs(60),
        };
        assert_eq!(log.to_string(), "at most 1000 in any 1min");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(Algorithm::token_bucket("1/s", 0).is_err());
        let window = Duration::from_secs(1);
        for unfit in [
            Algorithm::SlidingLog {
                limit: LOG_MAX + 1,
                window,
            },
            Algorithm::StepWindow {
                limit: 1,
                window,
                step: Duration::ZERO,
            },
            Algorithm::StepWindow {
                limit: 1,
                window,
                step: window * 2,
            },
            Algorithm::StepWindow {
                limit: 1,
                window,
                step: Duration::from_nanos(1),
            },
            Algorithm::FixedWindow {
                limit: 0,
                window,
                aligned: Alignment::Clock,
            },
            Algorithm::SlidingCounter {
                limit: 1,
                window: Duration::ZERO,
            },
        ] {
            assert!(unfit.checked().is_err(), "{unfit:?}");
        }
    }
}
