//! All queues of a producer's DSP limits. Does no I/O; the caller passes the time.
//!
//! Every cookie of a limited DSP is passed to [`DspLimits::offer`], and is released immediately, queued or dropped. The
//! caller runs [`DspLimits::release_due`] when [`DspLimits::due`] has passed.
//!
//! One reservation covers the limits of a cookie's DSP and the global limits. While cookies are queued, only the first
//! cookies of each FIFO get reservations. The queues are served round-robin: under a global limit, each queue gets the
//! same rate regardless of its length.

mod reload;
mod shares;

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use limits::{
    LimitId, Limits,
    rules::{Mode, Rules},
};
use limits_sharing::dsp_limits::DSPS_MAX;
use proto::units::{DspId, UnixMicros};

pub(super) use self::shares::Shares;
use super::{
    clock::MonotonicNanos,
    cookie_table::QueuedCookie,
    counters::{CookieOutcome, LimitSummary},
    queue::{Admission, DspQueue},
};
use crate::log::{Deletion, append_batch::StagedCookie};

/// The key of the queue that all unlisted DSPs share, and of the global limits; no DSP has this id.
const SHARED_KEY: DspId = DspId::NONE;

/// Maximum number of cookies released under one lock, which bounds the time that the lock is held.
pub(super) const RELEASE_BATCH_MAX: usize = 256;

/// All queues.
#[derive(Debug)]
pub(crate) struct DspLimits {
    limits: Limits<DspId>,
    limit_ids: BTreeMap<RuleName, LimitId>,
    /// Ids of removed rules, for reuse.
    free_limit_ids: Vec<LimitId>,
    /// Shares of this process in the limits.
    shares: Shares,
    queues: Vec<NamedQueue>,
    by_dsp: HashMap<DspId, usize, RandomState>,
    /// The queue of all unlisted DSPs.
    unlisted: Option<usize>,
    /// The latest time passed by a caller.
    latest: MonotonicNanos,
    /// Queues that may contain cookies of DSPs that now have another queue, by key.
    stray_queues: HashMap<DspId, Vec<usize>, RandomState>,
    /// Queues that are not empty. The list is rotated after each release, so that each queue is first once per round.
    non_empty: Vec<usize>,
    /// Number of queues with a non-empty FIFO.
    active: u64,
    /// Earliest time at which a queue may be due.
    due: MonotonicNanos,
}

/// Limit and rule, and whether this is the copy for observe mode.
type RuleName = (String, String, bool);

/// A queue with its limit and its key.
#[derive(Debug)]
struct NamedQueue {
    /// Name of the limit.
    name: String,
    key: DspId,
    queue: DspQueue,
    /// Accepted cookies at the last call of [`DspLimits::demands`].
    accepted_before: u64,
    /// The contracts file no longer has this limit or key.
    is_closing: bool,
    /// Number of removed cookies without an outcome yet.
    unsettled: u64,
    /// It is listed in [`DspLimits::non_empty`].
    is_listed: bool,
}

impl DspLimits {
    /// The queues of limits that were [checked](limits_sharing::dsp_limits::check).
    pub(super) fn new(rules: &Rules, now: MonotonicNanos) -> Self {
        let rules_max = DSPS_MAX * limits::DEMANDS_MAX;
        let mut dsp_limits = Self {
            limits: Limits::new(rules_max),
            limit_ids: BTreeMap::new(),
            free_limit_ids: Vec::new(),
            shares: Shares::default(),
            queues: Vec::new(),
            by_dsp: HashMap::default(),
            unlisted: None,
            latest: now,
            stray_queues: HashMap::default(),
            non_empty: Vec::new(),
            active: 0,
            due: MonotonicNanos::PAST,
        };
        dsp_limits.set_rules(rules, now);
        dsp_limits
    }

