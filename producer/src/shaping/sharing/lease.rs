//! Shares that this producer leases from the server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use limits::rules::Sharing;
use limits_sharing::{
    dsp_limits::lease_config,
    lease::{Lease, LeaseHealth, ShareUser},
    member::SharePlan,
};
use tokio_util::sync::CancellationToken;

use super::SharingStatus;
use crate::shaping::{Shaping, shaper::Shares};

/// The lease of this producer, if the contracts file has `[sharing]`; fixed until the process ends.
pub(in crate::shaping) fn lease(sharing: Option<&Sharing>, member: &str) -> Option<LeasedShares> {
    let config = sharing.map(|it| lease_config(it, member).expect("the file was checked"));
    let lease = Lease::new(config?);
    let plan = lease.plan();
    Some(LeasedShares { lease, plan })
}

/// A lease and its active plan.
#[derive(Debug)]
pub(in crate::shaping) struct LeasedShares {
    pub(in crate::shaping) lease: Lease,
    pub(in crate::shaping) plan: Arc<SharePlan>,
}

impl LeasedShares {
    /// Current shares, by limit, and how long they are valid without a new plan.
    pub(in crate::shaping) fn shares<'a>(
        &self,
        limits: impl Iterator<Item = &'a str>,
    ) -> (Shares, Option<Duration>) {
        let now = self.lease.micros(Instant::now());
        let by_limit = limits.map(|limit| (limit.to_owned(), self.plan.share(limit, now)));
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

    /// Renews the lease until `stop`.
    pub(in crate::shaping) fn run(
        &self,
        shaping: Shaping,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let user = LeaseUser {
            timeout: self.lease.config().terms.ttl * 1000,
            shaping,
            since: Instant::now(),
        };
        self.lease.clone().run(user, stop)
    }

    pub(in crate::shaping) fn status<'a>(
        &self,
        limits: impl Iterator<Item = &'a str>,
    ) -> SharingStatus {
        let now = self.lease.micros(Instant::now());
        let plan = &self.plan;
        let share = |limit: &str| {
            let sum = plan.granted(limit).map_or(0, |it| it.total);
            (limit.to_owned(), ratio(plan.share(limit, now)), ratio(sum))
        };
        let LeaseHealth {
            failures, error, ..
        } = self.lease.health();
        SharingStatus {
            server: self.lease.config().server.to_string(),
            state: plan.state(now),
            missed: failures,
            error,
            group: plan.group(),
            shares: limits.map(share).collect(),
        }
    }
}

/// Converts millionths to a fraction.
fn ratio(millionths: u64) -> f64 {
    runtime::metrics::as_f64(millionths) / 1e6
}

/// Connects a lease with the queues: reports their demand, and applies new plans.
struct LeaseUser {
    shaping: Shaping,
    since: Instant,
    /// Time within which queued cookies should be released, in nanoseconds.
    timeout: u64,
}

impl ShareUser for LeaseUser {
    fn demands(&mut self) -> Vec<(String, u64)> {
        let elapsed = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.since = Instant::now();
        self.shaping.demands(elapsed, self.timeout)
    }

    fn apply(&mut self, plan: &Arc<SharePlan>) {
        self.shaping.set_plan(plan);
    }
}
