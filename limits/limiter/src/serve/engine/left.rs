//! What limits leave to a call.

use std::{sync::Arc, time::Duration};

use super::{Binding, Engine, Target};

/// What a rule leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Which.
    pub rule: Binding,
    /// Most requests that may go at once.
    pub most: u64,
    /// How long it takes until so many may go again.
    pub window: Duration,
    /// Requests that may still go at once.
    pub remaining: u64,
    /// When more may.
    pub more_at: u64,
}

impl Engine {
    /// What is left to calls that are under all of these limits: by the rule that binds a call, or else by the one that leaves least. `None`
    /// where there is no rule. As a server said last, where one counts (`is_told`), and else as it is counted here.
    #[must_use]
    pub fn left(
        &self,
        of: &[Target<'_>],
        binding: Option<&Binding>,
        is_told: bool,
        now: u64,
    ) -> Option<Left> {
        let mut state = self.state();
        let call = state.call(of, 1, now).ok()?;
        let rules = call.demands.iter().filter_map(|demand| {
            let (named, placed) = state.catalog.owner(demand.limit)?;
            let left = if is_told {
                let most = placed.rule.limit.algorithm.max_burst();
                state.seen.left(demand.limit, &demand.key, most, now)?
            } else {
                state.core.remaining(demand.limit, &demand.key, now)
            };
            let is_binding = match binding {
                Some(Binding::Rule { limit, rule }) => *limit == named.name && *rule == placed.name,
                _ => false,
            };
            let order = (!is_binding, left.requests, u64::MAX - left.more_at);
            Some((order, named, placed, left))
        });
        let (_, named, placed, left) = rules.min_by_key(|(order, ..)| *order)?;
        let (mut remaining, mut more_at) = (left.requests, left.more_at);
        // What a partner said may leave less, until that is over.
        if let Some((fewer, until)) = state.learned.left(&call.of, now)
            && fewer < remaining
        {
            (remaining, more_at) = (fewer, until);
        }
        let algorithm = &placed.rule.limit.algorithm;
        let most = algorithm.max_burst();
        Some(Left {
            rule: Binding::Rule {
                limit: Arc::clone(&named.name),
                rule: Arc::clone(&placed.name),
            },
            most,
            window: Duration::from_nanos(algorithm.mean_rate().nanos_of(most)),
            remaining,
            more_at,
        })
    }
}
