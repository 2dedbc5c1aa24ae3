//! Limits that several producers share: a server leases each producer a share of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use limits::rules::{Rules, Sharing};
pub(super) use limits_sharing::member::ShareState;
use limits_sharing::{
    dsp_limits::lease_config,
    lease::{Lease, ShareUser},
    member::SharePlan,
};
use runtime::metrics::as_f64;
use tokio_util::sync::CancellationToken;

use super::{
    Inlet, InletState,
    clock::{MonotonicNanos, nanos},
    dsp_limits::Shares,
};

/// The lease of this producer and its active plan; the lease is fixed until the process ends.
#[derive(Debug)]
pub(super) struct LeasedShares {
    pub(super) lease: Arc<Lease>,
    plan: Arc<SharePlan>,
}

impl LeasedShares {
    pub(super) fn new(sharing: &Sharing, member: &str) -> Self {
        let config = lease_config(sharing, member).expect("the file was checked");
        let lease = Lease::new(config);
        let plan = lease.plan();
        Self { lease, plan }
    }

    /// Current shares, by limit, and how long they are valid without a new plan.
    fn shares(&self, rules: &Rules) -> (Shares, Option<Duration>) {
        let now = self.lease.micros(Instant::now());
        let limits = rules.limits.iter();
        let by_limit = limits.map(|it| (it.name.clone(), self.plan.share(&it.name, now)));
        let shares = Shares {
            by_limit: by_limit.collect(),
            members_max: Some(match self.lease.config().terms.members_max {
                // Windows need `members_max`. If a later file adds one, its share is zero until a restart.
                0 => u64::MAX,
                members_max => members_max,
            }),
            is_refused: self.plan.refused().is_some(),
        };
        let changes = self.plan.changes(now);
        (shares, changes.map(|at| Duration::from_micros(at - now)))
    }
}

/// Status of this producer in the group that shares the limits.
#[derive(Debug, Clone)]
pub(crate) struct SharingStatus {
    /// One-line description.
    pub(crate) description: String,
    /// State of this producer's shares.
    pub(crate) state: ShareState,
    /// Name of each limit, this producer's share, and the sum of all shares as reported by the server.
    pub(crate) shares: Vec<(String, f64, f64)>,
}

impl Inlet {
    /// Applies the current shares of this producer if they have changed.
    pub(super) fn update_shares(&self, state: &mut InletState) {
        let Some(leased) = &state.leased else {
            return;
        };
        let now = self.now();
        if now < state.shares_expire_at {
            return;
        }
        let (shares, valid_for) = leased.shares(&state.rules);
        state.dsp_limits.set_shares(&state.rules, shares, now);
        let valid_for = valid_for.map_or(u64::MAX, nanos);
        state.shares_expire_at = now.after(valid_for);
    }

    /// Renews the lease until `stop`, if limits are shared.
    pub(crate) async fn share(self, stop: CancellationToken) {
        let lease = self.state().leased.as_ref().map(|it| Arc::clone(&it.lease));
        let Some(lease) = lease else { return };
        let user = LeaseUser {
            timeout: lease.config().terms.ttl() * 1000,
            inlet: self,
            since: Instant::now(),
        };
        lease.run(user, stop).await;
    }

    /// Status of this producer in the group; `None` if limits are not shared.
    pub(crate) fn sharing(&self) -> Option<SharingStatus> {
        let state = self.state();
        let LeasedShares { lease, plan } = state.leased.as_ref()?;
        let now = lease.micros(Instant::now());
        let limits = state.rules.limits.iter().map(|it| &it.name);
        let shares = limits.map(|limit| {
            let sum = plan.granted(limit).map_or(0, |it| it.total);
            (limit.clone(), ratio(plan.share(limit, now)), ratio(sum))
        });
        let (server, state) = (&lease.config().server, plan.state(now));
        let group = match plan.group() {
            Some((count, true)) => format!(", {count} members (the server is discovering members)"),
            Some((count, false)) => format!(", {count} members"),
            None => String::new(),
        };
        let error = lease.error().map(|error| format!("; {error}"));
        let error = error.unwrap_or_default();
        Some(SharingStatus {
            description: format!("shares from {server}: {}{group}{error}", state.name()),
            state,
            shares: shares.collect(),
        })
    }
}

/// Converts millionths to a fraction.
fn ratio(millionths: u64) -> f64 {
    as_f64(millionths) / 1e6
}

/// Connects a lease with the queues: reports their demand, and applies new plans.
struct LeaseUser {
    inlet: Inlet,
    since: Instant,
    /// Time within which queued cookies should be released, in nanoseconds.
    timeout: u64,
}

impl ShareUser for LeaseUser {
    fn demands(&mut self) -> Vec<(String, u64)> {
        let elapsed = nanos(self.since.elapsed());
        self.since = Instant::now();
        let state = &mut *self.inlet.state();
        state
            .dsp_limits
            .demands(&state.rules, elapsed, self.timeout)
    }

    /// The shares of the plan are active when this returns.
    fn apply(&mut self, plan: &Arc<SharePlan>) {
        let mut state = self.inlet.state();
        if let Some(leased) = &mut state.leased {
            leased.plan = Arc::clone(plan);
        }
        state.shares_expire_at = MonotonicNanos::PAST;
        self.inlet.update_shares(&mut state);
        drop(state);
        self.inlet.shared.wake.notify_one();
    }
}
