//! What is written at once: the newest cookie of each (user, DSP) pair among the chunks pushed so far.
//!
//! Pure: no `async`, no clock. Nothing is copied: a batch keeps the chunks' bytes alive and an entry is where in
//! them its strings lie. Cost of a cookie: one walk over its bytes, one hash, one probe of a table that has the
//! size of the batch before from the start; no allocation of its own.

mod cursor;
mod dedup;
mod id;

pub use cursor::Cursor;
pub use dedup::{AcceptAll, DedupDecision, DedupFilter, Fingerprint};
pub use id::BatchId;

use std::{collections::BTreeSet, hash::BuildHasher, sync::Arc};

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry as Slot};
use proto::{
    ids, newest,
    wire::{ChunkRef, CookieRef},
};

/// A cookie of a batch. Its ids were checked: they are legal in a stream, as [`proto::ids`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCookie<'a> {
    /// The exchange's id of the user.
    pub user_id: &'a [u8],
    /// The buyer.
    pub dsp_id: u32,
    /// The buyer's id of the user.
    pub buyer_uid: &'a [u8],
    /// When it was accepted, in microseconds since the Unix epoch.
    pub accepted_unix_micros: u64,
    /// Whether the store is known to have had a cookie of this pair before. A hint, not a promise.
    pub is_known: bool,
}

/// The newest cookie of each pair, and how far every producer got.
#[derive(Debug)]
pub struct Batch {
    id: BatchId,
    chunks: Vec<Bytes>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    hasher: RandomState,
    cursors: Vec<Cursor>,
    completed_epochs: Vec<Cursor>,
    held: BTreeSet<u32>,
    /// Of each chunk, its time and its good cookies.
    released: Vec<(u64, u32)>,
    cookies_max: usize,
    bytes: usize,
    bytes_max: usize,
    counts: BatchCounts,
    /// How many cookies the batch will likely hold: as many as the one before.
    likely: usize,
}

/// What became of the cookies pushed into a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Cookies that came, good or bad: the sum of the others and of those to be written.
    pub received: u64,
    /// Cookies that were left out by the filter as repeats.
    pub suppressed: u64,
    /// Cookies that were left out by the filter as too old.
    pub stale: u64,
    /// Cookies that lost against a newer one in this batch.
    pub superseded: u64,
    /// Cookies that are not what the contract says.
    pub malformed: u64,
    /// Cookies of DSPs that have no slot in the store.
    pub no_dsp_slot: u64,
    /// Cookies whose time to live was over when they came.
    pub expired: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    accepted_unix_micros: u64,
    chunk: u32,
    user_id_at: u32,
    buyer_uid_at: u32,
    dsp_id: u32,
    user_id_bytes: u16,
    buyer_uid_bytes: u16,
    is_known: bool,
    fingerprint: Fingerprint,
}

impl Batch {
    /// An empty batch that is full at `cookies_max` distinct cookies or `bytes_max` bytes of chunks.
    #[must_use]
    pub fn new(cookies_max: usize, bytes_max: usize) -> Self {
        Self {
            id: BatchId::default(),
            chunks: Vec::new(),
            entries: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            cursors: Vec::new(),
            completed_epochs: Vec::new(),
            held: BTreeSet::new(),
            released: Vec::new(),
            cookies_max,
            bytes: 0,
            bytes_max,
            counts: BatchCounts::default(),
            likely: 0,
        }
    }

    /// The empty batch that follows this one: with the next number, the same bounds, and room at once for as many cookies
    /// as this one has.
    #[must_use]
    pub fn next(&self) -> Self {
        let mut next = Self::new(self.cookies_max, self.bytes_max);
        next.id = self.id.next();
        next.likely = self.len();
        next.chunks.reserve(self.chunks.len());
        next.released.reserve(self.released.len());
        next
    }

