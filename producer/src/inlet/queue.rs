//! Queue of one DSP, or of all DSPs that no limit lists: cookies above a limit wait here for their release.
//!
//! A cookie that cannot be released immediately joins the FIFO. The first cookies of the FIFO have *slots*: release times
//! that are reserved under all limits together. Slots are reserved a few milliseconds ahead, so that a late timer does
//! not lower the rate. A cookie that would wait longer than `max_wait` is *deferred*: after its expected wait, it is
//! scheduled again. A cookie older than `max_age` becomes *overdue*: it is requeued with increasing delays, at a
//! share of the rate. After `requeue.max` requeues it is *parked*: kept, but no longer requeued.
//!
//! A newer cookie of the same user and DSP replaces the one in the queue. An older cookie does not replace it; only bulk
//! requests can contain older cookies. A full queue drops its oldest cookie.

mod deferred;
mod slots;

use std::{collections::VecDeque, time::Duration};

use limits::{Demand, Limits, Rate, rules::Handling};
use proto::units::{DspId, UnixMicros};

use self::{deferred::AGE_NANOS_MAX, slots::LOOKAHEAD_NANOS};
use super::{
    clock::{MonotonicNanos, nanos},
    cookie_table::{CookieIndex, CookieState, CookieTable, QueuedCookie},
    counters::{CookieOutcome, LimitCounters, QueueUsage, RuleEvent},
};
use crate::log::{Deletion, append_batch::StagedCookie};

/// Configuration of a queue.
#[derive(Debug, Clone)]
pub(super) struct QueueConfig {
    /// How to handle cookies above the limit.
    pub(super) handling: Handling,
    /// Demands of each cookie: on the limits of its DSP first, then on the global limits.
    pub(super) demands: Vec<Demand<DspId>>,
    /// Demands in observe mode, which uses copies of the global limits.
    pub(super) observed: Vec<Demand<DspId>>,
    /// Number of demands on limits of the DSP.
    pub(super) own_count: usize,
    /// Rule names, in the order of the demands.
    pub(super) rules: Vec<String>,
    /// The lowest rate of its own rules; `None` without rules.
    pub(super) own_rate: Option<Rate>,
    /// The lowest rate of the global limits; `None` without global limits.
    pub(super) global_rate: Option<Rate>,
}

/// Queue of one DSP.
#[derive(Debug)]
pub(super) struct DspQueue {
    pub(super) config: QueueConfig,
    pub(super) counters: LimitCounters,
    cookies: CookieTable,
    /// Release times of the first cookies in the FIFO.
    slots: VecDeque<MonotonicNanos>,
    /// Index of the demand that last delayed a cookie.
    binding: usize,
    /// When the next overdue cookie may be requeued.
    next_requeue: MonotonicNanos,
    /// Number of deferred cookies that are due now because the configuration changed.
    rescheduling: usize,
    /// Time until which no slot is available, because the queue of a limit (leaky bucket) is full.
    blocked_until: MonotonicNanos,
}

/// Decision on a cookie that was just accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Append it to the log now, before any other cookie is released.
    Release,
    /// It is queued and released later.
    Queued,
    /// It exceeds the limit and is dropped.
    Dropped,
}

impl DspQueue {
    pub(super) fn new(config: QueueConfig) -> Self {
        let mut counters = LimitCounters::default();
        counters.retain_rules(&config.rules);
        Self {
            counters,
            config,
            cookies: CookieTable::default(),
            slots: VecDeque::new(),
            binding: 0,
            next_requeue: MonotonicNanos::PAST,
            rescheduling: 0,
            blocked_until: MonotonicNanos::PAST,
        }
    }

    /// Releases a cookie in observe mode, and counts it if [`police`](Self::police) would drop it.
    pub(super) fn observe(&mut self, limits: &mut Limits<DspId>, now: MonotonicNanos) -> Admission {
        let decision = limits.reserve(&self.config.observed, now.0, Duration::ZERO);
        self.count_refusal(decision);
        self.counters.pass();
        Admission::Release
    }

    /// Releases a cookie in police mode, or drops it if it exceeds a limit. Slots of other queues that are already reserved
    /// under a global limit do not count against it.
    pub(super) fn police(&mut self, limits: &mut Limits<DspId>, now: MonotonicNanos) -> Admission {
        const LOOKAHEAD: Duration = Duration::from_nanos(2 * LOOKAHEAD_NANOS);
        let own = &self.config.demands[..self.config.own_count];
        let decision = match limits.peek(own, 0, now.0) {
            Ok((at, _)) if at <= now.0 => limits.reserve(&self.config.demands, now.0, LOOKAHEAD),
            // Some algorithms charge refused requests too.
            _ => limits.reserve(own, now.0, Duration::ZERO),
        };
        if decision.at(now.0).is_some() {
            self.counters.pass();
            return Admission::Release;
        }
        self.count_refusal(decision);
        self.counters.count(CookieOutcome::Police, 1);
        Admission::Dropped
    }

