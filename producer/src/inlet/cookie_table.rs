//! The cookies of one queue, at most one per (user, DSP) pair, with the state of each.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::BuildHasher,
};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use proto::{
    units::{DspId, UnixMicros},
    wire::{CookieRef, Scope},
};

use super::clock::MonotonicNanos;
use crate::log::Deletion;

/// Memory of a cookie besides its ids: the struct, its entry in each index, and allocator overhead.
const COOKIE_BYTES: u64 = 216;

/// Index of a cookie in its table.
pub(super) type CookieIndex = u32;

/// A cookie in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedCookie {
    /// The user id followed by the buyer uid.
    ids: Box<[u8]>,
    user_id_bytes: u8,
    pub(super) dsp_id: DspId,
    /// When it was accepted; its age at release is computed from this.
    pub(super) accepted: UnixMicros,
    /// The same time, by the clock of the limits.
    pub(super) accepted_at: MonotonicNanos,
    /// When it entered the queue, on acceptance or at the last requeue.
    pub(super) entered: MonotonicNanos,
    /// How often it was requeued as overdue.
    pub(super) requeues: u32,
    pub(super) state: CookieState,
    hash: u32,
}

/// State of a cookie in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CookieState {
    /// In the FIFO, at this position.
    Queued(u64),
    /// Its wait would have been too long; it is rescheduled at this time.
    Deferred(MonotonicNanos),
    /// An overdue cookie that is not requeued before this time.
    Overdue(MonotonicNanos),
    /// An overdue cookie that is not requeued any more.
    Parked,
}

impl QueuedCookie {
    /// A cookie to queue. `accepted` and `accepted_at` are the same time, on the system clock and on the clock of the limits.
    pub(super) fn new(
        cookie: &CookieRef<'_>,
        accepted: UnixMicros,
        accepted_at: MonotonicNanos,
    ) -> Self {
        let (user_id, buyer_uid) = (cookie.user_id.as_bytes(), cookie.buyer_uid.as_bytes());
        Self {
            ids: [user_id, buyer_uid].concat().into_boxed_slice(),
            user_id_bytes: u8::try_from(user_id.len()).expect("a user id has at most 64 bytes"),
            dsp_id: cookie.dsp_id,
            accepted,
            accepted_at,
            entered: accepted_at,
            requeues: 0,
            state: CookieState::Queued(0),
            hash: 0,
        }
    }

    pub(super) fn user_id(&self) -> &str {
        as_text(&self.ids[..usize::from(self.user_id_bytes)])
    }

    /// The cookie with its age at `now`.
    pub(super) fn with_age(&self, now: UnixMicros) -> CookieRef<'_> {
        CookieRef {
            age_micros: now.since(self.accepted),
            ..self.cookie()
        }
    }

    /// The cookie without its age.
    pub(super) fn cookie(&self) -> CookieRef<'_> {
        CookieRef {
            user_id: self.user_id(),
            dsp_id: self.dsp_id,
            buyer_uid: as_text(&self.ids[usize::from(self.user_id_bytes)..]),
            age_micros: 0,
        }
    }

    fn has_ids(&self, user_id: &str, dsp_id: DspId) -> bool {
        self.dsp_id == dsp_id && self.user_id() == user_id
    }

    fn bytes(&self) -> u64 {
        COOKIE_BYTES + self.ids.len() as u64
    }
}

fn as_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("copied from a str, split at its boundaries")
}

/// Cookies of one queue, indexed by ids, by state and by age.
#[derive(Debug, Default)]
pub(super) struct CookieTable {
    cookies: Vec<Option<Box<QueuedCookie>>>,
    free: Vec<CookieIndex>,
    /// Stores the hash, so that growing does not access the cookies.
    index: HashTable<(u32, CookieIndex)>,
    hasher: RandomState,
    /// The cookies in the FIFO, by position.
    pub(super) fifo: BTreeSet<(u64, CookieIndex)>,
    next_position: u64,
    /// Deferred cookies, by the time of their next attempt.
    pub(super) deferred: BTreeSet<(MonotonicNanos, CookieIndex)>,
    /// Overdue cookies, by the time from which they may be requeued.
    pub(super) overdue: BTreeSet<(MonotonicNanos, CookieIndex)>,
    /// Overdue cookies that are not requeued any more.
    pub(super) parked: BTreeSet<CookieIndex>,
    /// All cookies, by acceptance time.
    by_age: BTreeSet<(MonotonicNanos, CookieIndex)>,
    bytes: u64,
    /// Number of cookies in the table by DSP.
    dsps: HashMap<DspId, u32>,
}

impl CookieTable {
    /// Inserts a cookie whose pair is not in the table.
    pub(super) fn insert(&mut self, mut cookie: QueuedCookie) {
        cookie.hash = self.hash(cookie.dsp_id, cookie.user_id());
        self.bytes += cookie.bytes();
        *self.dsps.entry(cookie.dsp_id).or_default() += 1;
        let hash = cookie.hash;
        let at = self.free.pop().unwrap_or_else(|| {
            self.cookies.push(None);
            let at = self.cookies.len() - 1;
            CookieIndex::try_from(at).expect("the table is bounded in bytes")
        });
        self.cookies[at as usize] = Some(Box::new(cookie));
        self.index
            .insert_unique(spread(hash), (hash, at), |(hash, _)| spread(*hash));
        self.update_sets(at, true);
    }

