//! Users whose matches were looked up recently. A range read of the tree costs 12 µs even if all of its blocks are in memory; a
//! user of this cache costs less than one.
//!
//! The cache always equals the tree:
//!
//! - A lookup places a *guard* for a user who is not in the cache, then reads the tree, and inserts what it has read through
//!   the guard.
//! - The writer changes the tree first. Then it updates the user in the cache, or removes the user and every guard. Matches that were
//!   read before the change then have no guard, and are not inserted.
//!
//! There is one writer at a time. Expired and deleted matches stay in the cache; the reader omits them.

use std::time::Duration;

use foldhash::fast::RandomState;
use quick_cache::{
    Weighter,
    sync::{Cache, DefaultLifecycle, GuardResult},
};

use crate::store::{StoredMatch, UserMatches};

/// Memory of a user besides the user id and the matches: entries of the tables, and headers of allocations.
const USER_BYTES: usize = 120;

/// Usual memory of a user, with five matches.
const USER_BYTES_USUAL: usize = 350;

type Users = Cache<Vec<u8>, UserMatches, UserWeight, RandomState>;

/// The cache of one store.
#[derive(Debug)]
pub(super) struct UserCache(Users);

/// The memory of a user.
#[derive(Debug, Clone)]
struct UserWeight;

impl Weighter<Vec<u8>, UserMatches> for UserWeight {
    fn weight(&self, user_id: &Vec<u8>, matches: &UserMatches) -> u64 {
        (USER_BYTES + user_id.len() + matches.bytes()) as u64
    }
}

impl UserCache {
    /// A cache of about this size in memory.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Cache::with(
            bytes_max / USER_BYTES_USUAL,
            bytes_max as u64,
            UserWeight,
            RandomState::default(),
            DefaultLifecycle::default(),
        ))
    }

    /// The matches of a user, if they are in the cache.
    pub(super) fn get(&self, user_id: &[u8]) -> Option<UserMatches> {
        self.0.get(user_id)
    }

    /// The matches of a user; `read` reads them from the tree.
    ///
    /// # Errors
    /// That of `read`.
    pub(super) fn get_or_read<E>(
        &self,
        user_id: &[u8],
        read: impl FnOnce() -> Result<UserMatches, E>,
    ) -> Result<UserMatches, E> {
        match self.0.get_value_or_guard(user_id, Some(Duration::ZERO)) {
            GuardResult::Value(matches) => Ok(matches),
            GuardResult::Guard(guard) => {
                let matches = read()?;
                // An error means that the writer has changed the user meanwhile.
                guard.insert(matches.clone()).ok();
                Ok(matches)
            }
            // Another lookup reads the same user.
            GuardResult::Timeout => read(),
        }
    }

    /// Adds matches that the tree has now, in the place of older ones of the same DSPs. Only the writer calls it.
    pub(super) fn update<'a>(
        &self,
        user_id: &[u8],
        written: impl Iterator<Item = StoredMatch<'a>>,
    ) {
        let Some(old) = self.0.peek(user_id) else {
            return self.remove(user_id);
        };
        let mut all: Vec<StoredMatch<'_>> = written.collect();
        let changed = all.len();
        for it in old.iter() {
            if all[..changed].iter().all(|new| new.dsp_id != it.dsp_id) {
                all.push(it);
            }
        }
        all.sort_unstable_by_key(|it| it.dsp_id);
        self.0.insert(user_id.to_vec(), all.into_iter().collect());
    }

    /// Removes all users. Only the writer calls it.
    pub(super) fn clear(&self) {
        self.0.clear();
    }

    /// Removes a user, some of whose matches the tree no longer has. Only the writer calls it.
    pub(super) fn remove(&self, user_id: &[u8]) {
        self.0.remove(user_id);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proto::units::{DspId, UnixMicros};

    use super::*;

    fn stored(dsp: u32, buyer_uid: &str) -> StoredMatch<'_> {
        StoredMatch {
            dsp_id: DspId(dsp),
            accepted: UnixMicros(1),
            buyer_uid: buyer_uid.as_bytes(),
        }
    }

    fn read(cache: &UserCache, user_id: &[u8], then: impl FnOnce()) {
        let matches = [stored(1, "old")].into_iter().collect::<UserMatches>();
        let read = cache.get_or_read(user_id, || {
            then();
            Ok::<_, Infallible>(matches.clone())
        });
        assert_eq!(read, Ok(matches));
    }

    #[test]
    fn matches_that_were_read_before_a_change_are_not_kept() {
        let cache = UserCache::new(1 << 20);
        read(&cache, b"a", || {
            cache.update(b"a", [stored(1, "new")].into_iter())
        });
        read(&cache, b"b", || cache.remove(b"b"));
        read(&cache, b"c", || {});
        assert!(cache.get(b"a").is_none() && cache.get(b"b").is_none());
        assert!(cache.get(b"c").is_some());
    }

    #[test]
    fn changed_matches_replace_those_of_their_dsps() {
        let cache = UserCache::new(1 << 20);
        read(&cache, b"u", || {});
        let new = [stored(3, "c"), stored(2, "b")];
        cache.update(b"u", new.into_iter());
        cache.update(b"u", [stored(3, "d")].into_iter());
        let found = cache.get(b"u").unwrap();
        let expected = [stored(1, "old"), stored(2, "b"), stored(3, "d")];
        assert_eq!(found.iter().collect::<Vec<_>>(), expected);
        cache.remove(b"u");
        assert!(cache.get(b"u").is_none());
    }
}
