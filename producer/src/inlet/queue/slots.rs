//! Release times (slots) of the cookies in a queue, reserved a few milliseconds ahead under all limits together.

use std::time::Duration;

use limits::{Decision, Demand, LimitId, Limits, Rate, Refusal};
use proto::units::DspId;

use super::DspQueue;
use crate::inlet::{
    clock::{MonotonicNanos, nanos},
    cookie_table::CookieState,
    counters::RuleEvent,
};

/// How far ahead slots are reserved, in nanoseconds: a few ticks of the timer.
pub(super) const LOOKAHEAD_NANOS: u64 = 5_000_000;

/// A slot that passed longer ago than this is discarded, because using it would exceed the rate.
const SLOT_AGE_MAX: u64 = LOOKAHEAD_NANOS;

impl DspQueue {
    /// Decides on a cookie that arrives while the FIFO is empty: its state if it must wait, `None` if it is released now.
    pub(super) fn delay(
        &mut self,
        limits: &mut Limits<DspId>,
        now: MonotonicNanos,
    ) -> Option<CookieState> {
        // Slots may remain from cookies that were dropped or became overdue.
        while let Some(&slot) = self.slots.front() {
            if slot > now {
                return Some(self.cookies.end_of_fifo());
            }
            self.slots.pop_front();
            if now.since(slot) <= SLOT_AGE_MAX {
                return None;
            }
        }
        let max_wait = self.config.handling.shape.max_wait;
        let decision = limits.reserve(&self.config.demands, now.0, max_wait);
        match decision {
            Decision::Now => None,
            Decision::At { at, limit } => {
                self.set_binding(limit);
                self.slots.push_back(MonotonicNanos(at));
                Some(self.cookies.end_of_fifo())
            }
            Decision::Refused { limit, reason } => {
                self.set_binding(limit);
                let excess = match reason {
                    Refusal::Wait { retry_after } => nanos(retry_after),
                    Refusal::TooMany { .. } | Refusal::TableFull => 0,
                };
                let wait = nanos(max_wait).saturating_add(excess);
                Some(self.defer(now, now, wait))
            }
        }
    }

    /// Whether a cookie in the FIFO needs a slot now.
    pub(in crate::inlet) fn needs_slot(&self, now: MonotonicNanos) -> bool {
        let is_near = |slot: &MonotonicNanos| *slot < now.after(LOOKAHEAD_NANOS);
        self.cookies.fifo.len() > self.slots.len()
            && self.blocked_until <= now
            && self.slots.back().is_none_or(is_near)
    }

    /// Reserves a slot, or stores the time until which no slot is available.
    pub(in crate::inlet) fn reserve_slot(
        &mut self,
        limits: &mut Limits<DspId>,
        now: MonotonicNanos,
    ) {
        match limits.reserve(&self.config.demands, now.0, Duration::MAX) {
            Decision::Now => self.slots.push_back(now),
            Decision::At { at, limit } => {
                self.set_binding(limit);
                self.slots.push_back(MonotonicNanos(at));
            }
            Decision::Refused { limit, reason } => {
                self.set_binding(limit);
                let pause = match reason {
                    Refusal::Wait { retry_after } => nanos(retry_after),
                    Refusal::TooMany { .. } | Refusal::TableFull => LOOKAHEAD_NANOS,
                };
                self.blocked_until = now.after(pause.max(1));
            }
        }
    }

    /// The reserved slots, in order of time.
    pub(in crate::inlet) fn slots(&self) -> impl Iterator<Item = MonotonicNanos> + '_ {
        self.slots.iter().copied()
    }

    /// Replaces the reserved slots.
    pub(in crate::inlet) fn set_slots(&mut self, slots: impl IntoIterator<Item = MonotonicNanos>) {
        self.slots = slots.into_iter().collect();
        self.slots.make_contiguous().sort_unstable();
    }

    /// Expected wait of a cookie that joins the FIFO now, estimated from the rates; exact for token buckets of the DSP.
    pub(super) fn expected_wait(&self, now: MonotonicNanos, active_queues: u64) -> u64 {
        // The slot has no cookie, because its cookie became overdue.
        if let Some(slot) = self.slots.get(self.cookies.fifo.len()) {
            return slot.since(now);
        }
        let before = (self.cookies.fifo.len() - self.slots.len()) as u64;
        let Some(last) = self.slots.back().copied().or((before > 0).then_some(now)) else {
            return 0;
        };
        last.since(now)
            .saturating_add(self.nanos_for(before + 1, active_queues))
    }

    /// Time to release `count` cookies while `active_queues` share the global limits.
    pub(super) fn nanos_for(&self, count: u64, active_queues: u64) -> u64 {
        let at_rate = |rate: Option<Rate>, count: u64| rate.map_or(0, |rate| rate.nanos_of(count));
        let own = at_rate(self.config.own_rate, count);
        let global = count.saturating_mul(active_queues.max(1));
        own.max(at_rate(self.config.global_rate, global))
    }

    /// Counts a cookie that is refused in police or observe mode.
    pub(super) fn count_refusal(&mut self, decision: Decision) {
        match decision {
            Decision::Now => {}
            Decision::At { limit, .. } | Decision::Refused { limit, .. } => {
                self.set_binding(limit);
                let rule = &self.config.rules[self.binding];
                self.counters.count_rule(rule, RuleEvent::Refused);
            }
        }
    }

    fn set_binding(&mut self, limit: LimitId) {
        let index_in = |demands: &[Demand<DspId>]| demands.iter().position(|it| it.limit == limit);
        let binding = index_in(&self.config.demands).or_else(|| index_in(&self.config.observed));
        self.binding = binding.expect("the queue demands this limit");
    }
}
