//! When those of a room may go: slots, which are reserved of all limits together a few milliseconds ahead.

use std::time::Duration;

use limits::{Decision, Demand, LimitId, Limits, Rate, Refusal};

use super::{Room, nanos};
use crate::shaping::held::Standing;

/// How far ahead slots are reserved, in nanoseconds: a few ticks of the timer.
pub(super) const AHEAD_NANOS: u64 = 5_000_000;

/// A slot that is past by more than this when somebody comes is too old to be used.
const SLOT_AGE_MAX: u64 = AHEAD_NANOS;

impl Room {
    /// Where a cookie is to stand that comes now, and that nobody is before; `None` when it may go.
    pub(super) fn turn(&mut self, limits: &mut Limits<u32>, now: u64) -> Option<Standing> {
        // Left by those that died or were dropped before it came.
        while let Some(&slot) = self.slots.front() {
            if slot > now {
                return Some(self.held.end_of_line());
            }
            self.slots.pop_front();
            if now - slot <= SLOT_AGE_MAX {
                return None;
            }
        }
        let max_wait = self.terms.handling.max_wait;
        let decision = limits.reserve(&self.terms.demands, now, max_wait);
        match decision {
            Decision::Now => None,
            Decision::At { at, limit } => {
                self.bind(limit);
                self.slots.push_back(at);
                Some(self.held.end_of_line())
            }
            Decision::Refused { limit, reason } => {
                self.bind(limit);
                let over = match reason {
                    Refusal::Wait { retry_after } => nanos(retry_after),
                    Refusal::TooMany { .. } | Refusal::TableFull => 0,
                };
                let wait = nanos(max_wait).saturating_add(over);
                Some(self.sent_back(now, now, wait))
            }
        }
    }

    /// Whether the first of the line that has no slot should get one now.
    pub(in crate::shaping) fn wants_slot(&self, now: u64) -> bool {
        let is_near = |slot: &u64| *slot < now.saturating_add(AHEAD_NANOS);
        self.held.line.len() > self.slots.len()
            && self.blocked <= now
            && self.slots.back().is_none_or(is_near)
    }

    /// Reserves a slot, if one can be had.
    pub(in crate::shaping) fn take_slot(&mut self, limits: &mut Limits<u32>, now: u64) {
        match limits.reserve(&self.terms.demands, now, Duration::MAX) {
            Decision::Now => self.slots.push_back(now),
            Decision::At { at, limit } => {
                self.bind(limit);
                self.slots.push_back(at);
            }
            Decision::Refused { limit, reason } => {
                self.bind(limit);
                let pause = match reason {
                    Refusal::Wait { retry_after } => nanos(retry_after),
                    Refusal::TooMany { .. } | Refusal::TableFull => AHEAD_NANOS,
                };
                self.blocked = now.saturating_add(pause.max(1));
            }
        }
    }

    /// The slots, to be planned anew.
    pub(in crate::shaping) fn slots(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().copied()
    }

    /// Other slots, in the order of time.
    pub(in crate::shaping) fn set_slots(&mut self, slots: impl IntoIterator<Item = u64>) {
        self.slots = slots.into_iter().collect();
        self.slots.make_contiguous().sort_unstable();
    }

    /// How long one that comes now would wait, by the rates: exactly so under token buckets of its own.
    pub(super) fn wait(&self, now: u64, lines: u64) -> u64 {
        // Left by one that died.
        if let Some(slot) = self.slots.get(self.held.line.len()) {
            return slot.saturating_sub(now);
        }
        let before = (self.held.line.len() - self.slots.len()) as u64;
        let Some(last) = self.slots.back().copied().or((before > 0).then_some(now)) else {
            return 0;
        };
        last.saturating_sub(now)
            .saturating_add(self.nanos_of(before + 1, lines))
    }

    /// How long so many take, where so many lines share what they share.
    pub(super) fn nanos_of(&self, count: u64, lines: u64) -> u64 {
        let of = |rate: Option<Rate>, count: u64| rate.map_or(0, |rate| rate.nanos_of(count));
        let own = of(self.terms.own, count);
        own.max(of(self.terms.shared, count.saturating_mul(lines.max(1))))
    }

    /// Counts what a decision says of a cookie that does not wait here.
    pub(super) fn count(&mut self, decision: Decision) {
        match decision {
            Decision::Now => {}
            Decision::At { limit, .. } | Decision::Refused { limit, .. } => {
                self.bind(limit);
                self.figures.refused(&self.terms.rules[self.binding]);
            }
        }
    }

    fn bind(&mut self, limit: LimitId) {
        let of = |demand: &Demand<u32>| demand.limit == limit;
        self.binding = self.terms.demands.iter().position(of).unwrap_or(0);
    }
}
