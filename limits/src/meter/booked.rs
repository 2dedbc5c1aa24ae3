//! Moments that were given out with room before them.
//!
//! What a limit keeps of a key says when the next may go *after* all that was given out. That is all there is to know where each call
//! goes at the first moment that this limit has for it. A call that has to wait for another limit leaves room before its moment. It is
//! then remembered as a [`Booking`], beside what was used before it; and a later call goes before bookings where all of them are
//! still permitted behind it, which is tried on a copy of what was used.

use serde::{Deserialize, Serialize};

use super::{KeyState, Kind, Meter, Used};
use crate::rate::REQUESTS_MAX;

/// Maximum bookings that are remembered of a key: 64 KiB, gone through in some ten microseconds. One more is refused, unless it leaves
/// no room before it: were it let through, the room before it would be lost to all other callers.
const BOOKINGS_MAX: usize = 4_096;

/// The same of logs and step windows, where trying a gap costs a copy of what was used.
const COPIED_BOOKINGS_MAX: usize = 256;

/// What is kept while there is room before moments to come.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Booked {
    /// What was used up to the first booking.
    pub(super) before: Used,
    /// In the order of time, each at another moment.
    list: Vec<Booking>,
    /// From here on there are moments that are not listed, with no room between them; beyond all times when there are none.
    sealed: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Booking {
    at: u64,
    requests: u64,
}

impl Booked {
    pub(super) fn heap_bytes(&self) -> usize {
        let list = self.list.capacity() * size_of::<Booking>();
        size_of::<Self>() + list + self.before.heap_bytes()
    }
}

impl Meter {
    fn bookings_max(&self) -> usize {
        match self.kind {
            Kind::Log(_) | Kind::Steps(_) => COPIED_BOOKINGS_MAX,
            _ => BOOKINGS_MAX,
        }
    }

    /// Whether bookings are such as this makes.
    pub(super) fn can_keep(&self, booked: &Booked) -> bool {
        let mut requests = booked.list.iter().map(|it| it.requests);
        booked.list.len() <= self.bookings_max() && requests.all(|it| it <= REQUESTS_MAX)
    }

    /// The first moment from `from` on before a booking, with room for so many.
    #[cold]
    pub(super) fn gap(&self, booked: &Booked, requests: u64, from: u64) -> Option<u64> {
        let last = booked.list.last().map_or(0, |it| it.at);
        if from > last && (booked.sealed == u64::MAX || from > booked.sealed) {
            return None;
        }
        let mut used = booked.before.clone();
        let mut rest = &booked.list[..];
        loop {
            let end = rest.first().map_or(booked.sealed, |it| it.at);
            // Behind all of them there is no gap.
            if end == u64::MAX {
                return None;
            }
            let (mut passed, mut is_alone) = (1, false);
            let mut at = self.next(&used, requests, from);
            while at <= end {
                let Some(index) = self.held_up(&used, (requests, at), rest, booked.sealed) else {
                    return Some(at);
                };
                match &self.kind {
                    // It would keep the others of its step in the window; in the next it is alone.
                    Kind::Steps(meter) if !is_alone => {
                        at = self.next(&used, requests, from.max(meter.next_step(at)));
                        is_alone = true;
                    }
                    // A later call before that booking holds it up all the more.
                    _ => {
                        passed = index + 1;
                        break;
                    }
                }
            }
            for booking in rest.get(..passed)? {
                self.take_used(&mut used, booking.requests, booking.at);
            }
            rest = &rest[passed..];
        }
    }

    /// Which of these bookings would not be permitted any more if a call went before them.
    fn held_up(
        &self,
        used: &Used,
        (requests, at): (u64, u64),
        bookings: &[Booking],
        sealed: u64,
    ) -> Option<usize> {
        let (mut with, mut without) = (used.clone(), used.clone());
        self.take_used(&mut with, requests, at);
        for (index, booking) in bookings.iter().enumerate() {
            if self.is_same(&with, &without, booking.at) {
                return None;
            }
            if self.next(&with, booking.requests, booking.at) > booking.at {
                return Some(index);
            }
            self.take_used(&mut with, booking.requests, booking.at);
            self.take_used(&mut without, booking.requests, booking.at);
        }
        let is_held_up = sealed < u64::MAX && !self.is_same(&with, &without, sealed);
        is_held_up.then_some(bookings.len())
    }

    /// What is kept from a call for so many at `at` on, behind all others, if it leaves room for one before it.
    #[cold]
    fn booked(&self, used: &Used, requests: u64, at: u64, now: u64) -> Option<Box<Booked>> {
        if self.next(used, 1, now) >= at {
            return None;
        }
        let booked = Booked {
            before: used.clone(),
            list: vec![Booking { at, requests }],
            sealed: u64::MAX,
        };
        self.gap(&booked, 1, now).map(|_| Box::new(booked))
    }

