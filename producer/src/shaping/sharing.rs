//! Limits that several producers share through a server.

mod lease;

use std::sync::Arc;

pub(super) use limits_sharing::member::ShareState;
use tokio_util::sync::CancellationToken;

pub(super) use self::lease::{LeasedShares, lease};
use super::{Shaping, ShapingState};

/// Status of this producer in the group that shares the limits.
#[derive(Debug, Clone)]
pub(crate) struct SharingStatus {
    /// Address of the server.
    pub(crate) server: String,
    /// State of this producer's shares.
    pub(crate) state: ShareState,
    /// Requests without a reply of the server in time.
    pub(crate) missed: u64,
    /// Error of the last request, if it failed.
    pub(crate) error: Option<String>,
    /// Number of members, and whether the server is still discovering members.
    pub(crate) group: Option<(u64, bool)>,
    /// Name of each limit, this producer's share, and the sum of all shares as reported by the server.
    pub(crate) shares: Vec<(String, f64, f64)>,
}

impl SharingStatus {
    /// One-line description.
    pub(crate) fn describe(&self) -> String {
        let server = &self.server;
        let state = match self.state {
            ShareState::Ok => "leased",
            ShareState::Expired => "lease expired",
            ShareState::Fallback => "fallback share (server not responding)",
            ShareState::Guaranteed => "none received yet",
            ShareState::Refused => "rejected by the server",
        };
        let group = match self.group {
            Some((count, true)) => format!(", {count} members (the server is discovering members)"),
            Some((count, false)) => format!(", {count} members"),
            None => String::new(),
        };
        let error = self.error.iter().map(|error| format!("; {error}"));
        let error: String = error.collect();
        format!("shares from {server}: {state}{group}{error}")
    }
}

impl Shaping {
    /// Applies the current shares of this producer if they have changed.
    pub(super) fn update_shares(&self, state: &mut ShapingState) {
        if state.leased.is_none() {
            return;
        }
        let now = self.now();
        if now < state.shares_expire_at {
            return;
        }
        let ShapingState {
            shaper,
            rules,
            leased,
            ..
        } = state;
        let Some(leased) = leased else { return };
        let (shares, valid_for) = leased.shares(rules.limits.iter().map(|it| &*it.name));
        shaper.set_shares(rules, shares, now);
        let valid_for = valid_for.map_or(u64::MAX, |it| {
            u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
        });
        state.shares_expire_at = now.saturating_add(valid_for);
    }

    /// Renews the lease until `stop`, if limits are shared.
    pub(crate) async fn share(self, stop: CancellationToken) {
        let lease = {
            let state = self.state();
            let lease = state.leased.as_ref();
            lease.map(|it| it.run(self.clone(), stop))
        };
        if let Some(lease) = lease {
            lease.await;
        }
    }

    /// Sets a new plan; its shares are active when this returns.
    pub(super) fn set_plan(&self, plan: &Arc<limits_sharing::member::SharePlan>) {
        let mut state = self.state();
        if let Some(leased) = &mut state.leased {
            leased.plan = Arc::clone(plan);
        }
        state.shares_expire_at = 0;
        self.update_shares(&mut state);
        drop(state);
        self.shared.wake.notify_one();
    }

    pub(super) fn demands(&self, elapsed: u64, timeout: u64) -> Vec<(String, u64)> {
        let mut state = self.state();
        let ShapingState { shaper, rules, .. } = &mut *state;
        shaper.demands(rules, elapsed, timeout)
    }

    /// Status of this producer in the group; `None` if limits are not shared.
    pub(crate) fn sharing(&self) -> Option<SharingStatus> {
        let state = self.state();
        let names = state.rules.limits.iter().map(|it| &*it.name);
        state.leased.as_ref().map(|it| it.status(names))
    }
}
