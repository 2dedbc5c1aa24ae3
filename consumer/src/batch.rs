//! A batch: the newest cookie of each (user, DSP) pair in the chunks added so far.
//!
//! Contains no `async` and reads no clock. Strings are not copied: a batch keeps the bytes of its chunks, and an entry
//! stores offsets into them. A cookie costs one pass over its bytes, one hash and one table probe, but no allocation:
//! the table is created with the size of the previous batch's table.

mod cursor;
mod dedup;
mod deletions;

pub use cursor::{Cursor, Progress};
pub use dedup::{AcceptAll, DedupDecision, DedupFilter, Fingerprint};

use std::{collections::BTreeSet, hash::BuildHasher, sync::Arc};

use crate::{deletions::Deletion, ledger::LedgerCounts};
use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry as Slot};
use proto::{
    ids,
    limits::DELETION_HORIZON_MICROS,
    newest,
    units::{DspId, UnixMicros},
    wire::{ChunkRef, CookieRef, Record, Scope},
};

/// A cookie of a batch. Its ids are valid in a stream, by the rules of [`proto::ids`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCookie<'a> {
    /// The user id of the exchange.
    pub user_id: &'a [u8],
    /// The DSP.
    pub dsp_id: DspId,
    /// The user id of the DSP.
    pub buyer_uid: &'a [u8],
    /// Acceptance time.
    pub accepted: UnixMicros,
    /// Whether the store probably has a cookie of this pair. Only a hint.
    pub is_known: bool,
}

/// Number of a batch, in the order of collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchId(pub u64);

impl BatchId {
    /// The number of the next batch.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The newest cookie of each pair, and the cursors of the producers.
#[derive(Debug)]
pub struct Batch {
    id: BatchId,
    chunks: Vec<Bytes>,
    entries: Vec<BatchEntry>,
    index: HashTable<u32>,
    hasher: RandomState,
    cursors: Vec<Cursor>,
    completed_epochs: Vec<Cursor>,
    deletions: Vec<Deletion>,
    deferred: BTreeSet<DspId>,
    /// Number of records copied from another node, up to the last chunk of this batch; 0 if it has none.
    copied: u64,
    /// Time and number of valid cookies of each chunk.
    released: Vec<(UnixMicros, u32)>,
    cookies_max: usize,
    bytes: usize,
    bytes_max: usize,
    counts: LedgerCounts,
    /// Expected number of cookies: that of the previous batch.
    expected_cookies: usize,
}

#[derive(Debug, Clone, Copy)]
struct BatchEntry {
    accepted: UnixMicros,
    chunk: u32,
    user_id_at: u32,
    buyer_uid_at: u32,
    dsp_id: DspId,
    user_id_bytes: u16,
    buyer_uid_bytes: u16,
    is_known: bool,
    fingerprint: Fingerprint,
}

impl Batch {
    /// An empty batch. It is full at `cookies_max` distinct cookies or `bytes_max` bytes of chunks.
    pub fn new(cookies_max: usize, bytes_max: usize) -> Self {
        Self {
            id: BatchId::default(),
            chunks: Vec::new(),
            entries: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            cursors: Vec::new(),
            completed_epochs: Vec::new(),
            deletions: Vec::new(),
            deferred: BTreeSet::new(),
            copied: 0,
            released: Vec::new(),
            cookies_max,
            bytes: 0,
            bytes_max,
            counts: LedgerCounts::default(),
            expected_cookies: 0,
        }
    }

    /// The next, empty batch, with the same limits. Its table is created with the size that this batch needed.
    pub fn next(&self) -> Self {
        let mut next = Self::new(self.cookies_max, self.bytes_max);
        next.id = self.id.next();
        next.expected_cookies = self.len();
        next.chunks.reserve(self.chunks.len());
        next.released.reserve(self.released.len());
        next
    }

    /// The number of the batch, increased by [`next`](Self::next).
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// Whether the batch is full. Another chunk can still be pushed, and is added completely.
    pub fn is_full(&self) -> bool {
        self.entries.len() + self.deletions.len() >= self.cookies_max
            || self.bytes >= self.bytes_max
    }

    /// Whether the batch has no cookies, deletions, cursors or copied records.
    pub fn is_empty(&self) -> bool {
        let has_records = !self.entries.is_empty() || !self.deletions.is_empty();
        !has_records && self.cursors.is_empty() && self.copied == 0
    }

