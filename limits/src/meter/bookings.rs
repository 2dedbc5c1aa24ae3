//! Bookings: future slots with gaps before them.
//!
//! The usage of a key gives the earliest slot *after* all taken slots. That is sufficient while each call takes the earliest slot of this
//! limit. A call that waits for another limit takes a later slot and leaves a gap. Its slot is then stored as a [`Booking`], together with
//! the usage before it. A later call may use the gap if all bookings remain admissible, which is checked on a copy of the usage.

use serde::{Deserialize, Serialize};

use super::{KeyState, Kind, Meter, Usage};
use crate::rate::REQUESTS_MAX;

/// Maximum number of bookings of a key: 64 KiB, scanned in some 10 µs. A further call that would leave a gap is refused; otherwise the
/// gap would be lost to all other callers.
const BOOKINGS_MAX: usize = 4_096;

/// Maximum for logs and step windows, where each check copies the entire state.
const COPIED_BOOKINGS_MAX: usize = 256;

/// The future slots of a key, and the usage before them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Bookings {
    /// Usage before the first booking.
    pub(super) before: Usage,
    /// In time order, one per slot.
    list: Vec<Booking>,
    /// Start of the unlisted bookings, which have no gaps between them. `u64::MAX` if there are none.
    sealed: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Booking {
    at: u64,
    requests: u64,
}

impl Bookings {
    pub(super) fn heap_bytes(&self) -> usize {
        let list = self.list.capacity() * size_of::<Booking>();
        size_of::<Self>() + list + self.before.heap_bytes()
    }
}

impl Meter {
    fn bookings_max(&self) -> usize {
        match self.kind {
            Kind::SlidingLog(_) | Kind::StepWindow(_) => COPIED_BOOKINGS_MAX,
            _ => BOOKINGS_MAX,
        }
    }

    /// Whether restored bookings are within the bounds of this meter.
    pub(super) fn can_hold(&self, bookings: &Bookings) -> bool {
        let mut requests = bookings.list.iter().map(|it| it.requests);
        bookings.list.len() <= self.bookings_max() && requests.all(|it| it <= REQUESTS_MAX)
    }

    /// The earliest slot at or after `from` in a gap before a booking.
    #[cold]
    pub(super) fn gap(&self, bookings: &Bookings, requests: u64, from: u64) -> Option<u64> {
        let last = bookings.list.last().map_or(0, |it| it.at);
        if from > last && (bookings.sealed == u64::MAX || from > bookings.sealed) {
            return None;
        }
        let mut usage = bookings.before.clone();
        let mut rest = &bookings.list[..];
        loop {
            let end = rest.first().map_or(bookings.sealed, |it| it.at);
            // There is no gap after the last booking.
            if end == u64::MAX {
                return None;
            }
            let (mut skipped, mut is_separate) = (1, false);
            let mut at = self.earliest_after(&usage, requests, from);
            while at <= end {
                let Some(index) = self.conflict(&usage, (requests, at), rest, bookings.sealed)
                else {
                    return Some(at);
                };
                match &self.kind {
                    // The call would keep all calls of its step in the window for longer. In the next step it does not affect them.
                    Kind::StepWindow(meter) if !is_separate => {
                        at = self.earliest_after(&usage, requests, from.max(meter.next_step(at)));
                        is_separate = true;
                    }
                    // A later slot before that booking would also conflict with it.
                    _ => {
                        skipped = index + 1;
                        break;
                    }
                }
            }
            for booking in rest.get(..skipped)? {
                self.take_last(&mut usage, booking.requests, booking.at);
            }
            rest = &rest[skipped..];
        }
    }

    /// Index of the first booking that would become inadmissible if the call were made before it.
    fn conflict(
        &self,
        usage: &Usage,
        (requests, at): (u64, u64),
        bookings: &[Booking],
        sealed: u64,
    ) -> Option<usize> {
        let (mut with, mut without) = (usage.clone(), usage.clone());
        self.take_last(&mut with, requests, at);
        for (index, booking) in bookings.iter().enumerate() {
            if self.is_equivalent(&with, &without, booking.at) {
                return None;
            }
            if self.earliest_after(&with, booking.requests, booking.at) > booking.at {
                return Some(index);
            }
            self.take_last(&mut with, booking.requests, booking.at);
            self.take_last(&mut without, booking.requests, booking.at);
        }
        let conflicts = sealed < u64::MAX && !self.is_equivalent(&with, &without, sealed);
        conflicts.then_some(bookings.len())
    }

    /// The bookings if a call takes the slot `at` as the last one; `None` if it leaves no gap for another request.
    #[cold]
    fn with_gap(&self, usage: &Usage, requests: u64, at: u64, now: u64) -> Option<Box<Bookings>> {
        if self.earliest_after(usage, 1, now) >= at {
            return None;
        }
        let bookings = Bookings {
            before: usage.clone(),
            list: vec![Booking { at, requests }],
            sealed: u64::MAX,
        };
        self.gap(&bookings, 1, now).map(|_| Box::new(bookings))
    }

