//! GCRA: a token bucket with continuous refill, in one number, the *theoretical arrival time* (TAT).
//!
//! A rate of `r` requests in `p` nanoseconds has an interval of `p/r`, which is seldom whole. So the TAT is counted in parts
//! of 1/r ns, in which the interval is `p` and nothing is rounded: `at = max(from, TAT + p·(n-1) - p·(burst-1))`, then
//! `TAT = max(TAT, at) + p·n`. Only the moment that is told is rounded up, to a whole nanosecond, and what it was rounded by is not
//! lost: the next follows the TAT, not the moment.
//!
//! Calls of one key go in the order in which they came: none is given a moment before one that was given out. What is shared by
//! many keys cannot do that: a call that waits for its own contract would hold up everyone else's until its time has come. There
//! the time between is remembered as a [`Hole`], and given to others as long as the bucket is full again when the waiting
//! call goes; and a moment that is given back goes to the next whom it suits.

use super::Carry;
use crate::{
    rate::Rate,
    saved::{Damaged, Reader, Writer},
};

/// Most holes that a shared state remembers; of more, the farthest are given up.
const HOLES_MAX: usize = 256;

/// Most moments given back that a shared state remembers.
const RETURNED_MAX: usize = 256;

#[derive(Debug, Clone)]
pub(crate) struct Gcra {
    /// Parts of a nanosecond.
    requests: u64,
    /// The interval between two requests, in those parts.
    nanos: u64,
    /// By how much the TAT may be ahead, in those parts.
    tolerance: u128,
    shared: bool,
}

/// The state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// When the next would be due if all were evenly spaced, in parts of a nanosecond.
    tat: u128,
    /// The same before the latest was taken; beyond all times when that is not known.
    before: u128,
    /// The latest moment that was given out.
    last: u64,
    /// The same before the latest was taken.
    before_last: u64,
    /// What was taken to go at this moment or before was taken before the limit was changed; 0 when all that is forgotten.
    carried: u64,
    shared: Option<Box<Shared>>,
}

/// A TAT that is not known.
const UNKNOWN: u128 = u128::MAX;

/// Beyond every TAT that there can be: 2^64 ns in parts of 10^12 to the nanosecond.
const TAT_END: u128 = 1 << 112;

/// What is known, beside the TAT, of a state that many keys share.
#[derive(Debug, Clone)]
struct Shared {
    /// In the order of time.
    holes: Vec<Hole>,
    /// Moments that were given back, and how many requests each was for.
    returned: Vec<(u64, u64)>,
}

/// Where there is room.
enum Room {
    Hole(usize),
    Returned(usize),
}

/// Time before a moment that was given out, in which the bucket has room.
#[derive(Debug, Clone, Copy)]
struct Hole {
    start: u64,
    end: u64,
    /// The TAT of all that is before the hole's end.
    tat: u128,
}

impl Pace {
    pub(crate) fn heap_bytes(&self) -> usize {
        let bytes = |shared: &Shared| {
            size_of::<Shared>()
                + shared.holes.capacity() * size_of::<Hole>()
                + shared.returned.capacity() * size_of::<(u64, u64)>()
        };
        self.shared.as_deref().map_or(0, bytes)
    }
}

impl Pace {
    /// The hole that `at` lies in, or the next one.
    fn hole_of(&self, at: u64) -> Option<&Hole> {
        let holes = &self.shared.as_deref()?.holes;
        holes.get(holes.partition_point(|hole| hole.end <= at))
    }

    pub(crate) fn save(&self, out: &mut Writer<'_>) {
        let before = self.before.checked_add(1).unwrap_or(0);
        out.number(self.tat).number(before);
        out.number(self.last).number(self.before_last);
        out.number(self.carried);
        if let Some(shared) = &self.shared {
            out.number(shared.holes.len() as u64);
            for hole in &shared.holes {
                out.number(hole.start).number(hole.end).number(hole.tat);
            }
            out.number(shared.returned.len() as u64);
            for (at, requests) in &shared.returned {
                out.number(*at).number(*requests);
            }
        }
    }
}

