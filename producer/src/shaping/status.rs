//! Status of the limits, for metrics, the status page and `/readyz`.

use std::collections::BTreeMap;

use super::{Shaping, counters::LimitSummary};

impl Shaping {
    /// Counters and usage of each limit, by name, as of one moment.
    ///
    /// Holds the lock that all connections share while it visits every DSP of the file, with a few allocations for each
    /// DSP and rule. Use it per page or scrape, not per cookie.
    pub(crate) fn summaries(&self) -> BTreeMap<String, LimitSummary> {
        let now = self.now();
        self.state().shaper.summaries(now)
    }

    /// Number of cookies in all queues, including dead letters.
    pub fn held(&self) -> u64 {
        self.state().shaper.held()
    }

    /// One-line description for `/readyz`.
    pub(crate) fn describe(&self) -> String {
        let has_limits = !self.state().rules.limits.is_empty();
        let mut text = if has_limits { "active" } else { "none" }.to_owned();
        if let Some(sharing) = self.sharing() {
            text += &format!("; {}", sharing.describe());
        }
        text
    }
}
