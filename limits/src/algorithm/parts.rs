//! What is left of a limit for one of several who keep to it together.

use super::Algorithm;
use crate::rate::RateError;

impl Algorithm {
    /// What one of so many keeps to by itself, so that all together keep to this: a part of the rate. Bursts and capacities are rounded up, limits
    /// of windows down.
    ///
    /// # Errors
    /// When a part is too small to be kept to.
    pub fn part(self, parts: u64) -> Result<Self, RateError> {
        let part = match self {
            Self::TokenBucket { rate, burst } => Self::TokenBucket {
                rate: rate.part(parts)?,
                burst: burst.div_ceil(parts),
            },
            Self::SteppedBucket { rate, burst } => Self::SteppedBucket {
                rate: rate.part(parts)?,
                burst: burst.div_ceil(parts),
            },
            Self::LeakyBucket { rate, capacity } => Self::LeakyBucket {
                rate: rate.part(parts)?,
                capacity: capacity.div_ceil(parts),
            },
            Self::WarmUp { rate, warm_up } => Self::WarmUp {
                rate: rate.part(parts)?,
                warm_up,
            },
            Self::FixedWindow {
                limit,
                window,
                aligned,
            } => Self::FixedWindow {
                limit: limit / parts,
                window,
                aligned,
            },
            Self::SlidingLog { limit, window } => Self::SlidingLog {
                limit: limit / parts,
                window,
            },
            Self::SlidingCounter { limit, window } => Self::SlidingCounter {
                limit: limit / parts,
                window,
            },
            Self::StepWindow {
                limit,
                window,
                step,
            } => Self::StepWindow {
                limit: limit / parts,
                window,
                step,
            },
        };
        part.checked()
    }

    /// What one of several keeps to while it has this share of it, in millionths: that share of the rate, and of a burst or a capacity, rounded
    /// up. With no share nothing new goes, for ten years. `None` of windows and logs: what moves from one to the other within a window would be counted
    /// twice.
    #[must_use]
    pub fn shared(self, millionths: u64) -> Option<Self> {
        const WHOLE: u64 = 1_000_000;
        let share = millionths.min(WHOLE);
        let count = |count: u64| (count.saturating_mul(share)).div_ceil(WHOLE).max(1);
        Some(match self {
            Self::TokenBucket { rate, burst } => Self::TokenBucket {
                rate: rate.shared(share),
                burst: count(burst),
            },
            Self::LeakyBucket { rate, capacity } => Self::LeakyBucket {
                rate: rate.shared(share),
                capacity: count(capacity),
            },
            _ => return None,
        })
    }
}
