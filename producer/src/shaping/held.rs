//! The cookies of one waiting room: each (user, DSP) pair at most once, and where each stands.

use std::{collections::BTreeSet, hash::BuildHasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use proto::wire::CookieRef;

/// What a cookie takes beside its ids: itself, its place in every table, and what the allocator adds.
const HELD_BYTES: u64 = 216;

/// The place of a held cookie in its room.
pub(super) type At = u32;

/// A cookie that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// The user id and the buyer uid, one after the other.
    ids: Box<[u8]>,
    user_id_bytes: u8,
    /// The buyer.
    pub(super) dsp_id: u32,
    /// When it was accepted, in microseconds since the Unix epoch: what it is released with.
    pub(super) accepted_unix_micros: u64,
    /// The same moment, in nanoseconds of the clock that the shaper goes by.
    pub(super) accepted: u64,
    /// When it entered the room: when it was accepted, or requeued.
    pub(super) entered: u64,
    /// How often it was requeued.
    pub(super) requeues: u32,
    /// Where it stands.
    pub(super) standing: Standing,
    hash: u32,
}

/// Where a held cookie stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// In the line, at this place.
    InLine(u64),
    /// Sent back, as its wait would have been too long; it asks again at this moment.
    Returned(u64),
    /// A dead letter, which is requeued at this moment at the earliest.
    Dead(u64),
    /// A dead letter that is not requeued any more.
    Parked,
}

impl Held {
    /// A cookie that was accepted at these moments, the second of them on the shaper's clock.
    pub(super) fn new(cookie: &CookieRef<'_>, accepted_unix_micros: u64, accepted: u64) -> Self {
        let (user_id, buyer_uid) = (cookie.user_id.as_bytes(), cookie.buyer_uid.as_bytes());
        Self {
            ids: [user_id, buyer_uid].concat().into_boxed_slice(),
            user_id_bytes: u8::try_from(user_id.len()).expect("a user id has at most 64 bytes"),
            dsp_id: cookie.dsp_id,
            accepted_unix_micros,
            accepted,
            entered: accepted,
            requeues: 0,
            standing: Standing::InLine(0),
            hash: 0,
        }
    }

    fn user_id(&self) -> &str {
        as_text(&self.ids[..usize::from(self.user_id_bytes)])
    }

    /// It as a cookie, with its age at this time.
    pub(super) fn released(&self, now_unix_micros: u64) -> CookieRef<'_> {
        CookieRef {
            age_micros: now_unix_micros.saturating_sub(self.accepted_unix_micros),
            ..self.cookie()
        }
    }

    /// It as a cookie, without its age.
    pub(super) fn cookie(&self) -> CookieRef<'_> {
        CookieRef {
            user_id: self.user_id(),
            dsp_id: self.dsp_id,
            buyer_uid: as_text(&self.ids[usize::from(self.user_id_bytes)..]),
            age_micros: 0,
        }
    }

    fn is_of(&self, cookie: &CookieRef<'_>) -> bool {
        self.dsp_id == cookie.dsp_id && self.user_id() == cookie.user_id
    }

    fn bytes(&self) -> u64 {
        HELD_BYTES + self.ids.len() as u64
    }
}

fn as_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it was copied from text, at its boundaries")
}

/// The cookies that a room holds.
#[derive(Debug, Default)]
pub(super) struct Table {
    cookies: Vec<Option<Box<Held>>>,
    free: Vec<At>,
    /// With the hash, so that growing does not look at the cookies.
    index: HashTable<(u32, At)>,
    hasher: RandomState,
    /// The line.
    pub(super) line: BTreeSet<(u64, At)>,
    /// The next place in it.
    next_place: u64,
    /// Those that are sent back, by when they ask again.
    pub(super) returned: BTreeSet<(u64, At)>,
    /// Dead letters, by when they may be requeued.
    pub(super) dead: BTreeSet<(u64, At)>,
    /// Dead letters that are not requeued any more.
    pub(super) parked: BTreeSet<(u64, At)>,
    /// All of them, by when they were accepted.
    by_age: BTreeSet<(u64, At)>,
    bytes: u64,
}

