//! The set of limits with the states of their keys, and reservations under several limits.

mod change;
mod demands;
mod recording;
mod remaining;
mod rescheduling;
mod saving;

use std::{borrow::Cow, hash::Hash, time::Duration};

use self::demands::{MergedDemand, MergedDemands};
use crate::{
    decision::{Decision, Demand, Limit, LimitId, Refusal},
    keys::KeyTable,
    meter::{KeyState, Meter},
    rate::RateError,
};

/// Maximum number of demands of one call.
pub const DEMANDS_MAX: usize = 16;

/// Rounds in which the limits of a call may move its slot, before the slot is placed after all bookings.
const ROUNDS_MAX: usize = 64;

/// The maximum time. Slots may be later.
const END_OF_TIME: u64 = u64::MAX / 2;

#[derive(Debug, Clone)]
struct ActiveLimit {
    limit: Limit,
    meter: Meter,
    /// The state of new keys, if it is not the fresh one.
    initial: Option<KeyState>,
}

impl ActiveLimit {
    /// The state of a new key.
    fn initial(&self) -> KeyState {
        let initial = self.initial.clone();
        initial.unwrap_or_else(|| self.meter.fresh())
    }
}

/// A set of limits with the states of their keys. Does no I/O; the caller passes the time in nanoseconds.
///
/// The time should be monotonic. If it goes back, the latest time is used instead, so that no limit is exceeded.
///
/// Memory is bounded to `keys_max` keys in all limits. Idle keys, which are equivalent to new ones, are evicted. Half of the entries are
/// divided equally among the limits; the other half is first come, first served.
#[derive(Debug)]
pub struct Limits<K> {
    limits: Vec<ActiveLimit>,
    keys: KeyTable<K>,
    /// The latest time that was passed.
    clock: u64,
}

