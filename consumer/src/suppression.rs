//! Refresh suppression: what need not be written again. No `async`.
//!
//! A user who syncs again with the same buyer brings the same buyer uid nearly always. For an interval after a
//! cookie was stored, such a repeat is left out: all it would change is the time from which the cookie expires. A
//! changed buyer uid always passes at once; only one that is older than a repeat that was left out is stale, because
//! the store would not know.
//!
//! The table says "stored" only of what this process has seen *stored*, so its entries are true unless somebody else
//! writes to or deletes from the store. A cookie that passes takes its pair's entry at once, as *pending*: until the
//! store has it, no repeat of that pair is left out, nor of the value before. Only the batch that made an entry pending
//! can confirm it. What is older than the interval or does not fit is forgotten, which costs a write; and with it, that
//! a newer repeat was left out.
//!
//! For each (user, DSP) an entry holds a keyed 64-bit hash of the pair, 62 bits of one of pair and buyer uid together,
//! and two times: 24 bytes. Two different buyer uids of a pair are taken for the same once in 2^62 (SipHash-1-3,
//! keyed by chance at start).
//!
//! It also tells the store which pairs it has seen: these are replaced rather than inserted.
//!
//! Cost of a cookie: a hash of some 60 bytes, and one look at 128 bytes of memory that are seldom in a cache, then another
//! when it is stored. Memory is zeroed by the system as it is first touched, up to the budget.

use std::{collections::HashSet, hash::Hasher, time::Duration};

use siphasher::sip::SipHasher13;

use crate::{
    batch::{Batch, BatchCookie, Judge, Mark, Verdict},
    store::Written,
    ttl::Ttls,
};

/// Entries that a pair may be kept in. More hold more before the first is forgotten; five fill 128 bytes but for 8.
const WAYS: usize = 5;

/// Five entries of three words each. Words, because a vector of zeros costs no memory until it is touched.
type Bucket = [u64; 3 * WAYS + 1];

/// Remembers stored cookies, within a bound.
#[derive(Debug)]
pub struct Suppression {
    interval: Duration,
    ttls: Ttls,
    keys: (u64, u64),
    buckets: Vec<Bucket>,
    /// Tells the batch that is collected from the one before it.
    generation: u64,
}

/// One of a bucket's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pair: u64,
    /// The hash of pair and buyer uid, and in its lowest bits [`STORED`], or else [`GENERATION`] of the batch that is to
    /// bring it there.
    value: u64,
    /// When it was accepted, in seconds since the Unix epoch, never 0; good until 2106.
    second: u32,
    /// When the newest of its repeats was accepted, in milliseconds since the second above.
    newest_millis: u32,
}

/// Of a value: the store has it.
const STORED: u64 = 1;

/// Of a value: which of two batches in a row it is pending in.
const GENERATION: u64 = 2;

impl Suppression {
    /// A table of at most `bytes_max` bytes, for repeats within `interval`: or within half of a DSP's time to live, if
    /// that is less. A zero interval needs no table and suppresses nothing.
    #[must_use]
    pub fn new(interval: Duration, bytes_max: usize, ttls: Ttls) -> Self {
        let buckets = if interval.is_zero() {
            0
        } else {
            (bytes_max / size_of::<Bucket>()).max(1)
        };
        Self {
            interval,
            ttls,
            keys: (fastrand::u64(..), fastrand::u64(..)),
            buckets: vec![[0; 3 * WAYS + 1]; buckets],
            generation: 0,
        }
    }

    /// What is judged from here on becomes part of another batch. The batch before the one that ends here must have
    /// been [recorded](Self::record).
    pub fn next_batch(&mut self) {
        self.generation ^= GENERATION;
    }

    /// Remembers cookies of a batch that `written` says are stored now, the `count` from `first` on: so that a large
    /// batch can be recorded in parts.
    pub fn record(&mut self, batch: &Batch, written: &Written, first: usize, count: usize) {
        if self.buckets.is_empty() {
            return;
        }
        let stale: HashSet<u32> = written.stale.iter().copied().collect();
        let not_stored: HashSet<u32> = written.not_stored().collect();
        let indexed = (0..).zip(batch.marks()).skip(first).take(count);
        for (index, [pair, value]) in indexed {
            let bucket = self.bucket(pair);
            let bucket = &mut self.buckets[bucket];
            let Some((at, entry)) = find(bucket, pair).filter(|(_, entry)| entry.value == value)
            else {
                // One of a later batch has taken its place, or another pair.
                continue;
            };
            if not_stored.contains(&index) {
                put(bucket, at, None);
            } else if !stale.contains(&index) {
                let value = value & !GENERATION | STORED;
                put(bucket, at, Some(Entry { value, ..entry }));
            }
        }
    }

    /// Takes back that these cookies of a batch are stored.
    pub fn forget(&mut self, batch: &Batch, indices: &HashSet<u32>) {
        if self.buckets.is_empty() {
            return;
        }
        let marks = (0..).zip(batch.marks());
        for (_, [pair, value]) in marks.filter(|(index, _)| indices.contains(index)) {
            let bucket = self.bucket(pair);
            let bucket = &mut self.buckets[bucket];
            // What is pending anew, the batch that brings it will tell.
            let stored = value & !GENERATION | STORED;
            if let Some((at, _)) = find(bucket, pair).filter(|(_, entry)| entry.value == stored) {
                put(bucket, at, None);
            }
        }
    }

