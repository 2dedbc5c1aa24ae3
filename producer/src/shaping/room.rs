//! One waiting room: the cookies of one DSP, or of all that no limit names, that wait for their turn.
//!
//! A cookie that may not go at once joins the line; the first of the line have *slots*, which are reserved of all limits together a few
//! milliseconds ahead, so that neither a timer that is late nor a process that sleeps makes the rate fall. What would have to wait for
//! longer than the maximum wait is sent back for as long as it would have had to wait, and asks again. What has waited for too long is a dead
//! letter; it is requeued after a pause that grows, at a share of the rate, and at last parked.
//!
//! A newer cookie of a pair takes the place of the one that is held. When the room is full, the oldest makes room.

mod outside;
mod slots;

use std::{collections::VecDeque, time::Duration};

use limits::{Demand, Limits, Rate, rules::Handling};

use self::{outside::AGE_NANOS_MAX, slots::AHEAD_NANOS};
use super::{
    counters::{DeadReason, Dropped, Figures, Holding},
    held::{At, Held, Standing, Table},
};
use crate::log::burst::Pushed;

/// What a room goes by.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// What is done with what is over the limit.
    pub(super) handling: Handling,
    /// What each cookie asks of the limits: of its DSP's, then of those that are of every call.
    pub(super) demands: Vec<Demand<u32>>,
    /// The same of one that is only observed, of copies of those that are of every call.
    pub(super) observed: Vec<Demand<u32>>,
    /// How many of them are its DSP's.
    pub(super) own_count: usize,
    /// The rules' names, in the order of the demands.
    pub(super) rules: Vec<String>,
    /// The slowest of its own rules; none when it has none.
    pub(super) own: Option<Rate>,
    /// The slowest of those of every call.
    pub(super) shared: Option<Rate>,
}

/// A waiting room.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) terms: Terms,
    pub(super) figures: Figures,
    held: Table,
    /// Moments at which the first of the line may go.
    slots: VecDeque<u64>,
    /// The demand that made a cookie wait last.
    binding: usize,
    /// When the next dead letter may be requeued.
    next_requeue: u64,
    /// How many of those that were sent back ask again now, as the terms are others.
    asking: usize,
    /// Until when no slot can be had, as a queue of the limits' own is full.
    blocked: u64,
}

/// What becomes of a cookie that is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// It goes into the log now, before anything else is released.
    Release,
    /// It is held, and released later.
    Held,
    /// It is over the limit.
    Dropped,
}

