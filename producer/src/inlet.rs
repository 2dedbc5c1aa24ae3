//! The inlet: the only writer of cookies and deletions to the log, which applies the DSP rate limits. Cookies are accepted at any
//! rate, and released into the log at the rate of their limit.
//!
//! The response to a browser never waits; the *cookie* may. The contracts file defines the limits, and how to handle
//! cookies above them: only count (`observe`), drop (`police`) or queue (`shape`). Without limits, the inlet appends to the log
//! without taking its own lock.
//!
//! # Life of a cookie under a shaping limit
//!
//! An accepted cookie is appended to the log if it is within the limits; otherwise it enters the queue of its DSP
//! (`queue.rs`). It is *released* at its slot (reserved time) with its age, from which stores compute its acceptance time. A
//! newer cookie of the same user and DSP supersedes it. See `queue.rs` for cookies that wait too long, and
//! `docs/limits.md` for details.
//!
//! # Guarantees
//!
//! - In every scrape, each accepted cookie has exactly one outcome or is in a queue
//!   ([`metric_defs::equations::DSP_LIMITS`]).
//! - A cookie is appended to the log before any later cookie of the same user and DSP, or never.
//! - Each queue is bounded in bytes. There is one per listed DSP, and one for all unlisted DSPs.
//! - A killed process loses its queued cookies and no others. A process that shuts down saves its queued cookies in the
//!   spool (`--limits-spool`). If no spool is set or it cannot be written, the process releases the cookies regardless of
//!   their limits.
//!
//! # Cost
//!
//! All connections share one lock. If there are limits, it is taken once per read, for a lookup and a reservation per cookie
//! (`cargo bench -p producer` measures it). The release task wakes when a cookie is due, or to check for new limits.

