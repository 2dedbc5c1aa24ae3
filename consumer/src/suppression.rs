//! Suppression of duplicates: cookies that need not be written again. Contains no `async`.
//!
//! A user who syncs again with the same DSP nearly always has the same buyer uid. For an interval after a cookie was stored,
//! such a duplicate is suppressed: writing it would only extend the cookie's expiry. A changed buyer uid always passes, unless
//! it is older than a suppressed duplicate. In this case it is stale, which the store could not detect.
//!
//! The table contains only cookies that this process has *stored*, so it is correct unless another process writes to or
//! deletes from the store. When a cookie passes, its pair's entry is immediately replaced by a *pending* one. Until the
//! store has the cookie, no duplicate of that pair is suppressed, whether of the new value or of the previous one. A
//! late duplicate of an expired cookie is not suppressed either, because the store may have deleted the cookie. Only
//! the batch that set an entry pending can confirm it. Entries that are older than the interval or do not fit are
//! evicted. An eviction costs a write, and loses the time of the newest suppressed duplicate.
//!
//! An entry takes 24 bytes for each (user, DSP) pair: a keyed 64-bit hash of the pair, 62 bits of a hash of pair and buyer
//! uid, and two times. Two buyer uids of a pair collide with a probability of 2^-62 (SipHash-1-3, random key).
//!
//! The table also determines which pairs the store has: their cookies are replaced instead of inserted.
//!
//! A cookie costs a hash of about 60 bytes, and one access to 128 bytes of memory, which are rarely cached. Storing it costs
//! another access. The system allocates and zeroes memory when it is first touched, up to the budget.

use std::{collections::HashSet, hash::Hasher, time::Duration};

use proto::{newest, units::UnixMicros};
use siphasher::sip::SipHasher13;

use crate::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    store::WriteOutcome,
    ttl::{Ttls, before},
};

/// Entries per bucket. Five entries use 120 of 128 bytes.
const WAYS: usize = 5;

/// Entries of three words each. A zeroed vector of words uses no memory until it is touched.
type Bucket = [u64; 3 * WAYS + 1];

/// A bounded table of stored cookies.
#[derive(Debug)]
pub struct Suppression {
    interval: Duration,
    ttls: Ttls,
    /// The current time.
    now: UnixMicros,
    /// See [`set_deleted`](Self::set_deleted).
    deleted: UnixMicros,
    keys: (u64, u64),
    buckets: Vec<Bucket>,
}

/// An entry of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PairEntry {
    pair: u64,
    /// The hash of pair and buyer uid, with the bits of [`STATE`] zero.
    value: u64,
    state: EntryState,
    /// Acceptance time in seconds since the Unix epoch; never 0. Valid until 2106.
    second: u32,
    /// Acceptance time of the newest duplicate, in milliseconds after `second`.
    newest_millis: u32,
}

/// Whether the store has the cookie of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EntryState(u64);

/// Mask of the state, in the lowest bits of the value's word.
const STATE: u64 = 3;

impl EntryState {
    /// The store has the cookie.
    const STORED: Self = Self(0);

    /// The batch will write the cookie. The batches being collected, written and committed have different states; older
    /// batches are already recorded.
    fn pending(batch: BatchId) -> Self {
        Self(1 + batch.0 % 3)
    }
}

/// Outcome of a cookie of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The store has the cookie.
    Stored,
    /// The store has a newer cookie.
    Stale,
    /// The store has neither this cookie nor a newer one.
    NotStored,
}