impl Table {
    /// Adds a cookie whose pair is not held.
    pub(super) fn insert(&mut self, mut held: Held) {
        held.hash = self.hash(held.dsp_id, held.user_id());
        self.bytes += held.bytes();
        let hash = held.hash;
        let at = match self.free.pop() {
            Some(at) => {
                self.cookies[at as usize] = Some(Box::new(held));
                at
            }
            None => {
                let at = At::try_from(self.cookies.len()).expect("it is bounded in bytes");
                self.cookies.push(Some(Box::new(held)));
                at
            }
        };
        self.index
            .insert_unique(spread(hash), (hash, at), |(hash, _)| spread(*hash));
        self.enlist(at);
    }

    /// The place behind all that are in the line.
    pub(super) fn end_of_line(&mut self) -> Standing {
        self.next_place += 1;
        Standing::InLine(self.next_place)
    }

    /// Where the cookie of this pair is.
    pub(super) fn find(&self, cookie: &CookieRef<'_>) -> Option<At> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hash(cookie.dsp_id, cookie.user_id);
        let is_it = |(known, at): &(u32, At)| *known == hash && self.get(*at).is_of(cookie);
        self.index.find(spread(hash), is_it).map(|(_, at)| *at)
    }

    /// The cookie at this place.
    pub(super) fn get(&self, at: At) -> &Held {
        self.cookies[at as usize].as_ref().expect("it is held")
    }

    /// Puts a newer cookie of the same pair in the place of one that is held.
    pub(super) fn renew(&mut self, at: At, mut newer: Held) {
        self.delist(at);
        let held = self.cookies[at as usize].as_mut().expect("it is held");
        newer.hash = held.hash;
        newer.standing = held.standing;
        self.bytes = self.bytes - held.bytes() + newer.bytes();
        **held = newer;
        self.enlist(at);
    }

    /// Has a cookie stand elsewhere.
    pub(super) fn move_to(&mut self, at: At, standing: Standing) {
        self.delist(at);
        let held = self.cookies[at as usize].as_mut().expect("it is held");
        held.standing = standing;
        self.enlist(at);
    }

    /// Revives a dead letter: it enters the room again.
    pub(super) fn requeue(&mut self, at: At, now: u64) {
        let held = self.cookies[at as usize].as_mut().expect("it is held");
        held.requeues += 1;
        held.entered = now;
    }

    /// Has all that are parked be dead letters that were never requeued.
    pub(super) fn unpark(&mut self, now: u64) {
        for (_, at) in self.parked.clone() {
            let held = self.cookies[at as usize].as_mut().expect("it is held");
            held.requeues = 0;
            self.move_to(at, Standing::Dead(now));
        }
    }

    /// Takes a cookie out.
    pub(super) fn take(&mut self, at: At) -> Held {
        self.delist(at);
        let held = self.cookies[at as usize].take().expect("it is held");
        self.free.push(at);
        self.bytes -= held.bytes();
        let is_it = |(_, it): &(u32, At)| *it == at;
        let entry = self.index.find_entry(spread(held.hash), is_it);
        entry.expect("what is held is in the index").remove();
        *held
    }

    /// The oldest: when it was accepted, and where it is.
    pub(super) fn oldest(&self) -> Option<(u64, At)> {
        self.by_age.first().copied()
    }

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// What all of it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn enlist(&mut self, at: At) {
        let Held {
            accepted, standing, ..
        } = *self.get(at);
        let (set, key) = self.place(standing);
        set.insert((key, at));
        self.by_age.insert((accepted, at));
    }

    fn delist(&mut self, at: At) {
        let Held {
            accepted, standing, ..
        } = *self.get(at);
        let (set, key) = self.place(standing);
        set.remove(&(key, at));
        self.by_age.remove(&(accepted, at));
    }

    /// The set of those that stand so, and where in it.
    fn place(&mut self, standing: Standing) -> (&mut BTreeSet<(u64, At)>, u64) {
        match standing {
            Standing::InLine(place) => (&mut self.line, place),
            Standing::Returned(when) => (&mut self.returned, when),
            Standing::Dead(when) => (&mut self.dead, when),
            Standing::Parked => (&mut self.parked, 0),
        }
    }

    fn hash(&self, dsp_id: u32, user_id: &str) -> u32 {
        let hash = self.hasher.hash_one((dsp_id, user_id.as_bytes()));
        u32::try_from(hash >> 32).expect("32 bits are left")
    }
}

/// A hash for the table, which wants 64 bits, of the 32 that are kept.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
