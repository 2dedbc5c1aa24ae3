//! Decisions in this process, by one thread: the library, the library with a share on lease, and `governor`.
//!
//! Each reads the clock for each decision, and keeps its table under a lock, as where threads share it.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fastrand::Rng;
use governor::{DefaultKeyedRateLimiter, Quota};
use limits::{Algorithm, Carry, Decision, Demand, LimitId, Limits};
use limits_sharing::{
    lease::{Lease, User},
    member::Plan,
    terms::WHOLE,
};
use tokio_util::sync::CancellationToken;

use super::{
    calls::{BURST, LIMIT, RATE},
    tally::Tally,
};

/// One decision of so many is timed; the others only count.
pub(super) const TIMED_EACH: u64 = 64;

/// The time of the library begins here: in the middle of what it has.
const EPOCH_NANOS: u64 = 1_000_000_000_000_000_000;

/// Who decides.
pub(super) enum InProcess {
    Local(Local),
    Governor(DefaultKeyedRateLimiter<u64>),
    Lease(Arc<Leased>),
}

/// The limit of all ways.
pub(super) fn whole() -> Result<Algorithm> {
    Ok(Algorithm::token_bucket(
        &format!("{RATE}/s"),
        u64::from(BURST),
    )?)
}

impl InProcess {
    pub(super) fn local(counters: u64) -> Result<Self> {
        Ok(Self::Local(Local {
            table: Mutex::new(Table::new(counters, whole()?)?),
            began: Instant::now(),
        }))
    }

    pub(super) fn governor() -> Result<Self> {
        let rate = u32::try_from(RATE).ok().and_then(NonZeroU32::new);
        let rate = rate.context("governor has no such rate")?;
        let burst = NonZeroU32::new(BURST).context("no burst")?;
        let quota = Quota::per_second(rate).allow_burst(burst);
        Ok(Self::Governor(DefaultKeyedRateLimiter::keyed(quota)))
    }

    /// Decides for so long, or until `stop`.
    pub(super) fn ask(&self, counters: u64, length: Duration, stop: &CancellationToken) -> Tally {
        match self {
            Self::Local(local) => ask(counters, length, stop, |counter| local.decide(counter)),
            Self::Governor(governor) => ask(counters, length, stop, |counter| {
                governor.check_key(&counter).is_ok()
            }),
            Self::Lease(leased) => ask(counters, length, stop, |counter| leased.decide(counter)),
        }
    }
}

fn ask(
    counters: u64,
    length: Duration,
    stop: &CancellationToken,
    mut decide: impl FnMut(u64) -> bool,
) -> Tally {
    let mut random = Rng::new();
    let mut tally = Tally::default();
    let began = Instant::now();
    loop {
        let before = Instant::now();
        let goes = decide(random.u64(..counters));
        let after = Instant::now();
        tally.took(after - before);
        let mut refused = u64::from(!goes);
        for _ in 1..TIMED_EACH {
            refused += u64::from(!decide(random.u64(..counters)));
        }
        tally.decided(after - began, TIMED_EACH);
        tally.wrong(refused, || "a call was not let go at once".to_owned());
        if after - began >= length || stop.is_cancelled() {
            return tally;
        }
    }
}

struct Table {
    limits: Limits<u64>,
    limit: LimitId,
}

impl Table {
    /// With room for all counters: half of it belongs to no limit in particular.
    fn new(counters: u64, algorithm: Algorithm) -> Result<Self> {
        let counters = usize::try_from(counters).context("too many counters")?;
        let mut limits = Limits::new(2 * counters);
        let limit = limits.add(algorithm)?;
        Ok(Self { limits, limit })
    }

    fn decide(&mut self, counter: u64, now: u64) -> bool {
        let demand = Demand {
            limit: self.limit,
            key: counter,
            requests: 1,
        };
        self.limits.reserve(&[demand], now, Duration::ZERO) == Decision::Now
    }
}

/// The library alone.
pub(super) struct Local {
    table: Mutex<Table>,
    began: Instant,
}

impl Local {
    fn decide(&self, counter: u64) -> bool {
        let now = nanos(self.began.elapsed());
        lock(&self.table).decide(counter, now)
    }
}

/// The library with the share that a lease gives.
pub(super) struct Leased {
    lease: Lease,
    table: Mutex<Shared>,
    began: Instant,
}

struct Shared {
    table: Table,
    plan: Option<Arc<Plan>>,
    share: u64,
    /// When the share may be another, in microseconds of the lease.
    changes: u64,
}

impl Leased {
    pub(super) fn new(lease: Lease, counters: u64) -> Result<Self> {
        let nothing = whole()?.shared(0).context("it can be shared")?;
        Ok(Self {
            lease,
            table: Mutex::new(Shared {
                table: Table::new(counters, nothing)?,
                plan: None,
                share: 0,
                changes: 0,
            }),
            began: Instant::now(),
        })
    }

    /// Whether it has a share by now.
    pub(super) fn has_share(&self) -> bool {
        let now = self.lease.micros(Instant::now());
        self.lease.plan().share(LIMIT, now) > 0
    }

    fn decide(&self, counter: u64) -> bool {
        let at = Instant::now();
        let (micros, now) = (self.lease.micros(at), nanos(at - self.began));
        let mut shared = lock(&self.table);
        if micros >= shared.changes {
            shared.update(micros, now);
        }
        shared.table.decide(counter, now)
    }
}

impl Shared {
    /// Takes the share that holds now into use.
    fn update(&mut self, micros: u64, now: u64) {
        let Some(plan) = &self.plan else { return };
        let share = plan.share(LIMIT, micros);
        self.changes = plan.changes(micros).unwrap_or(u64::MAX);
        if share != self.share {
            let limit = whole().ok().and_then(|whole| whole.shared(share));
            let limit = limit.expect("a token bucket can be shared");
            let Table { limits, limit: id } = &mut self.table;
            let changed = limits.change(*id, limit, Carry::AsIs, now);
            changed.expect("its numbers are smaller than those of the whole");
            self.share = share;
        }
    }
}

/// What tells the lease how much is wanted, and takes what it gives.
pub(super) struct Shop(pub(super) Arc<Leased>);

impl User for Shop {
    fn demands(&mut self) -> Vec<(String, u64)> {
        vec![(LIMIT.to_owned(), WHOLE)]
    }

    fn apply(&mut self, plan: &Arc<Plan>) {
        let mut shared = lock(&self.0.table);
        shared.plan = Some(Arc::clone(plan));
        shared.changes = 0;
    }
}

fn nanos(elapsed: Duration) -> u64 {
    EPOCH_NANOS + u64::try_from(elapsed.as_nanos()).unwrap_or(0)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_go_and_are_counted() {
        let stop = CancellationToken::new();
        stop.cancel();
        for way in [InProcess::local(3).unwrap(), InProcess::governor().unwrap()] {
            let tally = way.ask(3, Duration::from_secs(60), &stop);
            assert_eq!((tally.count(), tally.wrong), (TIMED_EACH, 0));
            assert_eq!(tally.nanos.len(), 1);
        }
    }
}