/// Outcomes of the cookies of a batch, in its order, for [`Suppression::record`].
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
    /// A table of up to `bytes_max` bytes. Suppresses duplicates within `interval`, or half of a DSP's TTL if that is less. A
    /// zero interval needs no table and suppresses nothing.
    pub fn new(interval: Duration, bytes_max: usize, ttls: Ttls) -> Self {
        let buckets = if interval.is_zero() {
            0
        } else {
            (bytes_max / size_of::<Bucket>()).max(1)
        };
        Self {
            interval,
            ttls,
            now: UnixMicros::NONE,
            deleted: UnixMicros::NONE,
            keys: (fastrand::u64(..), fastrand::u64(..)),
            buckets: vec![[0; 3 * WAYS + 1]; buckets],
        }
    }

    /// Sets the current time. The store may have deleted cookies that have expired.
    pub fn set_now(&mut self, now: UnixMicros) {
        self.now = now;
    }

    /// Sets the time up to which cookies of the next pair are deleted; 0 for none. Entries of the pair
    /// from before that time do not count.
    pub fn set_deleted(&mut self, until: UnixMicros) {
        self.deleted = until;
    }

    /// Records the next part of a batch's [`outcomes`]. Parts shorten the time that the table is locked. A batch must be
    /// recorded before cookies of the batch after the next are filtered.
    pub fn record(&mut self, batch: BatchId, part: impl Iterator<Item = (Fingerprint, Outcome)>) {
        if self.buckets.is_empty() {
            return;
        }
        let pending = EntryState::pending(batch);
        for (fingerprint, outcome) in part {
            let bucket = self.bucket(fingerprint);
            let Some((at, entry)) = find_in(bucket, fingerprint, pending) else {
                // Replaced by a later batch or another pair.
                continue;
            };
            match outcome {
                Outcome::Stored => {
                    let state = EntryState::STORED;
                    put(bucket, at, Some(PairEntry { state, ..entry }));
                }
                Outcome::Stale => {}
                Outcome::NotStored => put(bucket, at, None),
            }
        }
    }

    /// Removes cookies of a batch that were recorded as stored, but were not stored.
    pub fn remove(&mut self, batch: &Batch, indices: &HashSet<u32>) {
        if self.buckets.is_empty() {
            return;
        }
        let fingerprints = (0..).zip(batch.fingerprints());
        for (_, fingerprint) in fingerprints.filter(|(index, _)| indices.contains(index)) {
            let bucket = self.bucket(fingerprint);
            // If a later batch has set the entry pending, that batch records it.
            if let Some((at, _)) = find_in(bucket, fingerprint, EntryState::STORED) {
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

    fn is_fresh(&self, entry: &PairEntry, cookie: &BatchCookie<'_>) -> bool {
        // The store may have deleted the cookie because of a shorter TTL than the current one.
        let ttl = self.ttls.shortest(cookie.dsp_id);
        let interval = self.interval.min(ttl / 2);
        let is_recent = u64::from(second(cookie).saturating_sub(entry.second)) < interval.as_secs();
        is_recent && entry.stored() >= before(self.now, ttl)
    }
}

impl DedupFilter for Suppression {
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint {
        if self.buckets.is_empty() {
            return [0; 2];
        }
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u32(cookie.dsp_id.0);
        hasher.write(cookie.user_id);
        // A separator, which no user id contains.
        hasher.write_u8(0);
        let pair = hasher.finish();
        hasher.write(cookie.buyer_uid);
        [pair, hasher.finish() & !STATE]
    }

    /// Touches all buckets in sequence, so that the cache misses overlap. Without overlap, each would cost 0.1 µs.
    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        if self.buckets.is_empty() {
            return;
        }
        for fingerprint in fingerprints {
            std::hint::black_box(self.buckets[self.bucket_at(*fingerprint)][0]);
        }
    }

    /// The caller must add a cookie with the decision `Write` to the batch.
    fn decide(
        &mut self,
        cookie: &mut BatchCookie<'_>,
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
            Some((at, known)) if known.stored() <= self.deleted => (at, false),
            Some((at, known)) => {
                let is_stored = known.state == EntryState::STORED;
                if is_stored && known.value == fingerprint[1] && self.is_fresh(&known, cookie) {
                    let newest = known.newest().max(millis(cookie));
                    let refreshed = known.with_newest(newest);
                    put(&mut self.buckets[bucket_at], at, Some(refreshed));
                    return DedupDecision::Suppress;
                }
                if !newest::replaces(millis(cookie), known.newest()) {
                    // The entry is pending, so the store decides.
                    return if is_stored {
                        DedupDecision::Stale
                    } else {
                        DedupDecision::Write { is_known: true }
                    };
                }
                (at, true)
            }
        };
        let pending = PairEntry::pending(cookie, fingerprint, batch);
        put(&mut self.buckets[bucket_at], at, Some(pending));
        DedupDecision::Write { is_known }
    }
}

impl PairEntry {
    fn pending(cookie: &BatchCookie<'_>, [pair, value]: Fingerprint, batch: BatchId) -> Self {
        let entry = Self {
            pair,
            value,
            state: EntryState::pending(batch),
            second: second(cookie),
            newest_millis: 0,
        };
        entry.with_newest(millis(cookie))
    }

    fn with_newest(self, newest: u64) -> Self {
        let since = newest.saturating_sub(u64::from(self.second) * 1000);
        Self {
            newest_millis: u32::try_from(since).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Acceptance time in the resolution of the table.
    fn stored(&self) -> UnixMicros {
        UnixMicros(u64::from(self.second) * 1_000_000)
    }

    /// Acceptance time of the newest duplicate, in milliseconds since the Unix epoch.
    fn newest(&self) -> u64 {
        newest((self.second, self.newest_millis))
    }
}

/// The time of [`PairEntry::newest`]; 0 in a free entry.
fn newest((second, newest_millis): (u32, u32)) -> u64 {
    u64::from(second) * 1000 + u64::from(newest_millis)
}

fn entries(bucket: &Bucket) -> impl Iterator<Item = Option<PairEntry>> {
    bucket.chunks_exact(3).map(|words| {
        let (second, newest_millis) = split(words[2]);
        (second != 0).then_some(PairEntry {
            pair: words[0],
            value: words[1] & !STATE,
            state: EntryState(words[1] & STATE),
            second,
            newest_millis,
        })
    })
}

fn find(bucket: &Bucket, [pair, _]: Fingerprint) -> Option<(usize, PairEntry)> {
    let found = entries(bucket).enumerate();
    found
        .filter_map(|(at, entry)| Some((at, entry?)))
        .find(|(_, entry)| entry.pair == pair)
}

/// The entry of this pair and value, if it has this state.
fn find_in(
    bucket: &Bucket,
    fingerprint: Fingerprint,
    state: EntryState,
) -> Option<(usize, PairEntry)> {
    find(bucket, fingerprint)
        .filter(|(_, entry)| (entry.value, entry.state) == (fingerprint[1], state))
}

/// The index of a free entry, or of the one whose newest duplicate is the oldest.
fn oldest(bucket: &Bucket) -> usize {
    let newest = |at: &usize| newest(split(bucket[3 * at + 2]));
    (0..WAYS).min_by_key(newest).unwrap_or_default()
}

fn put(bucket: &mut Bucket, at: usize, entry: Option<PairEntry>) {
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
    u32::try_from(cookie.accepted.0 / 1_000_000).map_or(u32::MAX, |second| second.max(1))
}

fn millis(cookie: &BatchCookie<'_>) -> u64 {
    cookie.accepted.0 / 1000
}

#[cfg(test)]
mod tests;
