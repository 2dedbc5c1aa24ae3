//! Those that are in a room and not in its line: sent back for a while, or dead letters.

use limits::Rate;
use proto::limits::AGE_MICROS_MAX;

use super::{Room, nanos, slots::AHEAD_NANOS};
use crate::shaping::{
    counters::{DeadReason, Dropped},
    held::{At, Standing},
};

/// What is older than readers can be told is not released any more.
pub(super) const AGE_NANOS_MAX: u64 = AGE_MICROS_MAX * 1000;

/// With fewer than so many in the line, those that were sent back come back: others made room, or went.
const LINE_MIN: usize = 256;

impl Room {
    /// Goes by other rates of the same terms. When they are higher, those that were sent back ask again.
    pub(in crate::shaping) fn set_rates(
        &mut self,
        own: Option<Rate>,
        shared: Option<Rate>,
        now: u64,
    ) {
        let before = self.nanos_of(1, 1);
        (self.terms.own, self.terms.shared) = (own, shared);
        self.blocked = 0;
        let after = self.nanos_of(1, 1);
        if after < before {
            self.asking = self.held.returned.len();
            // By the rate before it would be years, after a time without a share.
            let left = u128::from(self.next_requeue.saturating_sub(now)) * u128::from(after);
            let left = u64::try_from(left / u128::from(before)).unwrap_or(u64::MAX);
            self.next_requeue = now.saturating_add(left);
        }
    }

    /// Puts back those that were sent back and whose time has come, and requeues dead letters, at most so many.
    pub(in crate::shaping) fn wake(&mut self, now: u64, lines: u64, most: usize) {
        self.asking = self.asking.min(self.held.returned.len());
        for _ in 0..most {
            match self.held.returned.first() {
                Some(&(when, at))
                    if when <= now || self.asking > 0 || self.is_short(now, lines) =>
                {
                    self.asking = self.asking.saturating_sub(1);
                    self.ask_again(at, now, lines);
                }
                _ => break,
            }
        }
        for _ in 0..most {
            match self.held.dead.first() {
                Some(&(when, at)) if when <= now && self.next_requeue <= now => {
                    self.requeue(at, now, lines);
                }
                _ => break,
            }
        }
    }

    /// Whether the line has room for those that were sent back.
    fn is_short(&self, now: u64, lines: u64) -> bool {
        let max_wait = nanos(self.terms.handling.max_wait);
        self.held.line.len() < LINE_MIN && self.wait(now, lines) <= max_wait
    }

    fn ask_again(&mut self, at: At, now: u64, lines: u64) {
        let entered = self.held.get(at).entered;
        let wait = self.wait(now, lines);
        let age = now.saturating_sub(entered);
        let age = age.saturating_add(wait);
        if age > nanos(self.terms.handling.max_age) {
            self.die(at, now, DeadReason::Wait);
        } else {
            let standing = self.queue(entered, now, lines);
            self.held.move_to(at, standing);
        }
    }

    fn requeue(&mut self, at: At, now: u64, lines: u64) {
        if now.saturating_sub(self.held.get(at).accepted) > AGE_NANOS_MAX {
            self.held.take(at);
            self.figures.drop(Dropped::Bound, 1);
            return;
        }
        let over = self.wait(now, lines);
        let over = over.saturating_sub(nanos(self.terms.handling.max_wait));
        if over > 0 {
            // The line is full: it is tried again when there may be room.
            self.next_requeue = now.saturating_add(over.max(AHEAD_NANOS));
            return;
        }
        let share = u64::from(self.terms.handling.requeue.share_permille);
        let each = self.nanos_of(1, lines);
        let pause = each.saturating_mul(1000) / share;
        self.next_requeue = self.next_requeue.max(now).saturating_add(pause);
        self.held.requeue(at, now);
        self.figures.requeued += 1;
        let standing = self.queue(now, now, lines);
        self.held.move_to(at, standing);
    }

    /// Where a cookie stands that is sent back: for as long as it would have to wait, but not beyond its age.
    pub(super) fn sent_back(&self, entered: u64, now: u64, wait: u64) -> Standing {
        let death = entered.saturating_add(nanos(self.terms.handling.max_age));
        Standing::Returned(now.saturating_add(wait).min(death.saturating_add(1)))
    }

    /// Makes a cookie a dead letter until it may be requeued, or for good.
    pub(super) fn die(&mut self, at: At, now: u64, reason: DeadReason) {
        self.figures.die(reason, &self.terms.rules[self.binding]);
        let requeue = &self.terms.handling.requeue;
        let requeues = self.held.get(at).requeues;
        if requeues >= requeue.requeues_max {
            return self.held.move_to(at, Standing::Parked);
        }
        let pause = nanos(requeue.base).saturating_mul(1 << requeues.min(40));
        let pause = pause.min(nanos(requeue.cap));
        let pause = jittered(pause, u64::from(at) ^ now);
        self.held
            .move_to(at, Standing::Dead(now.saturating_add(pause)));
    }
}

/// Between three quarters of a pause and all of it, so that not all come back at once; of equal seeds the same.
fn jittered(pause: u64, seed: u64) -> u64 {
    let quarter = pause / 4;
    pause - fastrand::Rng::with_seed(seed).u64(0..=quarter)
}
