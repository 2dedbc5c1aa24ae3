//! Cookies of a queue that are not in its FIFO: deferred cookies and overdue cookies.

use limits::Rate;
use proto::limits::AGE_MICROS_MAX;

use super::{DspQueue, slots::LOOKAHEAD_NANOS};
use crate::inlet::{
    clock::{MonotonicNanos, nanos},
    cookie_table::{CookieIndex, CookieState},
    counters::{CookieOutcome, RuleEvent},
};

/// Maximum age of a released cookie in nanoseconds: the stream format cannot express a higher one.
pub(super) const AGE_NANOS_MAX: u64 = AGE_MICROS_MAX * 1000;

/// While the FIFO is shorter than this, deferred cookies are rescheduled early, because cookies before them were dropped
/// or superseded.
const FIFO_MIN: usize = 256;

impl DspQueue {
    /// Changes the rates of the current configuration. Deferred cookies are rescheduled if the rates increase.
    pub(in crate::inlet) fn set_rates(
        &mut self,
        own: Option<Rate>,
        global: Option<Rate>,
        now: MonotonicNanos,
    ) {
        let before = self.nanos_for(1, 1);
        (self.config.own_rate, self.config.global_rate) = (own, global);
        self.blocked_until = MonotonicNanos::PAST;
        let after = self.nanos_for(1, 1);
        if after < before {
            self.rescheduling = self.cookies.deferred.len();
            // After a time without a share, the pause at the previous rate could be years.
            let pause = u128::from(self.next_requeue.since(now)) * u128::from(after);
            let pause = u64::try_from(pause / u128::from(before)).unwrap_or(u64::MAX);
            self.next_requeue = now.after(pause);
        }
    }

    /// Reschedules deferred cookies and requeues overdue cookies that are due, up to `max` of each.
    pub(in crate::inlet) fn reschedule_due(
        &mut self,
        now: MonotonicNanos,
        active_queues: u64,
        max: usize,
    ) {
        self.rescheduling = self.rescheduling.min(self.cookies.deferred.len());
        for _ in 0..max {
            match self.cookies.deferred.first() {
                Some(&(retry_at, at))
                    if retry_at <= now
                        || self.rescheduling > 0
                        || self.has_capacity(now, active_queues) =>
                {
                    self.rescheduling = self.rescheduling.saturating_sub(1);
                    self.reschedule(at, now, active_queues);
                }
                _ => break,
            }
        }
        for _ in 0..max {
            match self.cookies.overdue.first() {
                Some(&(requeue_at, at)) if requeue_at <= now && self.next_requeue <= now => {
                    self.requeue(at, now, active_queues);
                }
                _ => break,
            }
        }
    }

    /// Whether the FIFO has capacity for deferred cookies.
    fn has_capacity(&self, now: MonotonicNanos, active_queues: u64) -> bool {
        let max_wait = nanos(self.config.handling.shape.max_wait);
        self.cookies.fifo.len() < FIFO_MIN && self.expected_wait(now, active_queues) <= max_wait
    }

    fn reschedule(&mut self, at: CookieIndex, now: MonotonicNanos, active_queues: u64) {
        let entered = self.cookies.get(at).entered;
        let wait = self.expected_wait(now, active_queues);
        let age = now.since(entered);
        let age = age.saturating_add(wait);
        if age > nanos(self.config.handling.shape.max_age) {
            self.make_overdue(at, now, RuleEvent::OverdueWait);
        } else {
            let state = self.queue_or_defer(entered, now, active_queues);
            self.cookies.set_state(at, state);
        }
    }

    fn requeue(&mut self, at: CookieIndex, now: MonotonicNanos, active_queues: u64) {
        if now.since(self.cookies.get(at).accepted_at) > AGE_NANOS_MAX {
            self.cookies.remove(at);
            self.counters.count(CookieOutcome::Bound, 1);
            return;
        }
        let excess = self.expected_wait(now, active_queues);
        let excess = excess.saturating_sub(nanos(self.config.handling.shape.max_wait));
        if excess > 0 {
            // The FIFO is full: retry when it may have drained.
            self.next_requeue = now.after(excess.max(LOOKAHEAD_NANOS));
            return;
        }
        let share = u64::from(self.config.handling.requeue.share_permille);
        let interval = self.nanos_for(1, active_queues);
        let pause = interval.saturating_mul(1000) / share;
        self.next_requeue = self.next_requeue.max(now).after(pause);
        self.cookies.requeue(at, now);
        self.counters.requeued += 1;
        let state = self.queue_or_defer(now, now, active_queues);
        self.cookies.set_state(at, state);
    }

    /// State of a cookie that is deferred for its expected wait, but not beyond `max_age`.
    pub(super) fn defer(
        &self,
        entered: MonotonicNanos,
        now: MonotonicNanos,
        wait: u64,
    ) -> CookieState {
        let expiry = entered.after(nanos(self.config.handling.shape.max_age));
        CookieState::Deferred(now.after(wait).min(expiry.after(1)))
    }

    /// Makes a cookie overdue; parks it after `requeue.max` times.
    pub(super) fn make_overdue(&mut self, at: CookieIndex, now: MonotonicNanos, event: RuleEvent) {
        let rule = &self.config.rules[self.binding];
        self.counters.count_rule(rule, event);
        let requeue = &self.config.handling.requeue;
        let requeues = self.cookies.get(at).requeues;
        if requeues >= requeue.requeues_max {
            return self.cookies.set_state(at, CookieState::Parked);
        }
        let pause = nanos(requeue.base).saturating_mul(1 << requeues.min(40));
        let pause = pause.min(nanos(requeue.cap));
        let pause = with_jitter(pause, u64::from(at) ^ now.0);
        self.cookies
            .set_state(at, CookieState::Overdue(now.after(pause)));
    }
}

/// Shortens a pause by up to a quarter, so that not all overdue cookies are due together. Deterministic per seed.
fn with_jitter(pause: u64, seed: u64) -> u64 {
    let quarter = pause / 4;
    pause - fastrand::Rng::with_seed(seed).u64(0..=quarter)
}
