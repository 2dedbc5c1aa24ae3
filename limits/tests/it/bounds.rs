//! Test helper: upper bounds on the number of requests that an algorithm admits.

use std::time::Duration;

use limits::{Algorithm, Alignment, Rate};

/// Maximum number of requests that can be admitted in any half-open interval of `nanos` nanoseconds: the worst case for the partner.
pub(crate) fn max_in(algorithm: &Algorithm, nanos: u64) -> u64 {
    let windows = |limit: u64, window: Duration, more: u64| {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        limit.saturating_mul(nanos.div_ceil(window).saturating_add(more))
    };
    let paced = |rate: Rate, burst: u64| rate.requests_in(nanos).saturating_add(burst);
    match *algorithm {
        Algorithm::TokenBucket { rate, burst } => paced(rate, burst),
        Algorithm::SteppedBucket { rate, burst } => {
            let (tokens, step) = rate.written();
            burst.saturating_add(tokens.saturating_mul(nanos.div_ceil(step)))
        }
        Algorithm::LeakyBucket { rate, .. } | Algorithm::WarmUp { rate, .. } => paced(rate, 1),
        Algorithm::FixedWindow {
            limit,
            window,
            aligned,
        } => windows(
            limit,
            window,
            u64::from(aligned == Alignment::Clock || nanos > 0),
        ),
        Algorithm::SlidingLog { limit, window } | Algorithm::StepWindow { limit, window, .. } => {
            windows(limit, window, 0)
        }
        Algorithm::SlidingCounter { limit, window } => windows(limit, window, 1),
    }
}