mod clock;
mod cookie_table;
mod counters;
mod dsp_limits;
mod metrics;
mod queue;
mod sharing;
mod spool;
mod status;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use limits::rules::{Mode, Rules, Unknown};
use parking_lot::{Mutex, MutexGuard};
use proto::units::{Sequence, UnixMicros};
use tokio::{
    sync::{Notify, oneshot},
    task::spawn_blocking,
    time::timeout_at,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::metrics::register;
use self::{
    clock::{MonotonicClock, MonotonicNanos, nanos},
    cookie_table::QueuedCookie,
    counters::CookieOutcome,
    dsp_limits::{DspLimits, RELEASE_BATCH_MAX},
    queue::Admission,
    sharing::LeasedShares,
    spool::Spool,
};
use crate::{
    contracts::file::{ContractsFile, NO_LIMITS},
    log::{AppendBatch, Closed, Deletion, Log},
};

/// How often [`Inlet::run`] checks for new limits while no cookie is due.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Values of the label `scope` of the counter of deletions.
const DELETION_SCOPES: [&str; 5] = ["user", "pair", "dsp", "bulk", "optout"];

const OPEN: &str = "the log is closed only after the inlet is drained";

/// The inlet of one producer; clones share it.
#[derive(Debug, Clone)]
pub struct Inlet {
    shared: Arc<InletShared>,
}

#[derive(Debug)]
struct InletShared {
    log: Log,
    /// The limits; without a file, there are none.
    file: Option<ContractsFile>,
    spool: Option<Spool>,
    clock: MonotonicClock,
    wake: Notify,
    /// There are neither limits nor queued cookies, so cookies need no lock.
    is_idle: AtomicBool,
    state: Mutex<InletState>,
}

#[derive(Debug)]
struct InletState {
    dsp_limits: DspLimits,
    rules: Arc<Rules>,
    /// When [`Inlet::run`] wakes next.
    next_wake: MonotonicNanos,
    /// This producer's shares in shared limits.
    leased: Option<LeasedShares>,
    /// When the current shares must be computed again.
    shares_expire_at: MonotonicNanos,
    is_draining: bool,
    /// Number of deletions by scope.
    deletions: BTreeMap<&'static str, u64>,
}

impl Inlet {
    /// Applies the limits of `file` and releases into `log`. Locks the spool if its path is set, and restores its cookies.
    /// `name` is the producer's.
    ///
    /// # Errors
    /// When another process uses the spool.
    pub fn start(
        name: &str,
        file: Option<ContractsFile>,
        spool: Option<&Path>,
        log: Log,
    ) -> anyhow::Result<Self> {
        let lock = |path: &Path| {
            let locked = Spool::lock(path.to_owned());
            locked.with_context(|| format!("--limits-spool: {}", path.display()))
        };
        let spool = spool.map(lock).transpose()?;
        let rules = current_rules(file.as_ref());
        let sharing = rules.sharing.as_ref();
        let leased = sharing.map(|it| LeasedShares::new(it, name));
        let clock = MonotonicClock::start(UnixMicros(runtime::unix_micros()));
        let inlet = Self {
            shared: Arc::new(InletShared {
                state: Mutex::new(InletState {
                    dsp_limits: DspLimits::new(&rules, clock.at(Instant::now())),
                    rules,
                    next_wake: MonotonicNanos::NEVER,
                    leased,
                    shares_expire_at: MonotonicNanos::PAST,
                    is_draining: false,
                    deletions: DELETION_SCOPES.map(|scope| (scope, 0)).into(),
                }),
                log,
                spool,
                clock,
                wake: Notify::new(),
                is_idle: AtomicBool::new(file.is_none()),
                file,
            }),
        };
        inlet.update_shares(&mut inlet.state());
        inlet.restore_spool();
        Ok(inlet)
    }

    /// The log that it appends to.
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    fn now(&self) -> MonotonicNanos {
        self.shared.clock.at(Instant::now())
    }

    /// Appends the cookies of a batch that are within their limits to the log, and copies others into their queues. Empties the
    /// batch, which was read at `read_at`.
    ///
    /// Holds the lock until the cookies are in the log, so that no later cookie of the same user and DSP is released first.
    ///
    /// Returns the number of cookies that exceeded their limits and were dropped.
    ///
    /// # Errors
    /// [`Closed`] when the log is closed. The cookies within their limits count as released even then.
    pub fn append(&self, batch: &mut AppendBatch, read_at: Instant) -> Result<u64, Closed> {
        if self.shared.is_idle.load(Ordering::Relaxed) {
            self.shared.log.append(batch)?;
            return Ok(0);
        }
        let now = self.shared.clock.at(read_at);
        let mut state = self.state();
        self.update_shares(&mut state);
        let log = &self.shared.log;
        // While draining, the log is about to close and rejects the batch.
        let mut dropped = 0;
        if !state.is_draining {
            let mut is_queued = false;
            let aged_at = batch.aged_at();
            batch.retain(|cookie| {
                let log_now = || aged_at.unwrap_or_else(|| log.now());
                let admission = state.dsp_limits.offer(cookie, now, log_now);
                is_queued |= admission == Admission::Queued;
                dropped += u64::from(admission == Admission::Dropped);
                admission == Admission::Release
            });
            if is_queued && state.dsp_limits.due() < state.next_wake {
                // Prevents further notifications until the task has run.
                state.next_wake = MonotonicNanos::PAST;
                self.shared.wake.notify_one();
            }
        }
        log.append(batch)?;
        Ok(dropped)
    }

    /// Drops the queued cookies that these deletions cover, and appends the deletions to the log; counts them under `scope`. The
    /// receiver gets the sequence number of the last one when they are in the log.
    ///
    /// Holds the lock for a lookup per deletion and DSP in the queues, and for the append; a deletion of a DSP scans its queue. A
    /// match that arrives later is thus appended later.
    ///
    /// # Errors
    /// [`Closed`] when the log is closed.
    pub(crate) fn delete(
        &self,
        deletions: Vec<Deletion>,
        scope: &'static str,
    ) -> Result<oneshot::Receiver<Sequence>, Closed> {
        let mut state = self.state();
        for deletion in &deletions {
            state.dsp_limits.delete(deletion);
        }
        let count = deletions.len() as u64;
        let sequence = self.shared.log.append_deletions(deletions)?;
        *state.deletions.entry(scope).or_default() += count;
        Ok(sequence)
    }

    /// Releases due cookies and applies new versions of the limits, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        if self.shared.file.is_none() {
            return;
        }
        loop {
            let wait = self.release_due();
            if wait.is_zero() {
                tokio::task::yield_now().await;
                if stop.is_cancelled() {
                    return;
                }
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.shared.wake.notified() => {}
            }
        }
    }

    /// Releases due cookies; returns the time until the next call.
    fn release_due(&self) -> Duration {
        let now = self.now();
        let mut state = self.state();
        if state.is_draining {
            return POLL_INTERVAL;
        }
        self.update_rules(&mut state, now);
        self.update_shares(&mut state);
        let released = state.dsp_limits.release_due(now);
        // Under the lock, so that no later cookie of the same user and DSP is released first.
        append(&self.shared.log, &released).expect(OPEN);
        let is_idle = state.rules.limits.is_empty() && state.dsp_limits.held() == 0;
        self.shared.is_idle.store(is_idle, Ordering::Relaxed);
        let wait = state.dsp_limits.due().since(now);
        let wait = wait.min(nanos(POLL_INTERVAL));
        state.next_wake = now.after(wait);
        Duration::from_nanos(wait)
    }

    fn update_rules(&self, state: &mut InletState, now: MonotonicNanos) {
        let newest = current_rules(self.shared.file.as_ref());
        if !Arc::ptr_eq(&newest, &state.rules) {
            state.dsp_limits.set_rules(&newest, now);
            state.rules = newest;
            state.shares_expire_at = MonotonicNanos::PAST;
            if let Some(leased) = &state.leased {
                leased.lease.refresh_now();
            }
            let queue_bytes_max = queue_bytes_max(&state.rules);
            tracing::info!(queue_bytes_max, "limits reloaded");
        }
    }

    /// Empties the queues at shutdown: into the spool if it can be written by `deadline`, otherwise into the log.
    pub(crate) async fn drain(&self, deadline: tokio::time::Instant) {
        let now = self.now();
        let cookies = {
            let mut state = self.state();
            state.is_draining = true;
            state.dsp_limits.remove_all(now)
        };
        let (count, log) = (cookies.len(), &self.shared.log);
        let cookies = Arc::new(cookies);
        let is_spooled = match &self.shared.spool {
            Some(spool) if count > 0 => {
                write_spool(spool, Arc::clone(&cookies), log.now(), deadline)
                    .await
                    .inspect_err(|error| {
                        let path = spool.path.display();
                        tracing::error!(%path, %error, "failed to write the spool");
                    })
                    .is_ok()
            }
            _ => false,
        };
        let mut state = self.state();
        let mut batches = cookies.chunks(RELEASE_BATCH_MAX);
        let outcome = if is_spooled {
            CookieOutcome::Spooled
        } else if batches.all(|batch| append(log, batch).is_ok()) {
            CookieOutcome::ReleasedEarly
        } else {
            CookieOutcome::Drain
        };
        state.dsp_limits.settle(outcome);
        drop(state);
        let cookies = count;
        match outcome {
            _ if count == 0 => {}
            CookieOutcome::Spooled => tracing::info!(cookies, "wrote queued cookies to the spool"),
            CookieOutcome::ReleasedEarly => {
                tracing::info!(cookies, "released queued cookies, ignoring their limits")
            }
            _ => tracing::error!(
                cookies,
                "lost queued cookies: they could be neither spooled nor released"
            ),
        }
    }

    /// Queues the cookies that the previous run saved in the spool.
    fn restore_spool(&self) {
        let Some(spool) = &self.shared.spool else {
            return;
        };
        let now = self.now();
        let restored = spool.read(|cookie, accepted| {
            let age_micros = self.shared.log.now().since(accepted);
            let accepted_at = now.before(age_micros.saturating_mul(1000));
            QueuedCookie::new(&cookie, accepted, accepted_at)
        });
        let restored = restored.unwrap_or_default();
        if restored.is_empty() {
            return;
        }
        tracing::info!(
            cookies = restored.len(),
            "restored queued cookies from the spool"
        );
        let mut state = self.state();
        let restore = |cookie| state.dsp_limits.restore(cookie, now);
        let unlimited: Vec<_> = restored.into_iter().filter_map(restore).collect();
        for batch in unlimited.chunks(RELEASE_BATCH_MAX) {
            append(&self.shared.log, batch).expect(OPEN);
        }
        spool.remove();
    }

    fn state(&self) -> MutexGuard<'_, InletState> {
        self.shared.state.lock()
    }
}