    fn bucket(&self, pair: u64) -> usize {
        let buckets = self.buckets.len() as u128;
        let scaled = (u128::from(pair) * buckets) >> 64;
        usize::try_from(scaled).expect("below the number of buckets")
    }

    fn is_fresh(&self, entry: &Entry, cookie: &BatchCookie<'_>) -> bool {
        let interval = self.interval.min(self.ttls.of(cookie.dsp_id) / 2);
        u64::from(second(cookie).saturating_sub(entry.second)) < interval.as_secs()
    }
}

impl Judge for Suppression {
    fn mark(&self, cookie: &BatchCookie<'_>) -> Mark {
        if self.buckets.is_empty() {
            return [0; 2];
        }
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u32(cookie.dsp_id);
        hasher.write(cookie.user_id);
        // Cannot be part of a user id.
        hasher.write_u8(0);
        let pair = hasher.finish();
        hasher.write(cookie.buyer_uid);
        let value = hasher.finish() & !(STORED | GENERATION);
        [pair, value | self.generation]
    }

    /// Touches the entries of all of them, one right after the other: the processor then waits for many places of
    /// memory at once, where one by one they would cost a tenth of a microsecond each.
    fn announce(&mut self, marks: &[Mark]) {
        if self.buckets.is_empty() {
            return;
        }
        for [pair, _] in marks {
            std::hint::black_box(self.buckets[self.bucket(*pair)][0]);
        }
    }

    /// One that is to be taken must become part of the batch that is collected.
    fn verdict(&mut self, cookie: &BatchCookie<'_>, [pair, value]: Mark) -> Verdict {
        if self.buckets.is_empty() {
            return Verdict::Take { is_known: false };
        }
        let at_bucket = self.bucket(pair);
        let bucket = &self.buckets[at_bucket];
        let pending = Entry::pending(cookie, [pair, value]);
        let (at, is_known) = match find(bucket, pair) {
            None => (oldest(bucket), false),
            Some((at, known)) => {
                let is_stored = known.value & STORED != 0;
                let is_same = (known.value ^ value) & !(STORED | GENERATION) == 0;
                let is_late = millis(cookie) < known.newest();
                if is_stored && is_same && self.is_fresh(&known, cookie) {
                    let newest = known.newest().max(millis(cookie));
                    put(
                        &mut self.buckets[at_bucket],
                        at,
                        Some(known.repeated(newest)),
                    );
                    return Verdict::LeaveOut;
                }
                if is_late {
                    // Of one that is pending the store will tell.
                    return if is_stored {
                        Verdict::Stale
                    } else {
                        Verdict::Take { is_known: true }
                    };
                }
                (at, true)
            }
        };
        put(&mut self.buckets[at_bucket], at, Some(pending));
        Verdict::Take { is_known }
    }
}

impl Entry {
    fn pending(cookie: &BatchCookie<'_>, [pair, value]: Mark) -> Self {
        let entry = Self {
            pair,
            value,
            second: second(cookie),
            newest_millis: 0,
        };
        entry.repeated(millis(cookie))
    }

    fn repeated(self, newest: u64) -> Self {
        let since = newest.saturating_sub(u64::from(self.second) * 1000);
        Self {
            newest_millis: u32::try_from(since).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// In milliseconds since the Unix epoch.
    fn newest(&self) -> u64 {
        u64::from(self.second) * 1000 + u64::from(self.newest_millis)
    }
}

fn entries(bucket: &Bucket) -> impl Iterator<Item = Option<Entry>> {
    bucket.chunks_exact(3).map(|words| {
        let (second, newest_millis) = split(words[2]);
        (second != 0).then_some(Entry {
            pair: words[0],
            value: words[1],
            second,
            newest_millis,
        })
    })
}

fn find(bucket: &Bucket, pair: u64) -> Option<(usize, Entry)> {
    let found = entries(bucket).enumerate();
    found
        .filter_map(|(at, entry)| Some((at, entry?)))
        .find(|(_, entry)| entry.pair == pair)
}

/// A free place, or that of the entry whose latest repeat is the longest ago.
fn oldest(bucket: &Bucket) -> usize {
    let by_age = entries(bucket).enumerate();
    by_age
        .min_by_key(|(_, entry)| entry.map(|entry| entry.newest()))
        .map_or(0, |(at, _)| at)
}

fn put(bucket: &mut Bucket, at: usize, entry: Option<Entry>) {
    let words = entry.map_or([0; 3], |entry| {
        let times = u64::from(entry.second) << 32 | u64::from(entry.newest_millis);
        [entry.pair, entry.value, times]
    });
    bucket[3 * at..][..3].copy_from_slice(&words);
}

fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

fn second(cookie: &BatchCookie<'_>) -> u32 {
    u32::try_from(cookie.accepted_unix_micros / 1_000_000).map_or(u32::MAX, |second| second.max(1))
}

fn millis(cookie: &BatchCookie<'_>) -> u64 {
    cookie.accepted_unix_micros / 1000
}

#[cfg(test)]
mod tests;