    /// The number of cookies to write.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Outcomes of the cookies pushed so far. Those received are the sum of the other counts and of the cookies to write.
    pub fn counts(&self) -> LedgerCounts {
        self.counts
    }

    /// The cursor of each producer. Must be committed after the cookies, never before.
    pub fn cursors(&self) -> &[Cursor] {
        &self.cursors
    }

    /// Time of each chunk, and its number of valid cookies. The producer could not send the cookies earlier, whatever their ages.
    pub fn released(&self) -> impl Iterator<Item = (UnixMicros, u64)> {
        self.released
            .iter()
            .map(|(time, cookies)| (*time, u64::from(*cookies)))
    }

    /// The cookie at `index`. Pairs are in the order of their first cookie.
    ///
    /// # Panics
    /// When `index` is not less than [`Batch::len`].
    pub fn cookie(&self, index: usize) -> BatchCookie<'_> {
        let entry = &self.entries[index];
        BatchCookie {
            user_id: entry.user_id(&self.chunks),
            dsp_id: entry.dsp_id,
            buyer_uid: slice(
                &self.chunks[entry.chunk as usize],
                entry.buyer_uid_at,
                entry.buyer_uid_bytes,
            ),
            accepted: entry.accepted,
            is_known: entry.is_known,
        }
    }