    /// When a call for so many at `at`, which is to come, can be remembered: `now`, or when there is a place for it. Without
    /// having it `may_grow`, what is kept takes no more memory than it does.
    #[cold]
    pub(crate) fn remembered_at(
        &self,
        state: &KeyState,
        requests: u64,
        at: u64,
        now: u64,
        may_grow: bool,
    ) -> u64 {
        let is_last = at >= state.used.last;
        let needs_no_place = || is_last && self.booked(&state.used, requests, at, now).is_none();
        let Some(booked) = &state.booked else {
            return if may_grow || needs_no_place() {
                now
            } else {
                at
            };
        };
        let is_behind_sealed = booked.sealed < u64::MAX && is_last;
        let is_there =
            at <= booked.before.last || booked.list.binary_search_by_key(&at, |it| it.at).is_ok();
        let places = match may_grow {
            true => self.bookings_max(),
            false => booked.list.capacity().min(self.bookings_max()),
        };
        let is_full = booked.list.len() == self.bookings_max() || is_behind_sealed;
        let has_place = booked.list.len() < places && !is_behind_sealed;
        if is_there || has_place || (is_full && needs_no_place()) {
            return now;
        }
        match booked.list.first() {
            Some(first) if !is_behind_sealed => first.at,
            _ => state.used.last,
        }
    }

    /// Takes so many at a moment to come, where no booking is remembered.
    #[cold]
    pub(super) fn book(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        state.booked = self.booked(&state.used, requests, at, now);
        self.take_used(&mut state.used, requests, at);
    }

    /// Takes so many at a moment that may be before bookings.
    #[cold]
    pub(super) fn take_between(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        let KeyState { used, booked } = state;
        let Some(it) = booked else { return };
        let is_last = at >= used.last;
        let index = it.list.partition_point(|booking| booking.at < at);
        if at <= now.max(it.before.last) {
            self.take_used(&mut it.before, requests, at);
        } else if let Some(booking) = it.list.get_mut(index).filter(|booking| booking.at == at) {
            booking.requests += requests;
        } else if is_last && (it.sealed < u64::MAX || it.list.len() == self.bookings_max()) {
            it.sealed = it.sealed.min(at);
        } else {
            it.list.insert(index, Booking { at, requests });
        }
        if is_last {
            self.take_used(used, requests, at);
        } else {
            self.add_up(used, it);
        }
        // Where not even one can go, nobody can be let go any more.
        let open = self.gap(it, 1, now);
        self.pass_bookings(state, open.unwrap_or(u64::MAX));
    }

    /// What is used after all bookings.
    fn add_up(&self, used: &mut Used, booked: &Booked) {
        // What is sealed is as it was.
        if booked.sealed == u64::MAX {
            *used = booked.before.clone();
            for booking in &booked.list {
                self.take_used(used, booking.requests, booking.at);
            }
        }
    }

    /// Forgets bookings up to `now`: there is no room before them any more.
    #[cold]
    pub(super) fn pass_bookings(&self, state: &mut KeyState, now: u64) {
        let Some(booked) = &mut state.booked else {
            return;
        };
        let passed = booked.list.partition_point(|it| it.at <= now);
        for booking in booked.list.drain(..passed) {
            self.take_used(&mut booked.before, booking.requests, booking.at);
        }
        if booked.list.is_empty() && (booked.sealed == u64::MAX || booked.sealed <= now) {
            state.booked = None;
        }
    }

    /// What is used of a key at `now`, before bookings to come.
    pub(super) fn used_at(&self, booked: &Booked, now: u64) -> Used {
        let mut used = booked.before.clone();
        for booking in booked.list.iter().take_while(|it| it.at <= now) {
            self.take_used(&mut used, booking.requests, booking.at);
        }
        used
    }

    /// Lets `change` count what was made without having been asked for; bookings stay.
    pub(super) fn count_before(&self, state: &mut KeyState, now: u64, change: impl Fn(&mut Used)) {
        self.pass_bookings(state, now);
        let KeyState { used, booked } = state;
        let Some(booked) = booked else {
            return change(used);
        };
        change(&mut booked.before);
        if booked.sealed == u64::MAX {
            self.add_up(used, booked);
        } else {
            change(used);
        }
    }

    /// Bookings stay when a limit gets other numbers.
    pub(super) fn carry_bookings(
        &self,
        booked: &Booked,
        state: &mut KeyState,
        carried: impl Fn(&Used) -> Used,
    ) {
        let booked = Booked {
            before: carried(&booked.before),
            ..booked.clone()
        };
        self.add_up(&mut state.used, &booked);
        state.booked = Some(Box::new(booked));
    }
}