    /// The state of a cookie that joins the FIFO at its end.
    pub(super) fn end_of_fifo(&mut self) -> CookieState {
        self.next_position += 1;
        CookieState::Queued(self.next_position)
    }

    /// Finds the cookie of a user at a DSP.
    pub(super) fn find(&self, user_id: &str, dsp_id: DspId) -> Option<CookieIndex> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hash(dsp_id, user_id);
        let matches = |(known, at): &(u32, CookieIndex)| {
            *known == hash && self.get(*at).has_ids(user_id, dsp_id)
        };
        self.index.find(spread(hash), matches).map(|(_, at)| *at)
    }

    /// The cookies that a deletion covers. Costs a lookup per DSP, or a scan for all users of a DSP.
    pub(super) fn covered_by(&self, deletion: &Deletion) -> Vec<CookieIndex> {
        let all = || self.by_age.iter().map(|(_, at)| *at);
        let mut covered: Vec<CookieIndex> = match &deletion.scope {
            Scope::Match(user, dsp_id) => self.find(user, *dsp_id).into_iter().collect(),
            Scope::User(user) => {
                let dsps = self.dsps.keys();
                dsps.filter_map(|dsp_id| self.find(user, *dsp_id)).collect()
            }
            Scope::Dsp(dsp_id) => all().filter(|at| self.get(*at).dsp_id == *dsp_id).collect(),
            Scope::All => all().collect(),
        };
        let until = deletion.until.unwrap_or(UnixMicros::MAX);
        covered.retain(|at| self.get(*at).accepted <= until);
        covered
    }

    /// The cookie at this index.
    pub(super) fn get(&self, at: CookieIndex) -> &QueuedCookie {
        self.cookies[at as usize].as_ref().expect("in the table")
    }

    fn get_mut(&mut self, at: CookieIndex) -> &mut QueuedCookie {
        self.cookies[at as usize].as_mut().expect("in the table")
    }

    /// Replaces a cookie with a newer one of the same pair, which inherits the state.
    pub(super) fn replace(&mut self, at: CookieIndex, mut newer: QueuedCookie) {
        self.update_sets(at, false);
        let cookie = self.get_mut(at);
        newer.hash = cookie.hash;
        newer.state = cookie.state;
        let before = cookie.bytes();
        let after = newer.bytes();
        *cookie = newer;
        self.bytes = self.bytes - before + after;
        self.update_sets(at, true);
    }

    /// Changes the state of a cookie.
    pub(super) fn set_state(&mut self, at: CookieIndex, state: CookieState) {
        self.update_sets(at, false);
        self.get_mut(at).state = state;
        self.update_sets(at, true);
    }

    /// Counts a requeue of an overdue cookie, which enters the queue again.
    pub(super) fn requeue(&mut self, at: CookieIndex, now: MonotonicNanos) {
        let cookie = self.get_mut(at);
        cookie.requeues += 1;
        cookie.entered = now;
    }

    /// Makes all parked cookies eligible for requeue again.
    pub(super) fn unpark(&mut self, now: MonotonicNanos) {
        for at in self.parked.clone() {
            self.get_mut(at).requeues = 0;
            self.set_state(at, CookieState::Overdue(now));
        }
    }

    /// Removes a cookie.
    pub(super) fn remove(&mut self, at: CookieIndex) -> QueuedCookie {
        self.update_sets(at, false);
        let cookie = self.cookies[at as usize].take().expect("in the table");
        self.free.push(at);
        self.bytes -= cookie.bytes();
        if let Entry::Occupied(mut count) = self.dsps.entry(cookie.dsp_id) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let matches = |(_, it): &(u32, CookieIndex)| *it == at;
        let entry = self.index.find_entry(spread(cookie.hash), matches);
        entry.expect("every cookie is indexed").remove();
        *cookie
    }

    /// The oldest cookie: when it was accepted, and its index.
    pub(super) fn oldest(&self) -> Option<(MonotonicNanos, CookieIndex)> {
        self.by_age.first().copied()
    }

    /// Number of cookies.
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Memory of all cookies, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a cookie to the set of its state and to that of all cookies, or removes it.
    fn update_sets(&mut self, at: CookieIndex, is_added: bool) {
        fn update<K: Ord>(set: &mut BTreeSet<K>, key: K, is_added: bool) {
            if is_added {
                set.insert(key);
            } else {
                set.remove(&key);
            }
        }
        let accepted_at = self.get(at).accepted_at;
        match self.get(at).state {
            CookieState::Queued(position) => update(&mut self.fifo, (position, at), is_added),
            CookieState::Deferred(retry_at) => update(&mut self.deferred, (retry_at, at), is_added),
            CookieState::Overdue(requeue_at) => {
                update(&mut self.overdue, (requeue_at, at), is_added)
            }
            CookieState::Parked => update(&mut self.parked, at, is_added),
        }
        update(&mut self.by_age, (accepted_at, at), is_added);
    }

    fn hash(&self, dsp_id: DspId, user_id: &str) -> u32 {
        let hash = self.hasher.hash_one((dsp_id, user_id.as_bytes()));
        u32::try_from(hash >> 32).expect("the shift leaves 32 bits")
    }
}

/// Expands a stored 32-bit hash to the 64 bits that the hash table needs.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