    /// The fingerprint of each cookie, by index.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.entries.iter().map(|entry| entry.fingerprint)
    }

    /// All cookies, by index.
    pub fn cookies(&self) -> impl Iterator<Item = BatchCookie<'_>> {
        (0..self.len()).map(|index| self.cookie(index))
    }

    /// The indices of all cookies, sorted by user id and DSP.
    pub fn by_user(&self) -> impl Iterator<Item = u32> {
        // Comparing the first bytes is nearly always enough, and needs no access to the chunks.
        let mut order: Vec<(u64, u32)> = (0..)
            .zip(&self.entries)
            .map(|(at, entry): (u32, &BatchEntry)| (prefix(entry.user_id(&self.chunks)), at))
            .collect();
        order.sort_unstable_by(|(prefix_a, a), (prefix_b, b)| {
            prefix_a.cmp(prefix_b).then_with(|| {
                let (a, b) = (&self.entries[*a as usize], &self.entries[*b as usize]);
                let users = a.user_id(&self.chunks).cmp(b.user_id(&self.chunks));
                users.then(a.dsp_id.cmp(&b.dsp_id))
            })
        });
        order.into_iter().map(|(_, at)| at)
    }

    /// Epochs that were received up to their `Goodbye`, including those followed by another epoch in this batch. When the batch
    /// is stored, these epochs are stored completely.
    pub fn completed_epochs(&self) -> &[Cursor] {
        &self.completed_epochs
    }

    /// Advances the cursor of a producer, for instance by a gap or a `Goodbye`.
    pub fn advance(&mut self, cursor: &Cursor) {
        if cursor.complete && !self.completed_epochs.contains(cursor) {
            self.completed_epochs.push(cursor.clone());
        }
        match self
            .cursors
            .iter_mut()
            .find(|known| known.producer == cursor.producer)
        {
            Some(known) => known.advance(cursor),
            None => self.cursors.push(cursor.clone()),
        }
    }

    /// Sets the cursor of a producer back to `before`. Returns the progress that the batch had, if any.
    pub fn hold_back(&mut self, before: &Cursor) -> Option<Progress> {
        let producer = &before.producer;
        let mut known = self.cursors.iter_mut();
        let cursor = known.find(|it| it.producer == *producer)?;
        let is_held = |it: &mut Cursor| it.producer == *producer;
        Some(Progress {
            cursor: std::mem::replace(cursor, before.clone()),
            completed: self.completed_epochs.extract_if(.., is_held).collect(),
        })
    }

    /// Adds progress that was held back. The batch keeps its own cursor, which is newer.
    pub fn release(&mut self, held: Progress) {
        self.completed_epochs.splice(0..0, held.completed);
        if !self
            .cursors
            .iter()
            .any(|it| it.producer == held.cursor.producer)
        {
            self.cursors.push(held.cursor);
        }
    }

    /// Adds the cookies of a chunk and advances the cursor. Malformed cookies are counted and skipped. Chunk times after
    /// `accepted_max` are clamped to it before ages are subtracted. For deletions, the maximum is
    /// [`DELETION_HORIZON_MICROS`] later: a deletion must still cover the earlier cookies of other producers.
    ///
    /// The header determines the number of cookies, because each has a sequence number. Missing cookies count as malformed;
    /// excess cookies are ignored.
    pub fn push(&mut self, producer: &Arc<str>, chunk: &ChunkRef, accepted_max: UnixMicros) {
        self.push_filtered(producer, chunk, accepted_max, &mut AcceptAll);
    }

    /// Number of records copied from another node, up to the last chunk of this batch; 0 if it has none.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Adds the records of a chunk copied from another node, up to number `copied`. Advances no cursor, and clamps no time.
    pub fn push_copied(&mut self, chunk: &ChunkRef, copied: u64, filter: &mut impl DedupFilter) {
        self.add(chunk, chunk.header().accepted, filter);
        self.copied = copied;
    }

    /// Adds the cookies of a chunk that is not part of a stream, and advances no cursor.
    pub fn push_chunk(&mut self, chunk: &ChunkRef) {
        self.push_recovered(chunk, UnixMicros::MAX, &mut AcceptAll);
    }

    /// Like [`push_filtered`](Self::push_filtered), but for a chunk that is not part of a stream: advances no cursor, and its time is
    /// not that of a release.
    pub fn push_recovered(
        &mut self,
        chunk: &ChunkRef,
        accepted_max: UnixMicros,
        filter: &mut impl DedupFilter,
    ) {
        self.add(chunk, chunk.header().accepted.min(accepted_max), filter);
    }

    /// Like [`push`](Self::push), but adds only the cookies that pass `filter`.
    pub fn push_filtered(
        &mut self,
        producer: &Arc<str>,
        chunk: &ChunkRef,
        accepted_max: UnixMicros,
        filter: &mut impl DedupFilter,
    ) {
        let header = *chunk.header();
        let released = header.accepted.min(accepted_max);
        let valid = self.add(chunk, released, filter);
        self.released.push((released, valid));
        self.advance(&Cursor {
            producer: Arc::clone(producer),
            epoch: header.epoch,
            sequence: header.last_sequence(),
            complete: false,
        });
    }

    /// Adds the cookies of a chunk; returns the number of valid ones.
    fn add(
        &mut self,
        chunk: &ChunkRef,
        released: UnixMicros,
        filter: &mut impl DedupFilter,
    ) -> u32 {
        let header = *chunk.header();
        let deleted_max = released.after(DELETION_HORIZON_MICROS);
        let deleted = header.accepted.min(deleted_max);
        let count = header.count as usize;
        // The count in the header is untrusted, so it must not determine the size of an allocation.
        let count_max = count.min(chunk.body().len() / COOKIE_BYTES_MIN);
        if self.index.capacity() == 0 {
            self.reserve(count_max);
        }
        let chunk_at = u32::try_from(self.chunks.len()).expect("the size of a batch is bounded");
        self.chunks.push(chunk.body().clone());
        self.bytes += chunk.body().len();
        let mut records = Vec::with_capacity(count_max);
        for record in chunk.records().take(count) {
            records.extend(record.ok().filter(is_well_formed));
        }
        let valid = u32::try_from(records.len()).expect("the size of a batch is bounded");
        let cookies = records.iter().filter_map(|record| record.cookie());
        let fingerprints: Vec<Fingerprint> = cookies
            .map(|cookie| filter.fingerprint(&borrowed(&cookie, released)))
            .collect();
        filter.prefetch(&fingerprints);
        let mut fingerprints = fingerprints.into_iter();
        for record in &records {
            let cookie = match record {
                Record::Set(cookie) => cookie,
                Record::Delete { scope, .. } => {
                    let mut deletion = Deletion {
                        scope: scope.map(|user| user.as_bytes().into()),
                        until: record.accepted(deleted),
                    };
                    filter.delete(&mut deletion);
                    self.counts.deletions += 1;
                    self.deletions.push(deletion);
                    continue;
                }
            };
            let fingerprint = fingerprints.next().expect("each cookie has one");
            let mut admitted = borrowed(cookie, released);
            match filter.decide(&mut admitted, fingerprint, self.id) {
                DedupDecision::Suppress => self.counts.suppressed += 1,
                DedupDecision::Stale => self.counts.stale += 1,
                DedupDecision::NoDspSlot => self.counts.no_dsp_slot += 1,
                DedupDecision::Expired => self.counts.expired += 1,
                DedupDecision::Deleted => self.counts.deleted_on_arrival += 1,
                DedupDecision::InvalidTime => self.counts.malformed += 1,
                DedupDecision::Write { is_known } => {
                    let entry = BatchEntry {
                        accepted: admitted.accepted,
                        chunk: chunk_at,
                        user_id_at: offset(chunk.body(), cookie.user_id),
                        buyer_uid_at: offset(chunk.body(), cookie.buyer_uid),
                        dsp_id: cookie.dsp_id,
                        user_id_bytes: length(cookie.user_id),
                        buyer_uid_bytes: length(cookie.buyer_uid),
                        is_known,
                        fingerprint,
                    };
                    self.insert(entry, cookie.user_id.as_bytes());
                }
            }
        }
        let received = u64::from(header.count);
        self.counts.received += received;
        self.counts.malformed += received - u64::from(valid);
        valid
    }

    /// Presizes the table to an eighth more than the previous batch, so that it rarely grows.
    fn reserve(&mut self, first_chunk: usize) {
        let expected = self.expected_cookies + self.expected_cookies / 8;
        let cookies = expected.min(self.cookies_max).max(first_chunk);
        self.entries.reserve(cookies);
        self.index.reserve(cookies, |_| 0);
    }

    fn insert(&mut self, entry: BatchEntry, user_id: &[u8]) {
        let (chunks, entries, hasher) = (&self.chunks, &mut self.entries, &self.hasher);
        let slot = self.index.entry(
            hasher.hash_one((entry.dsp_id, user_id)),
            |&at| {
                let known = &entries[at as usize];
                known.dsp_id == entry.dsp_id && known.user_id(chunks) == user_id
            },
            |&at| {
                let known = &entries[at as usize];
                hasher.hash_one((known.dsp_id, known.user_id(chunks)))
            },
        );
        match slot {
            Slot::Occupied(known) => {
                self.counts.superseded += 1;
                let known = &mut entries[*known.get() as usize];
                if newest::replaces(entry.accepted, known.accepted) {
                    let is_known = known.is_known;
                    *known = BatchEntry { is_known, ..entry };
                }
            }
            Slot::Vacant(slot) => {
                let at = u32::try_from(entries.len()).expect("the size of a batch is bounded");
                slot.insert(at);
                entries.push(entry);
            }
        }
    }
}