    /// Releases a cookie in shape mode, or queues the cookie that `queued` returns. If the queue has a newer cookie of the same
    /// user and DSP, this one counts as superseded. `active_queues` is the number of queues with a non-empty FIFO.
    pub(super) fn shape(
        &mut self,
        limits: &mut Limits<DspId>,
        cookie: StagedCookie<'_>,
        now: MonotonicNanos,
        active_queues: u64,
        queued: impl Fn() -> QueuedCookie,
    ) -> Admission {
        if let Some(at) = self.find(cookie) {
            self.counters.count(CookieOutcome::Superseded, 1);
            let queued = queued();
            if queued.accepted < self.cookies.get(at).accepted {
                return Admission::Queued;
            }
            if let CookieState::Queued(_) | CookieState::Deferred(_) = self.cookies.get(at).state {
                self.cookies.replace(at, queued);
                self.enforce_size();
                return Admission::Queued;
            }
            self.cookies.remove(at);
        }
        let state = if self.is_active() {
            self.queue_or_defer(now, now, active_queues)
        } else if let Some(state) = self.delay(limits, now) {
            state
        } else {
            self.counters.pass();
            return Admission::Release;
        };
        self.insert(queued(), state);
        Admission::Queued
    }

    /// Removes the queued cookie with the user and DSP of a released cookie, unless the queued cookie is newer.
    pub(super) fn supersede(
        &mut self,
        cookie: StagedCookie<'_>,
        accepted: impl Fn() -> UnixMicros,
    ) {
        if let Some(at) = self.find(cookie)
            && self.cookies.get(at).accepted <= accepted()
        {
            self.counters.count(CookieOutcome::Superseded, 1);
            self.cookies.remove(at);
        }
    }

    /// Drops the cookies that a deletion covers.
    pub(super) fn delete(&mut self, deletion: &Deletion) {
        for at in self.cookies.covered_by(deletion) {
            self.cookies.remove(at);
            self.counters.count(CookieOutcome::Deleted, 1);
        }
    }

    fn find(&self, cookie: StagedCookie<'_>) -> Option<CookieIndex> {
        if self.cookies.len() == 0 {
            return None;
        }
        let cookie = cookie.cookie();
        self.cookies.find(cookie.user_id, cookie.dsp_id)
    }

    /// Queues a cookie that the spool of the previous run contained.
    pub(super) fn restore(
        &mut self,
        cookie: QueuedCookie,
        now: MonotonicNanos,
        active_queues: u64,
    ) {
        self.counters.accepted += 1;
        if now.since(cookie.accepted_at) > AGE_NANOS_MAX {
            return self.counters.count(CookieOutcome::Bound, 1);
        }
        if let Some(at) = self.cookies.find(cookie.user_id(), cookie.dsp_id) {
            self.counters.count(CookieOutcome::Superseded, 1);
            if self.cookies.get(at).accepted_at <= cookie.accepted_at {
                self.cookies.replace(at, cookie);
            }
            return;
        }
        let state = self.queue_or_defer(cookie.entered, now, active_queues);
        self.insert(cookie, state);
    }

    /// Inserts a cookie that must wait. Only this function counts it as above the limit, so it counts once, even if it
    /// is rescheduled repeatedly.
    fn insert(&mut self, mut cookie: QueuedCookie, state: CookieState) {
        let rule = &self.config.rules[self.binding];
        let event = match state {
            CookieState::Queued(_) => RuleEvent::Delayed,
            _ => RuleEvent::Refused,
        };
        self.counters.count_rule(rule, event);
        cookie.state = state;
        self.cookies.insert(cookie);
        self.enforce_size();
    }

    /// State of a cookie that entered the queue at `entered`: at the end of the FIFO, or deferred if its wait would exceed
    /// `max_wait`.
    fn queue_or_defer(
        &mut self,
        entered: MonotonicNanos,
        now: MonotonicNanos,
        active_queues: u64,
    ) -> CookieState {
        let wait = self.expected_wait(now, active_queues);
        if wait <= nanos(self.config.handling.shape.max_wait) {
            self.cookies.end_of_fifo()
        } else {
            self.defer(entered, now, wait)
        }
    }