impl<K: Hash + Eq + Clone> Limits<K> {
    /// An empty set with capacity for `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        Self::with_memory(keys_max, usize::MAX)
    }

    /// An empty set with capacity for `keys_max` keys and `bytes_max` bytes of sliding logs, step windows and bookings.
    pub fn with_memory(keys_max: usize, bytes_max: usize) -> Self {
        Self {
            limits: Vec::new(),
            keys: KeyTable::new(keys_max, bytes_max),
            clock: 0,
        }
    }

    /// Adds a limit.
    ///
    /// # Errors
    /// If its parameters are invalid.
    ///
    /// # Panics
    /// If there are 2^32 limits.
    pub fn add(&mut self, limit: impl Into<Limit>) -> Result<LimitId, RateError> {
        let limit = limit.into();
        let algorithm = limit.algorithm.checked()?;
        let id = u32::try_from(self.limits.len()).expect("less than 2^32 limits");
        let meter = Meter::new(&algorithm);
        self.keys.add_limit(meter.bytes_per_key());
        self.limits.push(ActiveLimit {
            meter,
            limit,
            initial: None,
        });
        Ok(LimitId(id))
    }

    /// The current configuration of a limit.
    ///
    /// # Panics
    /// If the limit belongs to another [`Limits`].
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.limits[id.index()].limit
    }

    /// Reserves the earliest slot that all limits of a call admit. Either all limits count the call, or none.
    ///
    /// A call that would wait longer than `max_wait` is refused. With several limits, the one with the longest wait is binding.
    ///
    /// Costs one lookup per demand, and no allocation for known keys.
    ///
    /// # Panics
    /// If there are more than [`DEMANDS_MAX`] demands, or a limit belongs to another [`Limits`].
    #[inline]
    pub fn reserve(&mut self, demands: &[Demand<K>], now: u64, max_wait: Duration) -> Decision {
        self.reserve_from(demands, 0, now, max_wait)
    }

    /// Like [`reserve`](Self::reserve), for a call that must not be made before `from`. If no limit makes the call wait, the limit of its
    /// first demand is binding.
    ///
    /// # Panics
    /// Like [`reserve`](Self::reserve).
    #[inline]
    pub fn reserve_from(
        &mut self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        // A call with few limits does not initialize large arrays.
        match demands.len() {
            0..=1 => self.reserve_of::<1>(demands, from, now, max_wait),
            2..=4 => self.reserve_of::<4>(demands, from, now, max_wait),
            _ => self.reserve_of::<DEMANDS_MAX>(demands, from, now, max_wait),
        }
    }

    fn reserve_of<const MAX: usize>(
        &mut self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        let now = self.advance_clock(now);
        let mut merged = self.merge::<MAX>(demands);
        let decision = self.decide(&merged, from, now, max_wait);
        if let Some(at) = decision.at(now) {
            if let Err(limit) = self.create_entries(&mut merged, demands, now) {
                let reason = Refusal::TableFull;
                return Decision::Refused { limit, reason };
            }
            for it in merged.all() {
                let entry = it.entry.expect("the entry exists");
                let meter = &self.limits[it.limit.index()].meter;
                let state = self.keys.state_mut(entry);
                if !meter.take_now(state, it.requests, at, now) {
                    self.update(it, |meter, state| {
                        meter.take(state, it.requests, at, now);
                    });
                }
            }
        } else {
            self.count_refused(&merged, demands, now);
        }
        decision
    }

    /// The earliest slot, not before `from`, of a call at `now`, and the binding limit. Changes nothing.
    ///
    /// ```
    /// use limits::{Algorithm, Demand, Limits, Refusal};
    ///
    /// let mut limits = Limits::new(100);
    /// let limit = limits.add(Algorithm::token_bucket("10/s", 5)?)?;
    /// let demand = |requests| [Demand { limit, key: "alice", requests }];
    /// assert_eq!(limits.peek(&demand(5), 0, 0), Ok((0, None)));
    /// // No call can exceed the burst, however long it waits.
    /// assert_eq!(limits.peek(&demand(6), 0, 0), Err((limit, Refusal::TooMany { max: 5 })));
    /// # Ok::<(), limits::RateError>(())
    /// ```
    ///
    /// # Errors
    /// If the call is not admitted at any time because it has too many requests, or if a queue is full.
    ///
    /// # Panics
    /// Like [`reserve`](Self::reserve).
    pub fn peek(
        &self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
    ) -> Result<(u64, Option<LimitId>), (LimitId, Refusal)> {
        let now = self.monotonic(now);
        self.earliest(&self.merge::<DEMANDS_MAX>(demands), from, now)
    }

    /// The state of a key, or the initial one for a new key.
    fn state_of(&self, limit: LimitId, key: &K) -> Cow<'_, KeyState> {
        match self.keys.find(limit, key) {
            Some(entry) => Cow::Borrowed(self.keys.state(entry)),
            None => Cow::Owned(self.limits[limit.index()].initial()),
        }
    }

    /// Scans the next `entries` entries and evicts idle keys. Optional, because insertions evict idle keys too. Returns the number of
    /// evicted keys.
    pub fn evict_idle(&mut self, entries: usize, now: u64) -> usize {
        let now = self.advance_clock(now);
        let limits = &self.limits;
        self.keys.evict_idle(entries, |limit, state| {
            limits[limit.index()].meter.is_idle(state, now)
        })
    }

    /// Number of keys of all limits.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Number of keys of one limit.
    ///
    /// # Panics
    /// If the limit belongs to another [`Limits`].
    pub fn keys_of(&self, limit: LimitId) -> usize {
        self.keys.len_of(limit)
    }

    fn advance_clock(&mut self, now: u64) -> u64 {
        self.clock = self.monotonic(now);
        self.clock
    }

    fn monotonic(&self, now: u64) -> u64 {
        now.min(END_OF_TIME).max(self.clock)
    }

    /// Changes the state of an existing entry.
    #[inline]
    fn update(&mut self, it: &MergedDemand, change: impl FnOnce(&Meter, &mut KeyState)) {
        let entry = it.entry.expect("the entry exists");
        let meter = &self.limits[it.limit.index()].meter;
        self.keys.update(entry, |state| change(meter, state));
    }

    /// Merges demands with the same limit and key, and looks up their entries.
    fn merge<const MAX: usize>(&self, demands: &[Demand<K>]) -> MergedDemands<MAX> {
        assert!(demands.len() <= MAX, "too many limits for one call");
        let nothing = MergedDemand {
            limit: LimitId(0),
            requests: 0,
            entry: None,
            demand: 0,
        };
        let mut merged = MergedDemands {
            all: [nothing; MAX],
            length: 0,
        };
        for (index, demand) in demands.iter().enumerate() {
            if demand.requests == 0 {
                continue;
            }
            let same = merged.all[..merged.length]
                .iter_mut()
                .find(|it| it.limit == demand.limit && demands[it.demand].key == demand.key);
            if let Some(same) = same {
                same.requests = same.requests.saturating_add(demand.requests);
                continue;
            }
            merged.all[merged.length] = MergedDemand {
                limit: demand.limit,
                requests: demand.requests,
                entry: self.keys.find(demand.limit, &demand.key),
                demand: index,
            };
            merged.length += 1;
        }
        merged
    }

    /// The earliest slot at or after `now` and `from` that all limits admit, and the limit that moved it last.
    ///
    /// In each round, every limit in turn moves the slot to the earliest time that it admits, until nothing moves. For example, A admits
    /// one request per 100 ms; its slots at 0.80 s and 1.00 s are taken. B admits two requests per second of the clock, and has counted
    /// two since 0 s. A call at 0.85 s gets the slot 1.10 s, and A is the binding limit:
    ///
    /// | round | A | B |
    /// |---|---|---|
    /// | 1 | 0.90 s | 1.00 s, in the next window |
    /// | 2 | 1.10 s, because 1.00 s is taken | 1.10 s |
    /// | 3 | 1.10 s | 1.10 s |
    #[inline]
    fn earliest<const MAX: usize>(
        &self,
        merged: &MergedDemands<MAX>,
        from: u64,
        now: u64,
    ) -> Result<(u64, Option<LimitId>), (LimitId, Refusal)> {
        let (mut at, mut binding) = (now.max(from), None);
        for it in merged.all() {
            let active = &self.limits[it.limit.index()];
            if !active.meter.can_admit(it.requests) {
                let max = active.limit.algorithm.max_burst();
                return Err((it.limit, Refusal::TooMany { max }));
            }
        }
        for round in 0..2 * ROUNDS_MAX {
            let before = at;
            for it in merged.all() {
                let active = &self.limits[it.limit.index()];
                let state = match (it.entry, &active.initial) {
                    (Some(entry), _) => self.keys.state(entry),
                    (None, Some(initial)) => initial,
                    (None, None) => continue,
                };
                let (meter, mut from) = (&active.meter, at);
                if round == ROUNDS_MAX {
                    // The gaps of these limits never align, so search after all bookings.
                    from = from.max(state.latest());
                }
                let earliest = meter.earliest(state, it.requests, from);
                if round == 0 && meter.queue_wait_max < u64::MAX {
                    // A queue bounds only the wait for its own limit.
                    let wait = meter.earliest(state, it.requests, now) - now;
                    if wait > meter.queue_wait_max {
                        let retry_after = Duration::from_nanos(wait - meter.queue_wait_max);
                        return Err((it.limit, Refusal::Wait { retry_after }));
                    }
                }
                if earliest > at {
                    (at, binding) = (earliest, Some(it.limit));
                }
            }
            // A limit that admits the earlier slot may not admit the later one.
            if at == before || merged.length == 1 {
                break;
            }
        }
        Ok((at, binding))
    }

    /// Checks that all limits can store the booking of a future slot.
    #[cold]
    #[inline(never)]
    fn check_bookable<const MAX: usize>(
        &self,
        merged: &MergedDemands<MAX>,
        at: u64,
        now: u64,
    ) -> Result<(), (LimitId, Refusal)> {
        let may_grow = !self.keys.exceeds_bytes();
        for it in merged.all() {
            let active = &self.limits[it.limit.index()];
            let state = match it.entry {
                Some(entry) => Cow::Borrowed(self.keys.state(entry)),
                None if may_grow => continue,
                None => Cow::Owned(active.initial()),
            };
            let meter = &active.meter;
            let bookable_at = meter.bookable_at(&state, it.requests, at, now, may_grow);
            if bookable_at > now {
                let retry_after = Duration::from_nanos(bookable_at - now);
                return Err((it.limit, Refusal::Wait { retry_after }));
            }
        }
        Ok(())
    }

    #[inline]
    fn decide<const MAX: usize>(
        &self,
        merged: &MergedDemands<MAX>,
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        let (at, binding) = match self.earliest(merged, from, now) {
            Ok(found) => found,
            Err((limit, reason)) => return Decision::Refused { limit, reason },
        };
        let delayed = || merged.all().first().filter(|_| at > now);
        let Some(limit) = binding.or_else(|| delayed().map(|it| it.limit)) else {
            return Decision::Now;
        };
        let wait = at - now;
        let max_wait = u64::try_from(max_wait.as_nanos()).unwrap_or(u64::MAX);
        if wait > max_wait {
            let retry_after = Duration::from_nanos(wait - max_wait);
            let reason = Refusal::Wait { retry_after };
            return Decision::Refused { limit, reason };
        }
        match self.check_bookable(merged, at, now) {
            Ok(()) => Decision::At { at, limit },
            Err((limit, reason)) => Decision::Refused { limit, reason },
        }
    }

    /// Creates all missing entries, or none.
    fn create_entries<const MAX: usize>(
        &mut self,
        merged: &mut MergedDemands<MAX>,
        demands: &[Demand<K>],
        now: u64,
    ) -> Result<(), LimitId> {
        let missing = || merged.all().iter().filter(|it| it.entry.is_none());
        let Some(first) = missing().next().map(|it| it.limit) else {
            return Ok(());
        };
        for it in missing() {
            let ActiveLimit { meter, initial, .. } = &mut self.limits[it.limit.index()];
            if initial.as_ref().is_some_and(|it| meter.is_idle(it, now)) {
                *initial = None;
            }
        }
        let (limits, keys) = (&self.limits, &mut self.keys);
        let known: [Option<u32>; MAX] = std::array::from_fn(|index| merged.all[index].entry);
        let is_idle =
            |limit: LimitId, state: &KeyState| limits[limit.index()].meter.is_idle(state, now);
        if !keys.make_room(missing().map(|it| it.limit), &known, is_idle) {
            return Err(first);
        }
        let new = merged.all[..merged.length].iter_mut();
        for it in new.filter(|it| it.entry.is_none()) {
            let state = limits[it.limit.index()].initial();
            let key = demands[it.demand].key.clone();
            it.entry = Some(keys.insert(it.limit, key, state));
        }
        Ok(())
    }

    /// Counts a refused call under the limits that have `count_refused`.
    #[cold]
    fn count_refused<const MAX: usize>(
        &mut self,
        merged: &MergedDemands<MAX>,
        demands: &[Demand<K>],
        now: u64,
    ) {
        let counts = |it: &&MergedDemand| self.limits[it.limit.index()].limit.count_refused;
        let mut counting = MergedDemands {
            length: 0,
            ..*merged
        };
        for it in merged.all().iter().filter(counts) {
            counting.all[counting.length] = *it;
            counting.length += 1;
        }
        if self.create_entries(&mut counting, demands, now).is_ok() {
            for it in counting.all() {
                self.update(it, |meter, state| meter.charge(state, it.requests, now));
            }
        }
    }
}

#[cfg(test)]
mod tests;
