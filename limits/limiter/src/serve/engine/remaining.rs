//! Remaining quota of a call, for rate-limit headers.

use std::{sync::Arc, time::Duration};

use runtime::rate_limit::Quota;

use super::{Engine, Target};

impl Engine {
    /// Returns the remaining quota under the rule in `binding` or, without one, under the rule of `targets` with the
    /// fewest remaining requests. `None` if the targets have no rules. If the sharing server counts, the quota is the one
    /// that it last reported.
    pub fn remaining(
        &self,
        targets: &[Target],
        binding: Option<&Arc<str>>,
        now: u64,
    ) -> Option<Quota> {
        let mut state = self.state();
        let call = state.resolve(targets, 1, now).ok()?;
        let rules = call.demands.iter().filter_map(|demand| {
            let (_, rule) = state.catalog.owner(demand.limit)?;
            let left = if state.counted_by_server {
                let max_burst = rule.rule.limit.algorithm.max_burst();
                let recent = &state.recent_usage;
                recent.remaining(demand.limit, &demand.key, max_burst, now)?
            } else {
                state.core.remaining(demand.limit, &demand.key, now)
            };
            let is_binding = binding == Some(&rule.binding);
            let order = (!is_binding, left.requests, u64::MAX - left.more_at);
            Some((order, rule, left))
        });
        let (_, rule, left) = rules.min_by_key(|(order, ..)| *order)?;
        let (mut remaining, mut more_at) = (left.requests, left.more_at);
        if let Some((fewer, until)) = state.feedback.remaining(&call.counters, now)
            && fewer < remaining
        {
            (remaining, more_at) = (fewer, until);
        }
        let algorithm = &rule.rule.limit.algorithm;
        let max_burst = algorithm.max_burst();
        Some(Quota {
            policy: rule.binding.to_string(),
            limit: max_burst,
            window: Duration::from_nanos(algorithm.mean_rate().nanos_of(max_burst)),
            remaining,
            reset: Duration::from_nanos(more_at.saturating_sub(now)),
        })
    }
}