    /// Its number among those made of one another by [`next`](Self::next).
    #[must_use]
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// Whether it wants no more chunks. A chunk that is pushed all the same is taken whole.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.cookies_max || self.bytes >= self.bytes_max
    }

    /// Whether there is nothing to make durable: neither a cookie nor a cursor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.cursors.is_empty()
    }

    /// The number of cookies to be written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// What became of the cookies pushed so far.
    #[must_use]
    pub fn counts(&self) -> BatchCounts {
        self.counts
    }

    /// How far each producer got. To be committed after the cookies, never before.
    #[must_use]
    pub fn cursors(&self) -> &[Cursor] {
        &self.cursors
    }

    /// For each chunk, its time in microseconds since the Unix epoch, and its good cookies. That is when its producer had
    /// them to send, whatever their ages.
    pub fn released(&self) -> impl Iterator<Item = (u64, u64)> {
        self.released
            .iter()
            .map(|(micros, cookies)| (*micros, u64::from(*cookies)))
    }

    /// The cookie at `index`, in the order in which pairs first came.
    ///
    /// # Panics
    /// When `index` is not below [`Batch::len`].
    #[must_use]
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
            accepted_unix_micros: entry.accepted_unix_micros,
            is_known: entry.is_known,
        }
    }

    /// The fingerprint of each cookie, in the order of their indices.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.entries.iter().map(|entry| entry.fingerprint)
    }

    /// All cookies, in the order in which pairs first came.
    pub fn cookies(&self) -> impl Iterator<Item = BatchCookie<'_>> {
        (0..self.len()).map(|index| self.cookie(index))
    }

    /// The indices of all cookies by user id, then DSP. Costs a sort.
    pub fn by_user(&self) -> impl Iterator<Item = u32> {
        // The first bytes of a user id nearly always decide, without a look at the chunks.
        let mut order: Vec<(u64, u32)> = (0..)
            .zip(&self.entries)
            .map(|(at, entry): (u32, &Entry)| (prefix(entry.user_id(&self.chunks)), at))
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

    /// Whether a DSP's cookies must wait: earlier ones of it are set aside, and of two of one millisecond a store could not tell
    /// which is newer.
    #[must_use]
    pub fn is_deferred(&self, dsp_id: u32) -> bool {
        self.held.contains(&dsp_id)
    }

    /// Has the cookies of these DSPs wait.
    pub fn defer_dsps(&mut self, dsps: BTreeSet<u32>) {
        self.held = dsps;
    }

    /// The ends of producers' epochs that were reached with everything before them, also of those that have begun another
    /// epoch since. With the batch, all of it is stored.
    #[must_use]
    pub fn completed_epochs(&self) -> &[Cursor] {
        &self.completed_epochs
    }

    /// Notes how far a producer got, for instance by a gap, or that it said goodbye.
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

    /// Takes a chunk's cookies and its last sequence. Malformed cookies are counted and skipped. A chunk said to be
    /// accepted after `accepted_max` counts as accepted then, and the ages of its cookies count from then.
    ///
    /// A chunk has as many cookies as its header says, because these have sequences: what it lacks counts as malformed,
    /// and what it holds beyond them has no sequence of its own and is left alone.
    pub fn push(&mut self, producer: &Arc<str>, chunk: &ChunkRef, accepted_max: u64) {
        self.push_filtered(producer, chunk, accepted_max, &mut AcceptAll);
    }

    /// Takes the cookies of a chunk that is part of no stream, and so moves no cursor.
    pub fn push_chunk(&mut self, chunk: &ChunkRef) {
        let released = chunk.header().accepted_unix_micros;
        self.take(chunk, released, &mut AcceptAll);
    }

    /// Like [`push`](Self::push), but takes only the cookies that `filter` lets through.
    pub fn push_filtered(
        &mut self,
        producer: &Arc<str>,
        chunk: &ChunkRef,
        accepted_max: u64,
        filter: &mut impl DedupFilter,
    ) {
        let header = *chunk.header();
        self.take(chunk, header.accepted_unix_micros.min(accepted_max), filter);
        self.advance(&Cursor {
            producer: Arc::clone(producer),
            epoch: header.epoch,
            sequence: header.last_sequence(),
            complete: false,
        });
    }

    fn take(&mut self, chunk: &ChunkRef, released: u64, filter: &mut impl DedupFilter) {
        let header = *chunk.header();
        let count = header.count as usize;
        // A chunk may hold fewer cookies than it says: the count is not trusted for an allocation.
        let likely = count.min(chunk.body().len() / COOKIE_BYTES_MIN);
        if self.index.capacity() == 0 {
            self.reserve(likely);
        }
        let chunk_at = u32::try_from(self.chunks.len()).expect("a batch is bounded in bytes");
        self.chunks.push(chunk.body().clone());
        self.bytes += chunk.body().len();
        let mut cookies = Vec::with_capacity(likely);
        for cookie in chunk.cookies().take(count) {
            cookies.extend(cookie.ok().filter(is_well_formed));
        }
        let good = u32::try_from(cookies.len()).expect("a batch is bounded in cookies");
        let fingerprints: Vec<Fingerprint> = cookies
            .iter()
            .map(|cookie| filter.fingerprint(&borrowed(cookie, released)))
            .collect();
        filter.prefetch(&fingerprints);
        for (cookie, fingerprint) in cookies.iter().zip(fingerprints) {
            match filter.decide(&borrowed(cookie, released), fingerprint, self.id) {
                DedupDecision::Suppress => self.counts.suppressed += 1,
                DedupDecision::Stale => self.counts.stale += 1,
                DedupDecision::NoDspSlot => self.counts.no_dsp_slot += 1,
                DedupDecision::Expired => self.counts.expired += 1,
                DedupDecision::Write { is_known } => {
                    let entry = self.entry(chunk_at, released, cookie);
                    self.put(
                        Entry {
                            is_known,
                            fingerprint,
                            ..entry
                        },
                        cookie.user_id.as_bytes(),
                    );
                }
            }
        }
        let received = u64::from(header.count);
        self.counts.received += received;
        self.counts.malformed += received - u64::from(good);
        self.released.push((released, good));
    }

    /// Makes room at once for what the batch will likely hold, so that the table seldom grows: an eighth more than
    /// the batch before.
    fn reserve(&mut self, first_chunk: usize) {
        let likely = self.likely + self.likely / 8;
        let cookies = likely.min(self.cookies_max).max(first_chunk);
        self.entries.reserve(cookies);
        self.index.reserve(cookies, |_| 0);
    }

    fn entry(&self, chunk: u32, released: u64, cookie: &CookieRef<'_>) -> Entry {
        let body = &self.chunks[chunk as usize];
        Entry {
            accepted_unix_micros: cookie.accepted_unix_micros(released),
            chunk,
            user_id_at: offset(body, cookie.user_id),
            buyer_uid_at: offset(body, cookie.buyer_uid),
            dsp_id: cookie.dsp_id,
            user_id_bytes: length(cookie.user_id),
            buyer_uid_bytes: length(cookie.buyer_uid),
            is_known: false,
            fingerprint: [0; 2],
        }
    }

    fn put(&mut self, entry: Entry, user_id: &[u8]) {
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
                if newest::replaces(entry.accepted_unix_micros, known.accepted_unix_micros) {
                    let is_known = known.is_known;
                    *known = Entry { is_known, ..entry };
                }
            }
            Slot::Vacant(slot) => {
                let at = u32::try_from(entries.len()).expect("a batch is bounded in cookies");
                slot.insert(at);
                entries.push(entry);
            }
        }
    }
}

