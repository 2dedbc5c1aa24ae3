//! Limits that several producers keep together: what a producer takes part with.

mod leased;

use std::sync::Arc;

pub(super) use limits_sharing::member::ShareState;
use tokio_util::sync::CancellationToken;

pub(super) use self::leased::{Leased, leased};
use super::{Shaping, State};

/// How this producer takes part.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    /// Where the server is.
    pub(crate) server: String,
    /// What its shares are.
    pub(crate) state: ShareState,
    /// How many questions were not answered, or not in time.
    pub(crate) missed: u64,
    /// Why the last one was not.
    pub(crate) error: Option<String>,
    /// How many producers there are, and whether the server learns who is there.
    pub(crate) group: Option<(u64, bool)>,
    /// Of each limit: its name, this producer's share, and what the server says that all have.
    pub(crate) shares: Vec<(String, f64, f64)>,
}

impl Standing {
    /// In one line.
    pub(crate) fn in_words(&self) -> String {
        let server = &self.server;
        let state = match self.state {
            ShareState::Ok => "on lease",
            ShareState::Expired => "the lease has run out",
            ShareState::Fallback => "fallback share (server not responding)",
            ShareState::Guaranteed => "none from the server yet",
            ShareState::Refused => "refused by the server",
        };
        let group = match self.group {
            Some((count, true)) => format!(", {count} share them, the server learns who is there"),
            Some((count, false)) => format!(", {count} share them"),
            None => String::new(),
        };
        let error = self.error.iter().map(|error| format!("; {error}"));
        let error: String = error.collect();
        format!("shares of {server}: {state}{group}{error}")
    }
}

impl Shaping {
    /// Goes by this producer's shares as they are now, if they are others than before.
    pub(super) fn look_at_shares(&self, state: &mut State) {
        if state.leased.is_none() {
            return;
        }
        let now = self.now();
        if now < state.shares_change {
            return;
        }
        let State {
            shaper,
            rules,
            leased,
            ..
        } = state;
        let Some(leased) = leased else { return };
        let (shares, lasting) = leased.shares(rules.limits.iter().map(|it| &*it.name));
        shaper.share(rules, shares, now);
        let lasting = lasting.map_or(u64::MAX, |it| {
            u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
        });
        state.shares_change = now.saturating_add(lasting);
    }

    /// Takes part in shared limits until `stop`, if there are any.
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

    /// Other shares are in force when this returns.
    pub(super) fn set_plan(&self, plan: &Arc<limits_sharing::member::SharePlan>) {
        let mut state = self.state();
        if let Some(leased) = &mut state.leased {
            leased.plan = Arc::clone(plan);
        }
        state.shares_change = 0;
        self.look_at_shares(&mut state);
        drop(state);
        self.shared.woken.notify_one();
    }

    pub(super) fn demands(&self, elapsed: u64, timeout: u64) -> Vec<(String, u64)> {
        let mut state = self.state();
        let State { shaper, rules, .. } = &mut *state;
        shaper.demands(rules, elapsed, timeout)
    }

    /// How this producer takes part in shared limits, if it does.
    pub(crate) fn sharing(&self) -> Option<Standing> {
        let state = self.state();
        let names = state.rules.limits.iter().map(|it| &*it.name);
        state.leased.as_ref().map(|it| it.standing(names))
    }
}
