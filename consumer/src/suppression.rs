//! Refresh suppression: what need not be written again. No `async`.
//!
//! A user who syncs again with the same buyer brings the same buyer uid nearly always. For an interval after a
//! cookie was stored, such a repeat is left out: all it would change is the time from which the cookie expires. A
//! changed buyer uid always passes at once; only one that is older than a repeat that was left out is stale, because
//! the store would not know.
//!
//! The table says "stored" only of what this process has seen *stored*, so its entries are true unless somebody else
//! writes to or deletes from the store. A cookie that passes takes its pair's entry at once, as *pending*: until the
//! store has it, no repeat of that pair is left out, nor of the value before; nor is one that comes so late that what was
//! stored has expired, since the store may have deleted that. Only the batch that made an entry pending
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

use proto::newest;
use siphasher::sip::SipHasher13;

use crate::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    store::WriteOutcome,
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
    /// What time it is, in microseconds since the Unix epoch.
    now: u64,
    keys: (u64, u64),
    buckets: Vec<Bucket>,
}

/// One of a bucket's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pair: u64,
    /// The hash of pair and buyer uid, with [`STATE`] zero.
    value: u64,
    state: State,
    /// When it was accepted, in seconds since the Unix epoch, never 0; good until 2106.
    second: u32,
    /// When the newest of its repeats was accepted, in milliseconds since the second above.
    newest_millis: u32,
}

/// Whether the store has what an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State(u64);

/// The lowest bits of a word that holds a value: its state.
const STATE: u64 = 3;

impl State {
    /// The store has it.
    const STORED: Self = Self(0);

    /// That batch is to bring it there. The batch that is collected, the one that is written, and the one before differ
    /// here; what is older than that is recorded.
    fn pending(batch: BatchId) -> Self {
        Self(1 + batch.0 % 3)
    }
}

/// What became of a cookie of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The store has it.
    Stored,
    /// The store has a newer one.
    Stale,
    /// The store has neither.
    NotStored,
}

/// What became of each cookie of a batch, in the order of the batch: made in one pass, however many parts
/// [`Suppression::record`] takes it in.
pub fn outcomes<'a>(
    batch: &'a Batch,
    written: &WriteOutcome,
) -> impl Iterator<Item = (Fingerprint, Outcome)> + use<'a> {
    let mut outcomes = vec![Outcome::Stored; batch.len()];
    let stale = written.stale.iter().map(|index| (*index, Outcome::Stale));
    let not_stored = written
        .not_stored()
        .map(|index| (index, Outcome::NotStored));
    for (index, outcome) in stale.chain(not_stored) {
        outcomes[index as usize] = outcome;
    }
    batch.fingerprints().zip(outcomes)
}

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
            now: 0,
            keys: (fastrand::u64(..), fastrand::u64(..)),
            buckets: vec![[0; 3 * WAYS + 1]; buckets],
        }
    }

    /// Says what time it is, in microseconds since the Unix epoch: the store may have deleted what has expired by then.
    pub fn set_now(&mut self, unix_micros: u64) {
        self.now = unix_micros;
    }

    /// Remembers what became of cookies of a batch: `part` is the next part of its [`outcomes`], so that a large batch
    /// does not hold up others for long. To be done before cookies of the batch after the next are filtered.
    pub fn record(&mut self, batch: BatchId, part: impl Iterator<Item = (Fingerprint, Outcome)>) {
        if self.buckets.is_empty() {
            return;
        }
        let pending = State::pending(batch);
        for (fingerprint, outcome) in part {
            let bucket = self.bucket(fingerprint);
            let Some((at, entry)) = find_in(bucket, fingerprint, pending) else {
                // One of a later batch has taken its place, or another pair.
                continue;
            };
            match outcome {
                Outcome::Stored => {
                    let state = State::STORED;
                    put(bucket, at, Some(Entry { state, ..entry }));
                }
                Outcome::Stale => {}
                Outcome::NotStored => put(bucket, at, None),
            }
        }
    }

    /// Takes back that these cookies of a batch are stored.
    pub fn forget(&mut self, batch: &Batch, indices: &HashSet<u32>) {
        if self.buckets.is_empty() {
            return;
        }
        let fingerprints = (0..).zip(batch.fingerprints());
        for (_, fingerprint) in fingerprints.filter(|(index, _)| indices.contains(index)) {
            let bucket = self.bucket(fingerprint);
            // What is pending anew, the batch that brings it will tell.
            if let Some((at, _)) = find_in(bucket, fingerprint, State::STORED) {
                put(bucket, at, None);
            }
        }
    }

    fn bucket(&mut self, fingerprint: Fingerprint) -> &mut Bucket {
        let at = self.bucket_at(fingerprint);
        &mut self.buckets[at]
    }

    fn bucket_at(&self, [pair, _]: Fingerprint) -> usize {
        let buckets = self.buckets.len() as u128;
        let scaled = (u128::from(pair) * buckets) >> 64;
        usize::try_from(scaled).expect("below the number of buckets")
    }

    fn is_fresh(&self, entry: &Entry, cookie: &BatchCookie<'_>) -> bool {
        let interval = self.interval.min(self.ttls.of(cookie.dsp_id) / 2);
        let is_repeat = u64::from(second(cookie).saturating_sub(entry.second)) < interval.as_secs();
        let stored = u64::from(entry.second) * 1_000_000;
        is_repeat && stored >= self.ttls.expired_before(cookie.dsp_id, self.now)
    }
}