    /// Decides on a cookie that was just accepted. Calls `log_now` only for a cookie that is queued or has one in a queue.
    pub(crate) fn offer(
        &mut self,
        cookie: StagedCookie<'_>,
        now: MonotonicNanos,
        log_now: impl Fn() -> UnixMicros,
    ) -> Admission {
        // Connections read the clock before they take the lock.
        let now = now.max(self.latest);
        self.latest = now;
        let accepted = || log_now().before(cookie.cookie().age_micros);
        let dsp_id = cookie.dsp_id();
        let index = self.by_dsp.get(&dsp_id).copied().or(self.unlisted);
        if !self.stray_queues.is_empty() {
            let of = |key| self.stray_queues.get(&key).into_iter().flatten();
            for stray in of(dsp_id).chain(of(SHARED_KEY)) {
                if index != Some(*stray) {
                    self.queues[*stray].queue.supersede(cookie, accepted);
                }
            }
        }
        let Some(index) = index else {
            return Admission::Release;
        };
        let queue = &mut self.queues[index].queue;
        let limits = &mut self.limits;
        let mode = queue.config.handling.mode;
        let admission = match mode {
            Mode::Police => queue.police(limits, now),
            Mode::Shape => {
                let queued = || {
                    let cookie = cookie.cookie();
                    let age_nanos = cookie.age_micros.saturating_mul(1_000);
                    let mut queued = QueuedCookie::new(&cookie, accepted(), now.before(age_nanos));
                    queued.entered = now;
                    queued
                };
                queue.shape(limits, cookie, now, self.active, queued)
            }
            Mode::Observe => queue.observe(limits, now),
        };
        if admission == Admission::Release && mode != Mode::Shape {
            queue.supersede(cookie, accepted);
        }
        if admission != Admission::Release {
            queue.counters.accepted += 1;
        }
        if admission == Admission::Queued {
            self.due = self.due.min(queue.due().unwrap_or(MonotonicNanos::NEVER));
            self.list(index);
        }
        admission
    }

    /// Drops the queued cookies that a deletion covers.
    pub(super) fn delete(&mut self, deletion: &Deletion) {
        for named in &mut self.queues {
            named.queue.delete(deletion);
        }
    }

    /// Queues a cookie from the spool of the previous run; returns it if its DSP is no longer limited.
    pub(super) fn restore(
        &mut self,
        cookie: QueuedCookie,
        now: MonotonicNanos,
    ) -> Option<QueuedCookie> {
        let index = self.by_dsp.get(&cookie.dsp_id).copied().or(self.unlisted);
        let Some(index) = index else {
            return Some(cookie);
        };
        self.queues[index].queue.restore(cookie, now, self.active);
        self.list(index);
        None
    }

    /// Adds a queue to those that are not empty.
    fn list(&mut self, index: usize) {
        if !std::mem::replace(&mut self.queues[index].is_listed, true) {
            self.non_empty.push(index);
        }
    }

    /// When to call [`release_due`](Self::release_due): [`NEVER`](MonotonicNanos::NEVER) if no cookie will be due, a past time if
    /// one batch was not enough.
    pub(super) fn due(&self) -> MonotonicNanos {
        self.due
    }

    /// Removes due cookies, in release order, and reserves slots for the next cookies.
    pub(super) fn release_due(&mut self, now: MonotonicNanos) -> Vec<QueuedCookie> {
        let now = now.max(self.latest);
        self.latest = now;
        let non_empty = std::mem::take(&mut self.non_empty);
        let mut released = Vec::new();
        for &index in &non_empty {
            let named = &mut self.queues[index];
            if named.is_shaping() {
                let queue = &mut named.queue;
                queue.reschedule_due(now, self.active, RELEASE_BATCH_MAX);
                continue;
            }
            while released.len() < RELEASE_BATCH_MAX
                && let Some(cookie) = named.queue.remove_next(now)
            {
                let counters = &mut named.queue.counters;
                counters.count(CookieOutcome::ReleasedEarly, 1);
                released.push(cookie);
            }
        }
        self.reserve_slots(&non_empty, now);
        for &index in &non_empty {
            let share = (RELEASE_BATCH_MAX - released.len()).min(RELEASE_BATCH_MAX / 4);
            let release = |cookie| released.push(cookie);
            self.queues[index].queue.release(now, share, release);
        }
        self.update_non_empty(non_empty);
        released
    }

