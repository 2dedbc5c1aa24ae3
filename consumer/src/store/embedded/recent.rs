//! Which cookies are certainly newer than anything stored of their pair, without a look at the disk. Pure.
//!
//! With several producers a good part of all cookies comes after a newer cookie of somebody else, and each would
//! cost a point read. So the pairs written lately are remembered, as 64-bit hashes in two generations, together
//! with a *horizon*: no cookie of a pair that is not remembered was accepted after it. A cookie accepted at or
//! after the horizon whose pair is not remembered is the newest of its pair. Only the others must be read: of a
//! pair written lately, or older than the horizon. A collision of hashes costs a read, never a wrong answer.
//!
//! While no cookie comes late (one producer), nothing is remembered: the horizon is then the newest cookie.
//!
//! Memory: 9 bytes for each of two times [`GENERATION_PAIRS`], 19 MB; none while nothing comes late. Time: one hash and one
//! insertion for each cookie written.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use proto::newest;

use crate::batch::BatchCookie;

/// Pairs of one generation: what fits a table of 2^20 slots.
const GENERATION_PAIRS: usize = (1 << 20) / 8 * 7;

/// The pairs written lately.
#[derive(Debug)]
pub(super) struct Recent {
    hasher: RandomState,
    generation_pairs: usize,
    young: Generation,
    old: Generation,
    /// No cookie in the store was accepted after this.
    newest: u64,
    /// No cookie of a pair that is in neither generation was accepted after this.
    horizon: u64,
    remembers: bool,
    late_seen: bool,
}

#[derive(Debug, Default)]
struct Generation {
    pairs: HashTable<u64>,
    newest: u64,
}

/// A pair, as it is remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair(u64);

impl Recent {
    /// For a store with no cookie accepted after `newest`.
    pub(super) fn new(newest: u64) -> Self {
        Self::with_generations(newest, GENERATION_PAIRS)
    }

    fn with_generations(newest: u64, generation_pairs: usize) -> Self {
        Self {
            hasher: RandomState::default(),
            generation_pairs,
            young: Generation::default(),
            old: Generation::default(),
            newest,
            horizon: newest,
            remembers: false,
            late_seen: false,
        }
    }

    /// No cookie in the store was accepted after this.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    pub(super) fn pair(&self, cookie: &BatchCookie<'_>) -> Pair {
        Pair(self.hasher.hash_one((cookie.dsp_id, cookie.user_id)))
    }

    /// Whether the store may have a cookie of this pair accepted after `accepted`: it must then be read.
    pub(super) fn may_have_newer(&mut self, pair: Pair, accepted: u64) -> bool {
        if newest::replaces(accepted, self.newest) {
            return false;
        }
        self.late_seen = true;
        !newest::replaces(accepted, self.horizon) || self.young.has(pair) || self.old.has(pair)
    }

    /// Takes note of a cookie that is going to be written.
    pub(super) fn written(&mut self, pair: Pair, accepted: u64) {
        self.newest = self.newest.max(accepted);
        if !self.remembers {
            if !self.late_seen {
                self.horizon = self.newest;
                return;
            }
            self.remembers = true;
            // What was written until now is covered by the horizon.
            self.late_seen = false;
        }
        self.young.insert(pair, accepted);
        if self.young.pairs.len() >= self.generation_pairs {
            self.turn();
        }
    }

    /// Forgets the old generation; also the young one when nothing came late in its time.
    fn turn(&mut self) {
        if std::mem::take(&mut self.late_seen) {
            self.horizon = self.horizon.max(self.old.newest);
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        } else {
            *self = Self::with_generations(self.newest, self.generation_pairs);
        }
    }
}

impl Generation {
    fn has(&self, Pair(hash): Pair) -> bool {
        self.pairs.find(hash, |known| *known == hash).is_some()
    }

    fn insert(&mut self, Pair(hash): Pair, accepted: u64) {
        self.newest = self.newest.max(accepted);
        self.pairs
            .entry(hash, |known| *known == hash, |known| *known)
            .or_insert(hash);
    }

    fn clear(&mut self) {
        self.pairs.clear();
        self.newest = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn cookie(user_id: &[u8], accepted_unix_micros: u64) -> BatchCookie<'_> {
        BatchCookie {
            user_id,
            dsp_id: 1,
            buyer_uid: b"x",
            accepted_unix_micros,
            is_known: false,
        }
    }

    /// Writes newest-wins cookies that come up to `late_max` late, and compares with a full memory of all.
    /// Returns how many were read.
    fn reads(users: u32, late_max: u64, cookies: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(7);
        let mut recent = Recent::with_generations(0, 1000);
        let mut stored: HashMap<u32, u64> = HashMap::new();
        let mut reads = 0;
        for now in 1..=cookies {
            let accepted = 1_000_000 + now - random.u64(0..=late_max);
            let user = random.u32(0..users);
            let bytes = user.to_be_bytes();
            let pair = recent.pair(&cookie(&bytes, accepted));
            let newer = stored.get(&user).is_some_and(|stored| *stored > accepted);
            if recent.may_have_newer(pair, accepted) {
                reads += 1;
                if newer {
                    continue;
                }
            } else {
                assert!(!newer, "cookie {now} would overwrite a newer one");
            }
            stored.insert(user, accepted);
            recent.written(pair, accepted);
            assert_eq!(stored.values().max(), Some(&recent.newest()));
            assert!(recent.young.pairs.len() + recent.old.pairs.len() <= 2000);
        }
        reads
    }

    #[test]
    fn never_lets_an_older_cookie_overwrite_a_newer_one() {
        for users in [10, 500, 5000] {
            for late_max in [1, 50, 900, 5000] {
                reads(users, late_max, 4000);
            }
        }
    }

    #[test]
    fn late_cookies_of_new_pairs_cost_no_reads() {
        // The first late ones are older than the horizon.
        let reads = reads(u32::MAX, 500, 5000);
        assert!(reads < 520, "{reads} reads");
    }

    #[test]
    fn nothing_is_remembered_while_nothing_is_late() {
        let mut recent = Recent::with_generations(100, 10);
        let mut write = |user: u32, accepted| {
            let bytes = user.to_be_bytes();
            let pair = recent.pair(&cookie(&bytes, accepted));
            let read = recent.may_have_newer(pair, accepted);
            recent.written(pair, accepted);
            (read, recent.remembers)
        };
        assert_eq!(write(1, 100), (false, false));
        assert_eq!(write(2, 101), (false, false));
        assert_eq!(write(3, 100), (true, true), "written before the horizon");
        assert_eq!(write(4, 102), (false, true));
        assert_eq!(write(5, 101), (false, true));
        assert_eq!(write(4, 101), (true, true), "written lately");
        for user in 6..30 {
            assert!(!write(user, 103).0);
        }
        assert_eq!(write(30, 103), (false, false), "nothing came late any more");
    }
}