impl Entry {
    fn user_id<'a>(&self, chunks: &'a [Bytes]) -> &'a [u8] {
        slice(
            &chunks[self.chunk as usize],
            self.user_id_at,
            self.user_id_bytes,
        )
    }
}

/// The shortest encoding of a cookie with all its fields.
const COOKIE_BYTES_MIN: usize = 10;

fn borrowed<'a>(cookie: &CookieRef<'a>, released: u64) -> BatchCookie<'a> {
    BatchCookie {
        user_id: cookie.user_id.as_bytes(),
        dsp_id: cookie.dsp_id,
        buyer_uid: cookie.buyer_uid.as_bytes(),
        accepted_unix_micros: cookie.accepted_unix_micros(released),
        is_known: false,
    }
}

fn is_well_formed(cookie: &CookieRef<'_>) -> bool {
    ids::is_user_id(cookie.user_id.as_bytes())
        && ids::is_dsp_id(cookie.dsp_id)
        && ids::is_buyer_uid_of_stream(cookie.buyer_uid)
}

/// The first eight bytes, as a number that sorts like them.
fn prefix(user_id: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let known = user_id.len().min(8);
    bytes[..known].copy_from_slice(&user_id[..known]);
    u64::from_be_bytes(bytes)
}

/// Where in `body` a string lies that was lent out of it.
fn offset(body: &Bytes, part: &str) -> u32 {
    let offset = part.as_ptr().addr().wrapping_sub(body.as_ptr().addr());
    assert!(offset + part.len() <= body.len(), "lent out of the chunk");
    u32::try_from(offset).expect("a message is far below 4 GiB")
}

fn length(part: &str) -> u16 {
    u16::try_from(part.len()).expect("lengths were checked")
}

fn slice(body: &Bytes, at: u32, bytes: u16) -> &[u8] {
    &body[at as usize..][..usize::from(bytes)]
}

#[cfg(test)]
pub(crate) mod tests;