    /// Updates the list of non-empty queues, and when the first of them is due.
    fn update_non_empty(&mut self, mut non_empty: Vec<usize>) {
        non_empty.retain(|index| {
            let named = &mut self.queues[*index];
            named.is_listed = named.queue.len() > 0;
            named.is_listed
        });
        if !non_empty.is_empty() {
            non_empty.rotate_left(1);
        }
        self.non_empty = non_empty;
        self.remove_closed_queues();
        let is_empty = |index: &usize| self.queues[*index].queue.len() == 0;
        if self.stray_queues.values().flatten().any(is_empty) {
            self.find_stray_queues();
        }
        let non_empty = || self.non_empty.iter().map(|index| &self.queues[*index]);
        self.active = non_empty().filter(|named| named.queue.is_active()).count() as u64;
        let due = |named: &NamedQueue| match named.is_shaping() {
            true => named.queue.due(),
            false => Some(MonotonicNanos::PAST),
        };
        self.due = non_empty()
            .filter_map(due)
            .min()
            .unwrap_or(MonotonicNanos::NEVER);
    }

    /// Removes all cookies. They count as queued until [`settle`](Self::settle).
    pub(super) fn remove_all(&mut self, now: MonotonicNanos) -> Vec<QueuedCookie> {
        let mut all = Vec::new();
        for named in &mut self.queues {
            let before = all.len();
            all.extend(std::iter::from_fn(|| named.queue.remove_next(now)));
            named.unsettled += (all.len() - before) as u64;
        }
        all
    }

    /// Counts the outcome of all removed cookies.
    pub(super) fn settle(&mut self, outcome: CookieOutcome) {
        for named in &mut self.queues {
            let count = std::mem::take(&mut named.unsettled);
            named.queue.counters.count(outcome, count);
        }
    }

    /// Number of cookies in all queues, including overdue cookies.
    pub(super) fn held(&self) -> u64 {
        let queues = self.queues.iter();
        queues.map(|it| it.queue.len() as u64 + it.unsettled).sum()
    }

    /// Counters and usage of each limit, by name.
    pub(crate) fn summaries(&self, now: MonotonicNanos) -> BTreeMap<String, LimitSummary> {
        let mut summaries: BTreeMap<String, LimitSummary> = BTreeMap::new();
        for named in &self.queues {
            let summary = summaries.entry(named.name.clone()).or_default();
            summary.counters.add(&named.queue.counters);
            summary.usage.add(&named.queue.usage(now));
            summary.usage.queued += named.unsettled;
        }
        summaries
    }

    /// Reserves one slot for each queue that needs one, repeatedly until none does.
    fn reserve_slots(&mut self, non_empty: &[usize], now: MonotonicNanos) {
        let needs_slot = |named: &NamedQueue| named.is_shaping() && named.queue.needs_slot(now);
        let is_waiting = |index: &usize| needs_slot(&self.queues[*index]);
        let mut waiting: Vec<usize> = non_empty.iter().copied().filter(is_waiting).collect();
        while !waiting.is_empty() {
            waiting.retain(|index| {
                let named = &mut self.queues[*index];
                named.queue.reserve_slot(&mut self.limits, now);
                needs_slot(named)
            });
        }
    }
}

impl NamedQueue {
    /// Whether cookies above the limit are queued here; otherwise its cookies are released early.
    fn is_shaping(&self) -> bool {
        !self.is_closing && self.queue.config.handling.mode == Mode::Shape
    }
}