    /// The time at which the future slot `at` can be booked: `now`, or when an entry becomes free. Unless the state `may_grow`, the
    /// booking must not need more memory.
    #[cold]
    pub(crate) fn bookable_at(
        &self,
        state: &KeyState,
        requests: u64,
        at: u64,
        now: u64,
        may_grow: bool,
    ) -> u64 {
        let is_last = at >= state.usage.last;
        let needs_no_entry = || is_last && self.with_gap(&state.usage, requests, at, now).is_none();
        let Some(bookings) = &state.bookings else {
            let is_bookable = may_grow || needs_no_entry();
            return if is_bookable { now } else { at };
        };
        let is_behind_sealed = bookings.sealed < u64::MAX && is_last;
        let is_listed = at <= bookings.before.last
            || bookings.list.binary_search_by_key(&at, |it| it.at).is_ok();
        let entries = match may_grow {
            true => self.bookings_max(),
            false => bookings.list.capacity().min(self.bookings_max()),
        };
        let is_full = bookings.list.len() == self.bookings_max() || is_behind_sealed;
        let has_entry = bookings.list.len() < entries && !is_behind_sealed;
        if is_listed || has_entry || (is_full && needs_no_entry()) {
            return now;
        }
        match bookings.list.first() {
            Some(first) if !is_behind_sealed => first.at,
            _ => state.usage.last,
        }
    }

    /// Takes a future slot of a key without bookings.
    #[cold]
    pub(super) fn book(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        state.bookings = self.with_gap(&state.usage, requests, at, now);
        self.take_last(&mut state.usage, requests, at);
    }

    /// Takes a slot of a key with bookings.
    #[cold]
    pub(super) fn insert(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        let KeyState { usage, bookings } = state;
        let Some(it) = bookings else { return };
        let is_last = at >= usage.last;
        let index = it.list.partition_point(|booking| booking.at < at);
        if at <= now.max(it.before.last) {
            self.take_last(&mut it.before, requests, at);
        } else if let Some(booking) = it.list.get_mut(index).filter(|booking| booking.at == at) {
            booking.requests += requests;
        } else if is_last && (it.sealed < u64::MAX || it.list.len() == self.bookings_max()) {
            it.sealed = it.sealed.min(at);
        } else {
            it.list.insert(index, Booking { at, requests });
        }
        if is_last {
            self.take_last(usage, requests, at);
        } else {
            self.recompute(usage, it);
        }
        // Bookings before the first gap are no longer needed.
        let open = self.gap(it, 1, now);
        self.expire_bookings(state, open.unwrap_or(u64::MAX));
    }

    /// Recomputes the usage after all bookings.
    fn recompute(&self, usage: &mut Usage, bookings: &Bookings) {
        // Sealed slots are not listed, so the usage after them cannot be recomputed.
        if bookings.sealed == u64::MAX {
            *usage = bookings.before.clone();
            for booking in &bookings.list {
                self.take_last(usage, booking.requests, booking.at);
            }
        }
    }

    /// Removes bookings up to `now`: no gap before them can be used.
    #[cold]
    pub(super) fn expire_bookings(&self, state: &mut KeyState, now: u64) {
        let Some(bookings) = &mut state.bookings else {
            return;
        };
        let passed = bookings.list.partition_point(|it| it.at <= now);
        for booking in bookings.list.drain(..passed) {
            self.take_last(&mut bookings.before, booking.requests, booking.at);
        }
        if bookings.list.is_empty() && (bookings.sealed == u64::MAX || bookings.sealed <= now) {
            state.bookings = None;
        }
    }

    /// The usage at `now`, without future bookings.
    pub(super) fn usage_at(&self, bookings: &Bookings, now: u64) -> Usage {
        let mut usage = bookings.before.clone();
        for booking in bookings.list.iter().take_while(|it| it.at <= now) {
            self.take_last(&mut usage, booking.requests, booking.at);
        }
        usage
    }

    /// Applies a `charge` that is not a reservation. Bookings keep their slots.
    pub(super) fn charge_with(&self, state: &mut KeyState, now: u64, charge: impl Fn(&mut Usage)) {
        self.expire_bookings(state, now);
        let KeyState { usage, bookings } = state;
        let Some(bookings) = bookings else {
            return charge(usage);
        };
        charge(&mut bookings.before);
        if bookings.sealed == u64::MAX {
            self.recompute(usage, bookings);
        } else {
            charge(usage);
        }
    }

    /// Carries bookings over to a changed limit. They keep their slots.
    pub(super) fn carry_bookings(
        &self,
        bookings: &Bookings,
        state: &mut KeyState,
        convert: impl Fn(&Usage) -> Usage,
    ) {
        let bookings = Bookings {
            before: convert(&bookings.before),
            ..bookings.clone()
        };
        self.recompute(&mut state.usage, &bookings);
        state.bookings = Some(Box::new(bookings));
    }
}
