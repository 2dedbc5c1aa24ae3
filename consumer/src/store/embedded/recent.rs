//! Recently written pairs: determines without reading the disk that a cookie is newer than the stored one of its pair.
//! Does no I/O.
//!
//! With several producers, many cookies arrive after a newer cookie of another user, and each would need a point read. So
//! recently written pairs are kept as 64-bit hashes in two generations, together with a *horizon*. No cookie of any other pair
//! was accepted after the horizon. So a cookie accepted at or after it is the newest of its pair, unless the pair is in a
//! generation. All other cookies need a read. A hash collision only costs a read.
//!
//! While no cookie arrives late (one producer), no pairs are kept: the horizon is then the acceptance time of the newest
//! cookie.
//!
//! Memory: two tables of 2^20 slots with 9 bytes each, together 19 MB; none while no cookie is late. Time: one hash and one
//! insertion per written cookie.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use proto::{newest, units::UnixMicros};

use crate::batch::BatchCookie;

/// Pairs per generation: the capacity of a table of 2^20 slots.
const GENERATION_PAIRS: usize = (1 << 20) / 8 * 7;

/// Recently written pairs.
#[derive(Debug)]
pub(super) struct RecentPairs {
    hasher: RandomState,
    generation_pairs: usize,
    young: Generation,
    old: Generation,
    /// Acceptance time of the newest cookie in the store, or a later time.
    newest: UnixMicros,
    /// Cookies of pairs outside both generations were accepted at or before this time.
    horizon: UnixMicros,
    /// Whether pairs are kept.
    is_active: bool,
    /// Whether a cookie of the current generation was late.
    has_late: bool,
}

#[derive(Debug, Default)]
struct Generation {
    pairs: HashTable<u64>,
    newest: UnixMicros,
}

/// The hash of a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairHash(u64);

impl RecentPairs {
    /// Starts with a store that has no cookie accepted after `newest`.
    pub(super) fn new(newest: UnixMicros) -> Self {
        Self::with_generations(newest, GENERATION_PAIRS)
    }

    fn with_generations(newest: UnixMicros, generation_pairs: usize) -> Self {
        Self {
            hasher: RandomState::default(),
            generation_pairs,
            young: Generation::default(),
            old: Generation::default(),
            newest,
            horizon: newest,
            is_active: false,
            has_late: false,
        }
    }

    /// Acceptance time of the newest cookie in the store, or a later time.
    pub(super) fn newest(&self) -> UnixMicros {
        self.newest
    }

    pub(super) fn pair(&self, cookie: &BatchCookie<'_>) -> PairHash {
        PairHash(self.hasher.hash_one((cookie.dsp_id, cookie.user_id)))
    }

    /// Whether the store may have a cookie of this pair accepted after `accepted`, and must be read.
    pub(super) fn may_have_newer(&mut self, pair: PairHash, accepted: UnixMicros) -> bool {
        if newest::replaces(accepted, self.newest) {
            return false;
        }
        self.has_late = true;
        !newest::replaces(accepted, self.horizon) || self.young.has(pair) || self.old.has(pair)
    }

    /// Records a cookie that will be written.
    pub(super) fn record(&mut self, pair: PairHash, accepted: UnixMicros) {
        self.newest = self.newest.max(accepted);
        if !self.is_active {
            if !self.has_late {
                self.horizon = self.newest;
                return;
            }
            self.is_active = true;
            // The horizon covers all cookies written before.
            self.has_late = false;
        }
        self.young.insert(pair, accepted);
        if self.young.pairs.len() >= self.generation_pairs {
            self.rotate();
        }
    }

    /// Drops the old generation, and the young one if no cookie was late during it.
    fn rotate(&mut self) {
        if std::mem::take(&mut self.has_late) {
            self.horizon = self.horizon.max(self.old.newest);
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        } else {
            *self = Self::with_generations(self.newest, self.generation_pairs);
        }
    }
}

impl Generation {
    fn has(&self, PairHash(hash): PairHash) -> bool {
        self.pairs.find(hash, |known| *known == hash).is_some()
    }

    fn insert(&mut self, PairHash(hash): PairHash, accepted: UnixMicros) {
        self.newest = self.newest.max(accepted);
        self.pairs
            .entry(hash, |known| *known == hash, |known| *known)
            .or_insert(hash);
    }

    fn clear(&mut self) {
        self.pairs.clear();
        self.newest = UnixMicros::NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proto::units::DspId;

    use super::*;

    fn cookie(user_id: &[u8], accepted: UnixMicros) -> BatchCookie<'_> {
        BatchCookie {
            user_id,
            dsp_id: DspId(1),
            buyer_uid: b"x",
            accepted,
            is_known: false,
        }
    }

    /// Writes cookies that are up to `late_max` late, and compares the results with a map. Returns the number of reads.
    fn reads(users: u32, late_max: u64, cookies: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(7);
        let mut recent = RecentPairs::with_generations(UnixMicros::NONE, 1000);
        let mut stored: HashMap<u32, UnixMicros> = HashMap::new();
        let mut reads = 0;
        for now in 1..=cookies {
            let accepted = UnixMicros(1_000_000 + now - random.u64(0..=late_max));
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
            recent.record(pair, accepted);
            assert_eq!(stored.values().max(), Some(&recent.newest()));
            assert!(recent.young.pairs.len() + recent.old.pairs.len() <= 2000);
        }
        reads
    }

    #[test]
    fn older_cookie_never_overwrites_a_newer_one() {
        for users in [10, 500, 5000] {
            for late_max in [1, 50, 900, 5000] {
                reads(users, late_max, 4000);
            }
        }
    }

    #[test]
    fn late_cookies_of_new_pairs_cost_no_reads() {
        // Only the first late cookies are older than the horizon.
        let reads = reads(u32::MAX, 500, 5000);
        assert!(reads < 520, "{reads} reads");
    }

    #[test]
    fn no_pairs_are_kept_while_no_cookie_is_late() {
        let mut recent = RecentPairs::with_generations(UnixMicros(100), 10);
        let mut write = |user: u32, accepted| {
            let (bytes, accepted) = (user.to_be_bytes(), UnixMicros(accepted));
            let pair = recent.pair(&cookie(&bytes, accepted));
            let read = recent.may_have_newer(pair, accepted);
            recent.record(pair, accepted);
            (read, recent.is_active)
        };
        assert_eq!(write(1, 100), (false, false));
        assert_eq!(write(2, 101), (false, false));
        assert_eq!(write(3, 100), (true, true), "written before the horizon");
        assert_eq!(write(4, 102), (false, true));
        assert_eq!(write(5, 101), (false, true));
        assert_eq!(write(4, 101), (true, true), "recently written");
        for user in 6..30 {
            assert!(!write(user, 103).0);
        }
        assert_eq!(
            write(30, 103),
            (false, false),
            "no cookie was late any more"
        );
    }
}