impl BatchEntry {
    fn user_id<'a>(&self, chunks: &'a [Bytes]) -> &'a [u8] {
        slice(
            &chunks[self.chunk as usize],
            self.user_id_at,
            self.user_id_bytes,
        )
    }
}

/// Minimum encoded size of a cookie with all its fields.
const COOKIE_BYTES_MIN: usize = 10;

fn borrowed<'a>(cookie: &CookieRef<'a>, released: UnixMicros) -> BatchCookie<'a> {
    BatchCookie {
        user_id: cookie.user_id.as_bytes(),
        dsp_id: cookie.dsp_id,
        buyer_uid: cookie.buyer_uid.as_bytes(),
        accepted: cookie.accepted(released),
        is_known: false,
    }
}

fn is_well_formed(record: &Record<'_>) -> bool {
    let is_user = |user: &str| ids::is_user_id(user.as_bytes());
    match record {
        Record::Set(cookie) => {
            is_user(cookie.user_id)
                && cookie.dsp_id.is_valid()
                && ids::is_buyer_uid_of_stream(cookie.buyer_uid)
        }
        Record::Delete { scope, .. } => match scope {
            Scope::Match(user, _) | Scope::User(user) => is_user(user),
            Scope::Dsp(dsp_id) => dsp_id.is_valid(),
            Scope::All => false,
        },
    }
}

/// The first eight bytes, as a number with the same order.
fn prefix(user_id: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let known = user_id.len().min(8);
    bytes[..known].copy_from_slice(&user_id[..known]);
    u64::from_be_bytes(bytes)
}

/// Offset of a string that is borrowed from `body`.
fn offset(body: &Bytes, part: &str) -> u32 {
    let offset = part.as_ptr().addr().wrapping_sub(body.as_ptr().addr());
    assert!(offset + part.len() <= body.len(), "borrowed from the chunk");
    u32::try_from(offset).expect("a message is far below 4 GiB")
}

fn length(part: &str) -> u16 {
    u16::try_from(part.len()).expect("lengths are valid")
}

fn slice(body: &Bytes, at: u32, bytes: u16) -> &[u8] {
    &body[at as usize..][..usize::from(bytes)]
}

#[cfg(test)]
pub(crate) mod tests;