impl Room {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            figures: Figures::new(&terms.rules),
            terms,
            held: Table::default(),
            slots: VecDeque::new(),
            binding: 0,
            next_requeue: 0,
            asking: 0,
            blocked: 0,
        }
    }

    /// A cookie of a limit that only looks on, and counts what [`police`](Self::police) would drop.
    pub(super) fn observe(
        &mut self,
        limits: &mut Limits<u32>,
        cookie: Pushed<'_>,
        now: u64,
    ) -> Offered {
        let decision = limits.reserve(&self.terms.observed, now, Duration::ZERO);
        self.count(decision);
        self.pass(cookie)
    }

    /// A cookie of a limit that drops what is over it. Of the limits that it shares, the others' slots that are handed out ahead do not
    /// count against it.
    pub(super) fn police(
        &mut self,
        limits: &mut Limits<u32>,
        cookie: Pushed<'_>,
        now: u64,
    ) -> Offered {
        const AHEAD: Duration = Duration::from_nanos(2 * AHEAD_NANOS);
        let own = &self.terms.demands[..self.terms.own_count];
        let decision = match limits.peek(own, now) {
            Ok((at, _)) if at <= now => limits.reserve(&self.terms.demands, now, AHEAD),
            // Some count what they refuse.
            _ => limits.reserve(own, now, Duration::ZERO),
        };
        if decision.at(now).is_some() {
            return self.pass(cookie);
        }
        self.count(decision);
        self.figures.drop(Dropped::Police, 1);
        Offered::Dropped
    }

    /// A cookie of a limit that has what is over it wait, as `held` makes it. `lines` is how many rooms have a line.
    pub(super) fn shape(
        &mut self,
        limits: &mut Limits<u32>,
        cookie: Pushed<'_>,
        now: u64,
        lines: u64,
        held: impl FnOnce() -> Held,
    ) -> Offered {
        if let Some(at) = self.find(cookie) {
            self.figures.superseded += 1;
            if let Standing::InLine(_) | Standing::Returned(_) = self.held.get(at).standing {
                self.held.renew(at, held());
                self.keep_bound();
                return Offered::Held;
            }
            self.held.take(at);
        }
        let standing = if self.has_line() {
            self.queue(now, now, lines)
        } else if let Some(standing) = self.turn(limits, now) {
            standing
        } else {
            self.figures.pass();
            return Offered::Release;
        };
        self.enter(held(), standing);
        Offered::Held
    }

    /// Lets a cookie go at once.
    pub(super) fn pass(&mut self, cookie: Pushed<'_>) -> Offered {
        self.supersede(cookie);
        self.figures.pass();
        Offered::Release
    }

    /// What is held of this cookie's pair is older and never goes.
    pub(super) fn supersede(&mut self, cookie: Pushed<'_>) {
        if let Some(at) = self.find(cookie) {
            self.figures.superseded += 1;
            self.held.take(at);
        }
    }

    fn find(&self, cookie: Pushed<'_>) -> Option<At> {
        if self.held.len() == 0 {
            return None;
        }
        self.held.find(&cookie.cookie())
    }

    /// Holds again what an earlier run held.
    pub(super) fn take_back(&mut self, held: Held, now: u64, lines: u64) {
        self.figures.accepted += 1;
        if now.saturating_sub(held.accepted) > AGE_NANOS_MAX {
            return self.figures.drop(Dropped::Bound, 1);
        }
        if let Some(at) = self.held.find(&held.cookie()) {
            self.figures.superseded += 1;
            if self.held.get(at).accepted <= held.accepted {
                self.held.renew(at, held);
            }
            return;
        }
        let standing = self.queue(held.entered, now, lines);
        self.enter(held, standing);
    }

    /// A cookie enters that has to wait. Only here it counts as over the limit: once, however often it asks again.
    fn enter(&mut self, mut held: Held, standing: Standing) {
        let rule = &self.terms.rules[self.binding];
        if let Standing::InLine(_) = standing {
            self.figures.delayed(rule);
        } else {
            self.figures.refused(rule);
        }
        held.standing = standing;
        self.held.insert(held);
        self.keep_bound();
    }

    /// Where a cookie is to stand that entered the room then: at the end of the line, or sent back.
    fn queue(&mut self, entered: u64, now: u64, lines: u64) -> Standing {
        let wait = self.wait(now, lines);
        if wait <= nanos(self.terms.handling.max_wait) {
            self.held.end_of_line()
        } else {
            self.sent_back(entered, now, wait)
        }
    }

    /// Lets those go whose slot has come, at most so many. What has waited for too long dies instead.
    pub(super) fn release(&mut self, now: u64, most: usize, mut go: impl FnMut(Held)) {
        let max_age = nanos(self.terms.handling.max_age);
        let mut gone = 0;
        while gone < most
            && let Some(&(_, at)) = self.held.line.first()
        {
            let held = self.held.get(at);
            if now.saturating_sub(held.entered) > max_age {
                self.die(at, now, DeadReason::Age);
            } else if self.slots.front().is_some_and(|slot| *slot <= now) {
                self.slots.pop_front();
                let held = self.held.take(at);
                self.figures.release(now.saturating_sub(held.accepted));
                go(held);
                gone += 1;
            } else {
                break;
            }
        }
    }

    /// Goes by other terms from now on, by which those that were sent back ask again, and parked dead letters may be requeued once more.
    pub(super) fn set_terms(&mut self, terms: Terms, now: u64) {
        self.figures.keep_rules(&terms.rules);
        self.terms = terms;
        self.binding = 0;
        self.next_requeue = self.next_requeue.min(now);
        self.blocked = 0;
        self.asking = self.held.returned.len();
        self.held.unpark(now);
    }

    /// How many wait for their turn, those that were sent back included.
    pub(super) fn waiting(&self) -> u64 {
        (self.held.line.len() + self.held.returned.len()) as u64
    }

    /// Takes out the next of what is held, whatever its time: those in the line first.
    pub(super) fn take_any(&mut self, now: u64) -> Option<Held> {
        self.slots.clear();
        loop {
            let first = self.held.line.first().copied();
            let (_, at) = first.or_else(|| self.held.oldest())?;
            let held = self.held.take(at);
            if now.saturating_sub(held.accepted) <= AGE_NANOS_MAX {
                return Some(held);
            }
            self.figures.drop(Dropped::Bound, 1);
        }
    }

    /// When it next has something to do.
    pub(super) fn due(&self) -> Option<u64> {
        let first = self.held.line.first().map(|(_, at)| {
            let entered = self.held.get(*at).entered;
            let death = entered.saturating_add(nanos(self.terms.handling.max_age));
            let slot = self.slots.front().copied().unwrap_or(self.blocked);
            slot.min(death.saturating_add(1))
        });
        let returned = self.held.returned.first();
        let returned = returned.map(|(when, _)| match self.slots.front() {
            _ if self.asking > 0 => 0,
            Some(slot) if !self.has_line() => (*when).min(*slot),
            None if !self.has_line() => 0,
            _ => *when,
        });
        let dead = self.held.dead.first();
        let dead = dead.map(|(when, _)| (*when).max(self.next_requeue));
        [first, returned, dead].into_iter().flatten().min()
    }

    /// Whether it has a line.
    pub(super) fn has_line(&self) -> bool {
        !self.held.line.is_empty()
    }

    /// How many it holds.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// What it holds at this moment, beside what was counted.
    pub(super) fn holding(&self, now: u64) -> Holding {
        let dead = self.held.dead.len() as u64;
        let oldest = self.held.oldest().map(|(accepted, _)| accepted);
        Holding {
            waiting: self.waiting(),
            dead,
            parked: self.held.parked.len() as u64,
            bytes: self.held.bytes(),
            oldest_nanos: oldest.map_or(0, |accepted| now.saturating_sub(accepted)),
        }
    }

    /// Drops the oldest until what is left is within the bound.
    fn keep_bound(&mut self) {
        while self.held.bytes() > self.terms.handling.queue_bytes {
            let Some((_, at)) = self.held.oldest() else {
                return;
            };
            self.held.take(at);
            self.figures.drop(Dropped::Bound, 1);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