impl Gcra {
    pub(crate) fn load(&self, reader: &mut Reader<'_>) -> Result<Pace, Damaged> {
        let tat = |reader: &mut Reader<'_>| match reader.wide()? {
            tat if tat < TAT_END => Ok(tat),
            _ => Err(Damaged),
        };
        let mut pace = Pace {
            tat: tat(reader)?,
            before: tat(reader)?.checked_sub(1).unwrap_or(UNKNOWN),
            last: reader.number()?,
            before_last: reader.number()?,
            carried: reader.number()?,
            ..self.fresh()
        };
        if let Some(shared) = &mut pace.shared {
            for _ in 0..reader.up_to(HOLES_MAX as u64)? {
                shared.holes.push(Hole {
                    start: reader.number()?,
                    end: reader.number()?,
                    tat: tat(reader)?,
                });
            }
            for _ in 0..reader.up_to(RETURNED_MAX as u64)? {
                let (at, requests) = (reader.number()?, reader.number()?);
                shared.returned.push((at, requests));
            }
        }
        Ok(pace)
    }

    pub(crate) fn new(rate: Rate, burst: u64, shared: bool) -> Self {
        Self {
            requests: rate.requests(),
            nanos: rate.nanos(),
            tolerance: u128::from(rate.nanos()) * u128::from(burst - 1),
            shared,
        }
    }

    /// The time of so many intervals, rounded down.
    pub(crate) fn time_of(&self, requests: u64) -> u64 {
        let parts = u128::from(self.nanos) * u128::from(requests);
        u64::try_from(parts / u128::from(self.requests)).unwrap_or(u64::MAX)
    }

    /// How long a burst takes to be paid for.
    pub(crate) fn reach(&self) -> u64 {
        let parts = self.tolerance + u128::from(self.nanos);
        u64::try_from(parts.div_ceil(u128::from(self.requests))).unwrap_or(u64::MAX)
    }

    pub(crate) fn fresh(&self) -> Pace {
        let shared = self.shared.then(|| {
            Box::new(Shared {
                holes: Vec::with_capacity(HOLES_MAX + 2),
                returned: Vec::with_capacity(RETURNED_MAX),
            })
        });
        Pace {
            shared,
            ..Pace::default()
        }
    }

    #[inline]
    fn parts(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.requests)
    }

    #[inline]
    fn parts_of(&self, requests: u64) -> u128 {
        u128::from(self.nanos) * u128::from(requests)
    }

    /// The first moment from `from` on at which a bucket with this TAT has room for so many.
    #[inline]
    fn due(&self, tat: u128, requests: u64, from: u64) -> u64 {
        let due = (tat + self.parts_of(requests - 1)).saturating_sub(self.tolerance);
        let from_parts = self.parts(from);
        if due <= from_parts {
            return from;
        }
        let wait = due - from_parts;
        // A wait of a few seconds is one division of 64 bits.
        let nanos = match u64::try_from(wait) {
            Ok(wait) => wait.div_ceil(self.requests),
            Err(_) => {
                let nanos = wait.div_ceil(u128::from(self.requests));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        from.saturating_add(nanos)
    }

    /// The TAT after so many at a moment that was due.
    #[inline]
    fn after(&self, tat: u128, requests: u64, at: u64) -> u128 {
        let at = self.parts(at);
        // Rounding up to a whole nanosecond is not a pause.
        let is_pause = at >= tat.saturating_add(u128::from(self.requests));
        let base = if is_pause { at } else { tat };
        base.saturating_add(self.parts_of(requests))
    }

    #[inline]
    pub(crate) fn earliest(&self, pace: &Pace, requests: u64, from: u64) -> u64 {
        if let Some(shared) = &pace.shared
            && let Some((_, at)) = self.room(shared, requests, from)
        {
            return at;
        }
        self.due(pace.tat, requests, from.max(pace.last))
    }

    /// The first moment before the latest one with room for so many.
    fn room(&self, shared: &Shared, requests: u64, from: u64) -> Option<(Room, u64)> {
        // They lie in the order of time.
        let first = shared.holes.partition_point(|hole| hole.end <= from);
        let mut later = shared.holes.iter().enumerate().skip(first);
        let hole = later.find_map(|(index, hole)| {
            let at = self.due(hole.tat, requests, from.max(hole.start));
            let is_full_again = self.after(hole.tat, requests, at) <= self.parts(hole.end);
            (at < hole.end && is_full_again).then_some((Room::Hole(index), at))
        });
        let returned = shared.returned.iter().enumerate();
        let fits = returned.filter(|(_, (at, of))| *at >= from && *of >= requests);
        let returned = fits.map(|(index, (at, _))| (Room::Returned(index), *at));
        returned.chain(hole).min_by_key(|(_, at)| *at)
    }

    pub(crate) fn latest(pace: &Pace) -> u64 {
        pace.last
    }

    #[inline]
    pub(crate) fn take(&self, pace: &mut Pace, requests: u64, at: u64) {
        if pace.shared.is_some() {
            return self.take_shared(pace, requests, at);
        }
        (pace.before, pace.before_last) = (pace.tat, pace.last);
        pace.tat = self.after(pace.tat, requests, at);
        pace.last = at;
    }

    fn take_shared(&self, pace: &mut Pace, requests: u64, at: u64) {
        let shared = pace.shared.as_mut().expect("it was looked at");
        match self.room(shared, requests, at) {
            Some((Room::Returned(index), found)) if found == at => {
                shared.returned[index].1 -= requests;
                shared.returned.retain(|(_, of)| *of > 0);
            }
            Some((Room::Hole(index), found)) if found == at => {
                let hole = &mut shared.holes[index];
                let before = Hole { end: at, ..*hole };
                hole.start = at;
                hole.tat = self.after(hole.tat, requests, at);
                if before.start < before.end {
                    shared.holes.insert(index, before);
                }
            }
            _ => {
                if self.parts(at) > pace.tat && at > pace.last {
                    shared.holes.push(Hole {
                        start: pace.last,
                        end: at,
                        tat: pace.tat,
                    });
                }
                pace.tat = self.after(pace.tat, requests, at);
                pace.last = pace.last.max(at);
            }
        }
        // Not the earliest: who could go now must not wait for those who booked moments far off.
        shared.holes.truncate(HOLES_MAX);
    }

    /// Forgets room that nobody can be given any more.
    #[inline]
    pub(crate) fn pass(&self, pace: &mut Pace, now: u64) {
        if pace.carried > 0 && self.is_idle(pace, now) {
            pace.carried = 0;
        }
        if let Some(shared) = &mut pace.shared {
            let over = shared.holes.partition_point(|hole| hole.end <= now);
            shared.holes.drain(..over);
            shared.returned.retain(|(at, _)| *at > now);
        }
    }

    /// Counts so many as made at `at`: in the hole that `at` lies in, or before the next one. What is more than that has time for is
    /// carried on behind its end.
    pub(crate) fn force(&self, pace: &mut Pace, requests: u64, at: u64) {
        pace.before = UNKNOWN;
        let holes = match &mut pace.shared {
            Some(shared) => &mut shared.holes[..],
            None => &mut [],
        };
        let first = holes.partition_point(|hole| hole.end <= at);
        if first == holes.len() {
            pace.tat = self.after(pace.tat, requests, at);
            return;
        }
        let mut debt = self.parts_of(requests);
        for hole in &mut holes[first..] {
            // One that has no room left carries all of it on.
            let end = self.parts(hole.end).max(hole.tat);
            let begin = if hole.start <= at { self.parts(at) } else { 0 };
            hole.tat = hole.tat.max(begin).saturating_add(debt);
            debt = hole.tat.saturating_sub(end);
            if debt == 0 {
                return;
            }
        }
        pace.tat = pace.tat.saturating_add(debt);
    }

    /// How many calls told of as made at `at` have an effect: they leave the bucket empty at worst, or the queue full, at the latest moment
    /// that was given out.
    pub(crate) fn room_for_told(&self, pace: &Pace, at: u64, queue: u64) -> u64 {
        let (tat, last) = match pace.hole_of(at) {
            Some(hole) => (hole.tat, hole.start),
            None => (pace.tat, pace.last),
        };
        let latest = at.saturating_add(queue).max(last);
        let empty = self.parts(latest) + self.tolerance + u128::from(self.nanos);
        let room = empty.saturating_sub(tat.max(self.parts(at)));
        let room = room.div_ceil(u128::from(self.nanos));
        u64::try_from(room).unwrap_or(u64::MAX)
    }

    pub(crate) fn can_give_back(pace: &Pace, at: u64) -> bool {
        let has_room = |shared: &Shared| shared.returned.len() < RETURNED_MAX;
        at > pace.carried && (at >= pace.last || pace.shared.as_deref().is_some_and(has_room))
    }

    /// The latest is as if it had never been. The place of an earlier one is lost, but where many share the limit.
    pub(crate) fn give_back(&self, pace: &mut Pace, requests: u64, at: u64) {
        if at < pace.last {
            if let Some(shared) = &mut pace.shared {
                shared.returned.push((at, requests));
            }
        } else if pace.before == UNKNOWN || pace.shared.is_some() {
            pace.tat = pace.tat.saturating_sub(self.parts_of(requests));
        } else {
            (pace.tat, pace.last) = (pace.before, pace.before_last);
            pace.before = UNKNOWN;
        }
    }

    /// Forgets all that is to go after `now`, which is for so many requests. What has gone has left the bucket empty at worst.
    pub(crate) fn reopen(&self, pace: &mut Pace, requests: u64, now: u64) {
        let interval = u128::from(self.nanos);
        let now_parts = self.parts(now);
        let left = pace.tat.saturating_sub(self.parts_of(requests));
        pace.tat = if pace.carried == 0 {
            left.min(now_parts + self.tolerance + interval)
        } else {
            // Taken at other prices, and with another burst: at least the latest of what has gone is left.
            left.max(pace.tat.min(now_parts + interval))
        };
        (pace.before, pace.before_last) = (UNKNOWN, 0);
        pace.last = pace.last.min(now);
        if let Some(shared) = &mut pace.shared {
            shared.holes.clear();
            shared.returned.clear();
        }
    }

    pub(crate) fn is_idle(&self, pace: &Pace, now: u64) -> bool {
        pace.tat <= self.parts(now) && pace.last <= now
    }

    pub(crate) fn used(&self, pace: &Pace, now: u64) -> u64 {
        let tat = pace.hole_of(now).map_or(pace.tat, |hole| hole.tat);
        let debt = tat.saturating_sub(self.parts(now));
        let requests = debt.div_ceil(u128::from(self.nanos));
        u64::try_from(requests).unwrap_or(u64::MAX)
    }

    /// Each stretch between what was given out keeps its room: idle time stays time, and what was taken is carried as asked.
    pub(crate) fn carried(&self, from: &Self, old: &Pace, carry: Carry, now: u64) -> Pace {
        let mut pace = Pace {
            before: UNKNOWN,
            last: old.last,
            carried: old.last.max(old.carried),
            ..self.fresh()
        };
        let holes = old.shared.as_deref().map_or(&[][..], |it| &it.holes[..]);
        let holes = &holes[holes.partition_point(|hole| hole.end <= now)..];
        let first = holes.first().map_or(old.tat, |hole| hole.tat);
        let debt = self.carried_debt(from, first.saturating_sub(from.parts(now)), carry);
        let mut tat = if debt == 0 {
            0
        } else {
            self.parts(now).saturating_add(debt)
        };
        for (index, hole) in holes.iter().enumerate() {
            if let Some(shared) = &mut pace.shared {
                shared.holes.push(Hole { tat, ..*hole });
            }
            // What goes from its end on, up to the next one.
            let behind = holes.get(index + 1).map_or(old.tat, |next| next.tat);
            let taken = behind.saturating_sub(from.parts(hole.end).max(hole.tat));
            let taken = match carry {
                Carry::Time => scaled(taken, self.requests, from.requests),
                _ => scaled(taken, self.nanos, from.nanos),
            };
            tat = tat.max(self.parts(hole.end)).saturating_add(taken);
        }
        pace.tat = tat;
        pace
    }

    /// By how much the TAT is ahead after a change, in parts of the new kind.
    fn carried_debt(&self, from: &Self, debt: u128, carry: Carry) -> u128 {
        let in_new = |parts| scaled(parts, self.nanos, from.nanos);
        match carry {
            Carry::Reset => 0,
            Carry::Requests => in_new(debt),
            Carry::Time => scaled(debt, self.requests, from.requests),
            Carry::AsIs => {
                let [old_most, new_most] =
                    [from, self].map(|it| it.tolerance + u128::from(it.nanos));
                if debt <= old_most {
                    new_most.saturating_sub(in_new(old_most - debt))
                } else {
                    new_most + in_new(debt - old_most)
                }
            }
        }
    }
}

/// `parts · to / from`, rounded up.
fn scaled(parts: u128, to: u64, from: u64) -> u128 {
    let (to, from) = (u128::from(to), u128::from(from));
    (parts / from).saturating_mul(to) + (parts % from * to).div_ceil(from)
}
