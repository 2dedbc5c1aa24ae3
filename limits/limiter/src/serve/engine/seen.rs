//! What a server said last of counters: what answers tell beside their slot, and what a page shows.

use std::{collections::HashMap, hash::BuildHasher as _, sync::Arc};

use limits::{LimitId, Remaining};

/// Maximum number of counters that are remembered, of each part alike; at least half as many before one is forgotten there. All others are
/// counted by the server all the same.
const SEEN_MAX: usize = 20_000;

/// Counters are kept in so many parts, by their hash: nobody has to look at more than one at once.
pub(super) const PARTS: usize = 32;

/// How a counter stood under one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Requests that could go at once.
    pub(super) requests: u64,
    /// When one more could.
    pub(super) more_at: u64,
    /// When nothing is used any more.
    pub(super) free_at: u64,
    /// When that was so.
    pub(super) seen_at: u64,
}

type Standings = HashMap<(LimitId, Arc<str>), Standing, foldhash::fast::RandomState>;

/// The counters that were asked about last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    parts: [Part; PARTS],
    hasher: foldhash::fast::RandomState,
}

#[derive(Debug, Default)]
struct Part {
    now: Standings,
    /// When there are too many, those before give way at once.
    before: Standings,
}

impl Standing {
    /// How many of `most` are used at `now`: of a window all until its end, of a pace fewer and fewer.
    pub(super) fn used(&self, most: u64, now: u64) -> u64 {
        let used = most.saturating_sub(self.requests);
        let rest = u128::from(self.free_at.saturating_sub(now));
        let whole = u128::from(self.free_at.saturating_sub(self.seen_at)).max(1);
        let used = (u128::from(used) * rest).div_ceil(whole);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

impl Seen {
    pub(super) fn put(&mut self, limit: LimitId, key: &Arc<str>, standing: Standing) {
        let key = (limit, Arc::clone(key));
        let part = &mut self.parts[self.part(&key)];
        if part.now.len() >= SEEN_MAX / 2 / PARTS {
            part.before = std::mem::take(&mut part.now);
        }
        part.now.insert(key, standing);
    }

    /// What is left of `most`.
    pub(super) fn left(
        &self,
        limit: LimitId,
        key: &Arc<str>,
        most: u64,
        now: u64,
    ) -> Option<Remaining> {
        let key = (limit, Arc::clone(key));
        let part = &self.parts[self.part(&key)];
        let seen = part.now.get(&key).or_else(|| part.before.get(&key))?;
        let is_free = seen.free_at <= now;
        Some(Remaining {
            requests: if is_free { most } else { seen.requests },
            more_at: if is_free { now } else { seen.more_at },
        })
    }

    fn part(&self, key: &(LimitId, Arc<str>)) -> usize {
        let hash = self.hasher.hash_one(key) % PARTS as u64;
        usize::try_from(hash).expect("a small number")
    }

    /// Counters of this part of which something is used.
    pub(super) fn used(
        &self,
        part: usize,
        now: u64,
    ) -> impl Iterator<Item = (LimitId, &Arc<str>, &Standing)> {
        let part = &self.parts[part];
        let older = part.before.iter();
        let older = older.filter(|(key, _)| !part.now.contains_key(*key));
        let all = part.now.iter().chain(older);
        let used = all.filter(move |(_, standing)| standing.free_at > now);
        used.map(|((limit, key), standing)| (*limit, key, standing))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use limits::{Algorithm, Limits};

    use super::*;

    #[test]
    fn what_was_seen_is_over_when_nothing_is_used_and_bounded() {
        let mut limits: Limits<()> = Limits::new(1);
        let limit = limits.add(Algorithm::token_bucket("1/s", 9).unwrap());
        let limit = limit.unwrap();
        let standing = Standing {
            requests: 1,
            more_at: 150,
            free_at: 900,
            seen_at: 100,
        };
        let mut seen = Seen::default();
        let key = |number: usize| Arc::from(number.to_string());
        seen.put(limit, &key(0), standing);
        let left = |seen: &Seen, number, now| seen.left(limit, &key(number), 9, now);
        let requests = |it: Option<Remaining>| it.map(|it| it.requests);
        assert_eq!(requests(left(&seen, 0, 800)), Some(1));
        assert_eq!(requests(left(&seen, 0, 900)), Some(9));
        assert_eq!(requests(left(&seen, 1, 800)), None);
        assert_eq!(
            [100, 500, 899, 900].map(|now| standing.used(9, now)),
            [8, 4, 1, 0]
        );
        let used = |seen: &Seen, now| -> Vec<usize> {
            let parts = 0..PARTS;
            parts.map(|part| seen.used(part, now).count()).collect()
        };
        let all = |seen: &Seen, now| used(seen, now).iter().sum::<usize>();
        assert_eq!((all(&seen, 899), all(&seen, 900)), (1, 0));
        for number in 0..10 * SEEN_MAX {
            seen.put(limit, &key(number), standing);
        }
        assert!((SEEN_MAX / 2 - PARTS..=SEEN_MAX).contains(&all(&seen, 0)));
        // What is looked at under one lock.
        let most = used(&seen, 0).into_iter().max();
        assert!(most <= Some(SEEN_MAX / PARTS), "{most:?}");
        assert_eq!(
            requests(left(&seen, 10 * SEEN_MAX - SEEN_MAX / 4, 0)),
            Some(1)
        );
        seen.clear();
        assert_eq!(all(&seen, 0), 0);
    }
}