impl DedupFilter for Suppression {
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint {
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
        [pair, hasher.finish() & !STATE]
    }

    /// Touches the entries of all of them, one right after the other: the processor then waits for many places of
    /// memory at once, where one by one they would cost a tenth of a microsecond each.
    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        if self.buckets.is_empty() {
            return;
        }
        for fingerprint in fingerprints {
            std::hint::black_box(self.buckets[self.bucket_at(*fingerprint)][0]);
        }
    }

    /// One that is to be taken must become part of the batch.
    fn decide(
        &mut self,
        cookie: &BatchCookie<'_>,
        fingerprint: Fingerprint,
        batch: BatchId,
    ) -> DedupDecision {
        if self.buckets.is_empty() {
            return DedupDecision::Write { is_known: false };
        }
        let bucket_at = self.bucket_at(fingerprint);
        let bucket = &self.buckets[bucket_at];
        let (at, is_known) = match find(bucket, fingerprint) {
            None => (oldest(bucket), false),
            Some((at, known)) => {
                let is_stored = known.state == State::STORED;
                if is_stored && known.value == fingerprint[1] && self.is_fresh(&known, cookie) {
                    let newest = known.newest().max(millis(cookie));
                    let repeated = known.repeated(newest);
                    put(&mut self.buckets[bucket_at], at, Some(repeated));
                    return DedupDecision::Suppress;
                }
                if !newest::replaces(millis(cookie), known.newest()) {
                    // Of one that is pending the store will tell.
                    return if is_stored {
                        DedupDecision::Stale
                    } else {
                        DedupDecision::Write { is_known: true }
                    };
                }
                (at, true)
            }
        };
        let pending = Entry::pending(cookie, fingerprint, batch);
        put(&mut self.buckets[bucket_at], at, Some(pending));
        DedupDecision::Write { is_known }
    }
}

impl Entry {
    fn pending(cookie: &BatchCookie<'_>, [pair, value]: Fingerprint, batch: BatchId) -> Self {
        let entry = Self {
            pair,
            value,
            state: State::pending(batch),
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
            value: words[1] & !STATE,
            state: State(words[1] & STATE),
            second,
            newest_millis,
        })
    })
}

fn find(bucket: &Bucket, [pair, _]: Fingerprint) -> Option<(usize, Entry)> {
    let found = entries(bucket).enumerate();
    found
        .filter_map(|(at, entry)| Some((at, entry?)))
        .find(|(_, entry)| entry.pair == pair)
}

/// The entry of this very cookie, if it is in this state.
fn find_in(bucket: &Bucket, fingerprint: Fingerprint, state: State) -> Option<(usize, Entry)> {
    find(bucket, fingerprint)
        .filter(|(_, entry)| (entry.value, entry.state) == (fingerprint[1], state))
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
        [entry.pair, entry.value | entry.state.0, times]
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
