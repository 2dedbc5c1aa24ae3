//! The shares of this producer, on lease from a server.

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

use super::Standing;
use crate::shaping::{Shaping, shaper::Shares};

/// The lease of a producer, if its file says that limits are shared so; for the whole of its run.
pub(in crate::shaping) fn leased(sharing: Option<&Sharing>, member: &str) -> Option<Leased> {
    let config = sharing.map(|it| lease_config(it, member).expect("the file was checked"));
    let lease = Lease::new(config?);
    let plan = lease.plan();
    Some(Leased { lease, plan })
}

/// A lease, and what is in force of it.
#[derive(Debug)]
pub(in crate::shaping) struct Leased {
    pub(in crate::shaping) lease: Lease,
    pub(in crate::shaping) plan: Arc<SharePlan>,
}

impl Leased {
    /// What holds now, by limit, and for how long unless the server says otherwise.
    pub(in crate::shaping) fn shares<'a>(
        &self,
        limits: impl Iterator<Item = &'a str>,
    ) -> (Shares, Option<Duration>) {
        let now = self.lease.micros(Instant::now());
        let of = limits.map(|limit| (limit.to_owned(), self.plan.share(limit, now)));
        let shares = Shares {
            of: of.collect(),
            members_max: Some(match self.lease.config().terms.members_max {
                // A window that is new in the file waits for a restart, as [sharing] does: of so many parts none is left.
                0 => u64::MAX,
                most => most,
            }),
            is_refused: self.plan.refused().is_some(),
        };
        let changes = self.plan.changes(now);
        (shares, changes.map(|at| Duration::from_micros(at - now)))
    }

    /// Asks until `stop`.
    pub(in crate::shaping) fn run(
        &self,
        shaping: Shaping,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let user = Cookies {
            timeout: self.lease.config().terms.ttl * 1000,
            shaping,
            since: Instant::now(),
        };
        self.lease.clone().run(user, stop)
    }

    pub(in crate::shaping) fn standing<'a>(
        &self,
        limits: impl Iterator<Item = &'a str>,
    ) -> Standing {
        let now = self.lease.micros(Instant::now());
        let plan = &self.plan;
        let share = |limit: &str| {
            let sum = plan.granted(limit).map_or(0, |it| it.total);
            (limit.to_owned(), ratio(plan.share(limit, now)), ratio(sum))
        };
        let LeaseHealth {
            failures, error, ..
        } = self.lease.health();
        Standing {
            server: self.lease.config().server.to_string(),
            state: plan.state(now),
            missed: failures,
            error,
            group: plan.group(),
            shares: limits.map(share).collect(),
        }
    }
}

/// Millionths as a part of one.
fn ratio(millionths: u64) -> f64 {
    crate::metrics::as_f64(millionths) / 1e6
}

/// Those under shared limits.
struct Cookies {
    shaping: Shaping,
    since: Instant,
    /// Within which time what waits would go, in nanoseconds.
    timeout: u64,
}

impl ShareUser for Cookies {
    fn demands(&mut self) -> Vec<(String, u64)> {
        let elapsed = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.since = Instant::now();
        self.shaping.demands(elapsed, self.timeout)
    }

    fn apply(&mut self, plan: &Arc<SharePlan>) {
        self.shaping.set_plan(plan);
    }
}
