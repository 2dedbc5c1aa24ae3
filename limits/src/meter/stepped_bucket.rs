//! The stepped bucket: a token bucket with stepwise refill. The steps start with the first call.

use serde::{Deserialize, Serialize};

use super::MeterKind;
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct SteppedBucket {
    /// Tokens added per step.
    tokens: u64,
    step: u64,
    burst: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SteppedBucketState {
    tokens: u64,
    /// Time of the last refill; `None` before the first call.
    step_at: Option<u64>,
}

impl SteppedBucket {
    pub(crate) fn new(rate: Rate, burst: u64) -> Self {
        let (tokens, step) = rate.written();
        Self {
            tokens,
            step,
            burst,
        }
    }

    /// The tokens at `at`, and the time of the last refill.
    fn at(&self, state: &SteppedBucketState, at: u64) -> (u64, u64) {
        let Some(step_at) = state.step_at else {
            return (self.burst, at);
        };
        let steps = at.saturating_sub(step_at) / self.step;
        let added = steps.saturating_mul(self.tokens);
        let tokens = state.tokens.saturating_add(added).min(self.burst);
        (tokens, step_at + steps * self.step)
    }
}

impl MeterKind for SteppedBucket {
    type State = SteppedBucketState;

    fn fresh(&self) -> Self::State {
        SteppedBucketState {
            tokens: self.burst,
            step_at: None,
        }
    }

    /// Time to refill an empty bucket.
    fn lookback(&self) -> u64 {
        let steps = self.burst.div_ceil(self.tokens);
        steps.saturating_mul(self.step)
    }

    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64 {
        let from = from.max(state.step_at.unwrap_or(0));
        let (tokens, step_at) = self.at(state, from);
        match requests.checked_sub(tokens) {
            None | Some(0) => from,
            Some(missing) => {
                let steps = missing.div_ceil(self.tokens);
                step_at.saturating_add(steps.saturating_mul(self.step))
            }
        }
    }

    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        let (tokens, step_at) = self.at(state, at);
        state.tokens = tokens.saturating_sub(requests);
        state.step_at = Some(step_at);
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        self.at(one, at) == self.at(other, at)
    }

    fn refund(&self, state: &mut Self::State, requests: u64, at: u64) {
        if let Some(step_at) = &mut state.step_at
            && at < *step_at
        {
            // All later calls have been refunded. This call waited, so the bucket is assumed to have been empty at that time.
            let steps = (*step_at - at).div_ceil(self.step);
            *step_at = step_at.saturating_sub(steps.saturating_mul(self.step));
            state.tokens = 0;
        }
        state.tokens = state.tokens.saturating_add(requests).min(self.burst);
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        self.at(state, now).0 == self.burst
    }

    fn used(&self, state: &Self::State, now: u64) -> u64 {
        self.burst - self.at(state, now).0
    }
}