/// The limits of the current version of the file.
fn current_rules(file: Option<&ContractsFile>) -> Arc<Rules> {
    file.map_or_else(
        || Arc::new(NO_LIMITS),
        |file| Arc::clone(&file.current().limits),
    )
}

/// Appends cookies with their ages.
fn append<'a>(
    log: &Log,
    cookies: impl IntoIterator<Item = &'a QueuedCookie>,
) -> Result<(), Closed> {
    let cookies = cookies
        .into_iter()
        .map(|queued| (queued.cookie(), queued.accepted));
    log.append_accepted(cookies)
}

/// Saves cookies in the spool, if they are written by `deadline`.
///
/// A file that is written later is never renamed, because its cookies are released. The rename itself has no deadline:
/// until it returns, it is unknown whether the spool contains the cookies.
async fn write_spool(
    spool: &Spool,
    cookies: Arc<Vec<QueuedCookie>>,
    now: UnixMicros,
    deadline: tokio::time::Instant,
) -> io::Result<()> {
    let unfinished = spool.clone();
    let writing = spawn_blocking(move || unfinished.write(&cookies, now));
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "drain deadline exceeded");
    timeout_at(deadline, writing).await.map_err(timed_out)???;
    let written = spool.clone();
    spawn_blocking(move || written.publish()).await?
}

/// Maximum bytes of all queues: `queue_bytes` for each DSP that a shaping limit lists, and once more if that limit applies
/// to all unlisted DSPs.
pub(crate) fn queue_bytes_max(rules: &Rules) -> u64 {
    let unlisted = |index| u64::from(rules.unknown == Unknown::Limit(index));
    let limits = rules.limits.iter().enumerate();
    let shaped = limits.filter(|(_, limit)| limit.handling.mode == Mode::Shape);
    let queues = shaped.map(|(index, limit)| {
        let count = limit.keys.len() as u64 + unlisted(index);
        limit.handling.shape.queue_bytes.saturating_mul(count)
    });
    queues.fold(0, u64::saturating_add)
}

#[cfg(test)]
pub(crate) mod tests;
