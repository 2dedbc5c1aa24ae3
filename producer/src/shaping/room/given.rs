//! Slots that a server gives, which decides on limits for several processes. It is asked beside the work, and nothing of the room waits for an answer.
//!
//! A slot that nobody uses is wasted: the server has counted it.

use limits_sharing::exact::{Answer, Outcome};

use super::{Room, nanos, slots::AHEAD_NANOS};

/// How far ahead the server is asked, in nanoseconds: for longer than an answer takes.
const ASKED_AHEAD: u64 = 100_000_000;

/// Most questions of a room that are under way.
const ASKED_MAX: usize = 4;

/// A slot that is past by more than this is not used any more: what goes so late would be of another window than the one that counted it.
const LATE_MAX: u64 = 1_000_000_000;

/// When it is asked again that gave an answer that makes no sense, in nanoseconds.
const NONSENSE_PAUSE: u64 = 1_000_000_000;

/// Who says when those of a line may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shaping) enum Giver {
    /// The limits that are kept here.
    Here,
    /// A server, which is asked.
    Server,
    /// Nobody: the server is lost.
    Nobody,
}

impl Room {
    /// Somebody else gives slots from now on. Those that the server gave stay good.
    pub(in crate::shaping) fn set_giver(&mut self, giver: Giver, now: u64) {
        if self.giver == Giver::Here {
            // The server does not know of them.
            self.slots.retain(|slot| *slot <= now);
        }
        self.giver = giver;
        self.blocked = 0;
    }

    /// Those that were given by other rules, or may be too far away by these.
    pub(in crate::shaping) fn drop_slots(&mut self) {
        self.slots.clear();
    }

    /// Whether one of the line has no slot that is asked for.
    fn lacks_slot(&self) -> bool {
        self.asked < ASKED_MAX && self.line.len() > self.slots.len() + self.asked
    }

    /// Whether the server is to be asked for a slot now.
    pub(in crate::shaping) fn wants_to_ask(&self, now: u64) -> bool {
        let is_near = |slot: &u64| *slot < now.saturating_add(ASKED_AHEAD);
        self.giver == Giver::Server
            && self.lacks_slot()
            && self.blocked <= now
            && self.slots.back().is_none_or(is_near)
    }

    /// It is asked.
    pub(in crate::shaping) fn note_asked(&mut self) {
        self.asked += 1;
    }

    /// There is an answer, or none will come.
    pub(in crate::shaping) fn note_answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Takes the slot of an answer, or sends back those who have none, for as long as they would have to wait.
    pub(in crate::shaping) fn take_answer(&mut self, answer: &Answer, now: u64) {
        let nanos_of = |micros: u64| micros.saturating_mul(1_000);
        if let Some(place) = answer.binding {
            self.binding = place.min(self.terms.demands.len() - 1);
        }
        let pause = match answer.outcome {
            Outcome::Now | Outcome::At => {
                // Of the server's clock only the difference counts.
                let wait = nanos_of(answer.at.saturating_sub(answer.now));
                if wait > 0 {
                    self.figures.delayed(self.binding);
                }
                let slot = now.saturating_add(wait);
                let place = self.slots.partition_point(|it| *it <= slot);
                self.slots.insert(place, slot);
                return;
            }
            Outcome::Wait => nanos_of(answer.retry_after).max(AHEAD_NANOS),
            _ => NONSENSE_PAUSE,
        };
        // It was lost meanwhile, and others give: they know when.
        if self.giver != Giver::Server {
            return;
        }
        self.blocked = self.blocked.max(now.saturating_add(pause));
        let wait = pause.saturating_add(nanos(self.terms.handling.horizon));
        let kept = self.slots.len() + self.asked;
        for at in self.line.split_off(kept.min(self.line.len())) {
            if self.held.is_vacant(at) {
                self.held.free_place(at);
            } else {
                self.figures.refused(self.binding);
                self.send_back(at, now, wait);
            }
        }
        self.drop_vacant();
    }

    /// Forgets slots that nobody used in time.
    pub(super) fn drop_late_slots(&mut self, now: u64) {
        if self.giver == Giver::Here {
            return;
        }
        while let Some(slot) = self.slots.front()
            && now.saturating_sub(*slot) > LATE_MAX
        {
            self.slots.pop_front();
        }
    }

    /// When the first of the line, without a slot, has to ask for one. `may_ask` is whether one more question may be under way.
    pub(super) fn asks_at(&self, may_ask: bool) -> u64 {
        match self.giver {
            Giver::Here => self.blocked,
            Giver::Server if may_ask && self.lacks_slot() => self.blocked,
            Giver::Server | Giver::Nobody => u64::MAX,
        }
    }
}
