//! A token bucket to which tokens come in steps, counted from the first call.

use serde::{Deserialize, Serialize};

use super::Method;
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct Stepped {
    /// How many tokens come with each step.
    tokens: u64,
    step: u64,
    burst: u64,
}

/// The state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tokens {
    left: u64,
    /// When the latest tokens that are counted came; `None` before the first call.
    step_at: Option<u64>,
}

impl Stepped {
    pub(crate) fn new(rate: Rate, burst: u64) -> Self {
        let (tokens, step) = rate.written();
        Self {
            tokens,
            step,
            burst,
        }
    }

    /// The tokens there are at `at`, and when the latest of them came.
    fn at(&self, tokens: &Tokens, at: u64) -> (u64, u64) {
        let Some(step_at) = tokens.step_at else {
            return (self.burst, at);
        };
        let steps = at.saturating_sub(step_at) / self.step;
        let left = tokens
            .left
            .saturating_add(steps.saturating_mul(self.tokens));
        (left.min(self.burst), step_at + steps * self.step)
    }
}

impl Method for Stepped {
    type Amount = Tokens;

    fn fresh(&self) -> Tokens {
        Tokens {
            left: self.burst,
            step_at: None,
        }
    }

    /// How long an empty bucket takes to fill.
    fn reach(&self) -> u64 {
        let steps = self.burst.div_ceil(self.tokens);
        steps.saturating_mul(self.step)
    }

    fn earliest(&self, tokens: &Tokens, requests: u64, from: u64) -> u64 {
        let from = from.max(tokens.step_at.unwrap_or(0));
        let (left, step_at) = self.at(tokens, from);
        match requests.checked_sub(left) {
            None | Some(0) => from,
            Some(missing) => {
                let steps = missing.div_ceil(self.tokens);
                step_at.saturating_add(steps.saturating_mul(self.step))
            }
        }
    }

    fn force(&self, tokens: &mut Tokens, requests: u64, at: u64) {
        let (left, step_at) = self.at(tokens, at);
        tokens.left = left.saturating_sub(requests);
        tokens.step_at = Some(step_at);
    }

    fn is_same(&self, one: &Tokens, other: &Tokens, at: u64) -> bool {
        self.at(one, at) == self.at(other, at)
    }

    fn give_back(&self, tokens: &mut Tokens, requests: u64, at: u64) {
        if let Some(step_at) = &mut tokens.step_at
            && at < *step_at
        {
            // Those after it are all given back. Somebody waited, so nothing was left at that time, for all that is known.
            let steps = (*step_at - at).div_ceil(self.step);
            *step_at = step_at.saturating_sub(steps.saturating_mul(self.step));
            tokens.left = 0;
        }
        tokens.left = tokens.left.saturating_add(requests).min(self.burst);
    }

    fn is_idle(&self, tokens: &Tokens, now: u64) -> bool {
        self.at(tokens, now).0 == self.burst
    }

    fn used(&self, tokens: &Tokens, now: u64) -> u64 {
        self.burst - self.at(tokens, now).0
    }
}