    /// Releases up to `max` cookies whose slots are due. Cookies older than `max_age` become overdue instead.
    pub(super) fn release(
        &mut self,
        now: MonotonicNanos,
        max: usize,
        mut release: impl FnMut(QueuedCookie),
    ) {
        let max_age = nanos(self.config.handling.shape.max_age);
        let mut released = 0;
        while released < max
            && let Some(&(_, at)) = self.cookies.fifo.first()
        {
            let cookie = self.cookies.get(at);
            if now.since(cookie.entered) > max_age {
                self.make_overdue(at, now, RuleEvent::OverdueAge);
            } else if self.slots.front().is_some_and(|slot| *slot <= now) {
                self.slots.pop_front();
                let cookie = self.cookies.remove(at);
                self.counters.release(now.since(cookie.accepted_at));
                release(cookie);
                released += 1;
            } else {
                break;
            }
        }
    }

    /// Applies another configuration: deferred cookies are rescheduled, and parked cookies may be requeued again.
    pub(super) fn set_config(&mut self, config: QueueConfig, now: MonotonicNanos) {
        self.counters.retain_rules(&config.rules);
        self.config = config;
        self.binding = 0;
        self.next_requeue = self.next_requeue.min(now);
        self.blocked_until = MonotonicNanos::PAST;
        self.rescheduling = self.cookies.deferred.len();
        self.cookies.unpark(now);
    }

    /// Number of cookies waiting for release, including deferred ones.
    pub(super) fn queued(&self) -> u64 {
        (self.cookies.fifo.len() + self.cookies.deferred.len()) as u64
    }

    /// Removes the next cookie regardless of its release time, those in the FIFO first.
    pub(super) fn remove_next(&mut self, now: MonotonicNanos) -> Option<QueuedCookie> {
        self.slots.clear();
        loop {
            let first = self.cookies.fifo.first().map(|(_, at)| *at);
            let at = first.or_else(|| self.cookies.oldest().map(|(_, at)| at))?;
            let cookie = self.cookies.remove(at);
            if now.since(cookie.accepted_at) <= AGE_NANOS_MAX {
                return Some(cookie);
            }
            self.counters.count(CookieOutcome::Bound, 1);
        }
    }

    /// When this queue next releases, reschedules or requeues a cookie; a past time if it can do so now.
    pub(super) fn due(&self) -> Option<MonotonicNanos> {
        let first = self.cookies.fifo.first().map(|(_, at)| {
            let entered = self.cookies.get(*at).entered;
            let expiry = entered.after(nanos(self.config.handling.shape.max_age));
            let slot = self.slots.front().copied().unwrap_or(self.blocked_until);
            slot.min(expiry.after(1))
        });
        let deferred = self.cookies.deferred.first();
        let deferred = deferred.map(|(retry_at, _)| match self.slots.front() {
            _ if self.rescheduling > 0 => MonotonicNanos::PAST,
            Some(slot) if !self.is_active() => (*retry_at).min(*slot),
            None if !self.is_active() => MonotonicNanos::PAST,
            _ => *retry_at,
        });
        let overdue = self.cookies.overdue.first();
        let overdue = overdue.map(|(requeue_at, _)| (*requeue_at).max(self.next_requeue));
        [first, deferred, overdue].into_iter().flatten().min()
    }

    /// Whether its FIFO is not empty.
    pub(super) fn is_active(&self) -> bool {
        !self.cookies.fifo.is_empty()
    }

    /// Number of cookies in the queue, including overdue cookies.
    pub(super) fn len(&self) -> usize {
        self.cookies.len()
    }

    /// Current contents of the queue.
    pub(super) fn usage(&self, now: MonotonicNanos) -> QueueUsage {
        let oldest = self.cookies.oldest().map(|(accepted_at, _)| accepted_at);
        QueueUsage {
            queued: self.queued(),
            overdue: self.cookies.overdue.len() as u64,
            parked: self.cookies.parked.len() as u64,
            bytes: self.cookies.bytes(),
            oldest_nanos: oldest.map_or(0, |accepted_at| now.since(accepted_at)),
        }
    }

    /// Drops the oldest cookies while the queue exceeds `queue_bytes`.
    fn enforce_size(&mut self) {
        while self.cookies.bytes() > self.config.handling.shape.queue_bytes {
            let Some((_, at)) = self.cookies.oldest() else {
                return;
            };
            self.cookies.remove(at);
            self.counters.count(CookieOutcome::Bound, 1);
        }
    }
}
