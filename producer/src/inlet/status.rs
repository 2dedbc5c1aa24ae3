//! Status of the limits, for metrics, the status page and `/readyz`.

use std::collections::BTreeMap;

use super::{Inlet, counters::LimitSummary};

impl Inlet {
    /// Counters and usage of each limit, by name, as of one moment.
    ///
    /// Holds the lock that all connections share while it visits every DSP of the file, with a few allocations for each
    /// DSP and rule. Use it per page or scrape, not per cookie.
    pub(crate) fn summaries(&self) -> BTreeMap<String, LimitSummary> {
        let now = self.now();
        self.state().dsp_limits.summaries(now)
    }

    /// Number of deletions by scope.
    pub(crate) fn deletions(&self) -> BTreeMap<&'static str, u64> {
        self.state().deletions.clone()
    }

    /// Number of cookies in all queues, including overdue cookies.
    pub fn held(&self) -> u64 {
        self.state().dsp_limits.held()
    }

    /// One-line description for `/readyz`; `None` without a contracts file.
    pub(crate) fn describe(&self) -> Option<String> {
        self.shared.file.as_ref()?;
        let has_limits = !self.state().rules.limits.is_empty();
        let mut text = if has_limits { "active" } else { "none" }.to_owned();
        if let Some(sharing) = self.sharing() {
            text += &format!("; {}", sharing.description);
        }
        Some(text)
    }
}
