//! Cookies of single DSPs that the store does not take now: the store's own server keeps them until it does.
//!
//! One cursor covers all DSPs, so a DSP whose database does not work must either stop all others or let the cursor pass.
//! It may pass, because its cookies are durable in the retry queue first. Only the database of that DSP fails, so the server
//! holds the queue itself: it needs no disk of the consumer, and while the whole server is down nothing is queued and reading
//! stops. A [task](Retries) writes queued cookies again until the store has them. A DSP's later cookies
//! [wait](crate::batch::Batch::is_held) behind its earlier ones, because of two of one millisecond MongoDB cannot tell
//! which is newer. After a crash some may be written again, which changes nothing.
//!
//! An [`Entry`] of the queue holds at most `ENTRY_COOKIES_MAX` cookies of one DSP. Here is only the index: 32 bytes for each
//! entry. The queue is bounded at `BYTES_MAX`. A DSP may fill as much as would be left: one alone half of it, two a third
//! each; and all unlisted DSPs that have no slot yet have half of it together, since anybody can make DSPs up. Cookies for
//! which there is no room become dead letters.

mod retry;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use proto::{
    limits::AGE_MICROS_MAX,
    wire::{ChunkHeader, CookieRef, HEADROOM_BYTES, StreamMessage, put_cookie, seal},
};
use runtime::unix_micros;
use tokio::sync::Notify;

use crate::{
    batch::Batch,
    metrics,
    store::{DeferredCookies, Entry, FullRetryEntry, RejectedCookie},
};
pub use retry::Retrier;

/// Maximum bytes of the queue.
const BYTES_MAX: u64 = 256 << 20;

/// Maximum cookies of an entry: the longest take 350 kB.
const ENTRY_COOKIES_MAX: usize = 1_000;

/// What an entry counts beside its chunks: its document and place in the index, rounded up so that the queue has at most 262,144 entries,
/// which are all read at the start.
const ENTRY_BYTES: u64 = 1 << 10;

/// Maximum bytes that are retried at once.
const RETRY_BYTES_MAX: u64 = 1 << 20;

/// The index of one consumer's retry queue; clones share it.
#[derive(Debug, Clone)]
pub struct RetryQueue {
    index: Arc<Mutex<Index>>,
    /// Notified when something was queued.
    changed: Arc<Notify>,
    /// DSPs that always get a slot.
    listed: Arc<BTreeSet<u32>>,
    bytes_max: u64,
    metrics: metrics::RetryQueue,
}

#[derive(Debug, Default)]
struct Index {
    dsps: BTreeMap<u32, DspEntries>,
    last_number: u64,
    bytes: u64,
}

/// The entries of one DSP, the oldest first.
#[derive(Debug, Default)]
struct DspEntries {
    entries: VecDeque<Entry>,
    bytes: u64,
}

impl RetryQueue {
    /// An empty queue, for a store with slots for DSPs that are `listed`.
    #[must_use]
    pub fn new(listed: BTreeSet<u32>, metrics: metrics::RetryQueue) -> Self {
        Self {
            index: Arc::default(),
            changed: Arc::default(),
            listed: Arc::new(listed),
            bytes_max: BYTES_MAX,
            metrics,
        }
    }

    /// Takes in what an earlier process has queued.
    pub fn load(&self, entries: &[Entry]) {
        let cookies: u64 = entries.iter().map(|entry| entry.cookies).sum();
        self.add(entries.iter().copied());
        self.metrics.ledger.recovered(cookies);
        if cookies > 0 {
            let dsps = self.dsps().len();
            tracing::info!(cookies, dsps, "retrying cookies queued by the previous run");
        }
    }

    /// Entries for cookies of `batch` that were not taken, to be stored and then [added](Self::put); and the cookies for which
    /// there is no room.
    pub fn pack(
        &self,
        batch: &Batch,
        deferred: &[DeferredCookies],
        has_slot: impl Fn(u32) -> bool,
    ) -> (Arc<[FullRetryEntry]>, Vec<RejectedCookie>) {
        let is_expected = |dsp_id| self.listed.contains(&dsp_id) || has_slot(dsp_id);
        let mut index = self.index();
        let unexpected = index
            .dsps
            .iter()
            .filter(|(dsp_id, _)| !is_expected(**dsp_id));
        let mut unexpected_bytes: u64 = unexpected.map(|(_, dsp_entries)| dsp_entries.bytes).sum();
        let mut bytes_all = index.bytes;
        let (mut entries, mut overflow) = (Vec::new(), Vec::new());
        for DeferredCookies {
            dsp_id, indices, ..
        } in deferred
        {
            let packed = pack_dsp(batch, *dsp_id, indices);
            let bytes: u64 = packed.iter().map(|it| it.entry.bytes).sum();
            let has = index
                .dsps
                .get(dsp_id)
                .map_or(0, |dsp_entries| dsp_entries.bytes);
            let has_room = has + bytes <= self.bytes_max.saturating_sub(bytes_all + bytes);
            let is_welcome = is_expected(*dsp_id) || unexpected_bytes + bytes <= self.bytes_max / 2;
            if !has_room || !is_welcome {
                overflow.extend(indices.iter().map(|index| RejectedCookie {
                    index: *index,
                    reason: "the store rejected it and the retry queue is full".to_owned(),
                }));
                continue;
            }
            bytes_all += bytes;
            if !is_expected(*dsp_id) {
                unexpected_bytes += bytes;
            }
            for mut full in packed {
                index.last_number = unix_micros().max(index.last_number + 1);
                full.entry.number = index.last_number;
                entries.push(full);
            }
        }
        (entries.into(), overflow)
    }

    /// Adds entries that are durable.
    pub fn put(&self, entries: &[FullRetryEntry]) {
        let cookies = entries.iter().map(|full| full.entry.cookies).sum();
        self.metrics.ledger.in_retry_queue(cookies);
        self.add(entries.iter().map(|full| full.entry));
        self.changed.notify_one();
    }

    /// The DSPs of which something is queued.
    #[must_use]
    pub fn dsps(&self) -> BTreeSet<u32> {
        self.index().dsps.keys().copied().collect()
    }

    /// Returns when something was queued since the last call.
    async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The oldest entries of a DSP, as many as are retried at once.
    fn oldest(&self, dsp_id: u32) -> Vec<Entry> {
        let index = self.index();
        let mut bytes = 0;
        let entries = index.dsps.get(&dsp_id).into_iter();
        let entries = entries.flat_map(|dsp_entries| &dsp_entries.entries);
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += entry.bytes;
            is_first || bytes <= RETRY_BYTES_MAX
        };
        entries.take_while(fits).copied().collect()
    }

    /// Forgets the oldest entries of a DSP.
    fn done(&self, dsp_id: u32, entries: usize) {
        let mut index = self.index();
        let Some(dsp_entries) = index.dsps.get_mut(&dsp_id) else {
            return;
        };
        let done = dsp_entries.entries.drain(..entries);
        let bytes: u64 = done.map(|entry| entry.bytes).sum();
        dsp_entries.bytes -= bytes;
        if dsp_entries.entries.is_empty() {
            index.dsps.remove(&dsp_id);
        }
        index.bytes -= bytes;
        self.metrics.bytes.set(metrics::gauge_value(index.bytes));
    }

    fn add(&self, entries: impl Iterator<Item = Entry>) {
        let mut index = self.index();
        for entry in entries {
            let dsp_entries = index.dsps.entry(entry.dsp_id).or_default();
            dsp_entries.entries.push_back(entry);
            dsp_entries.bytes += entry.bytes;
            index.bytes += entry.bytes;
            index.last_number = index.last_number.max(entry.number);
        }
        self.metrics.bytes.set(metrics::gauge_value(index.bytes));
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cookies at these indices, which are of one DSP, as entries without numbers. The times of an entry differ by less than the largest age that
/// a chunk can state, so all of them are read back exactly.
fn pack_dsp(batch: &Batch, dsp_id: u32, indices: &[u32]) -> Vec<FullRetryEntry> {
    let span = |index: &u32| batch.cookie(*index as usize).accepted_unix_micros / AGE_MICROS_MAX;
    let mut indices = indices.to_vec();
    indices.sort_by_key(span);
    let spans = indices.chunk_by(|one, other| span(one) == span(other));
    let parts = spans.flat_map(|indices| indices.chunks(ENTRY_COOKIES_MAX));
    let parts = parts.map(|part| {
        let chunk = chunk(batch, part);
        let entry = Entry {
            number: 0,
            dsp_id,
            cookies: part.len() as u64,
            bytes: chunk.len() as u64 + ENTRY_BYTES,
        };
        FullRetryEntry { entry, chunk }
    });
    parts.collect()
}

/// Cookies as an encoded chunk, which has the time of the newest.
fn chunk(batch: &Batch, indices: &[u32]) -> Bytes {
    let mut chunk = vec![0; HEADROOM_BYTES];
    let cookies = indices.iter().map(|index| batch.cookie(*index as usize));
    let times = cookies.clone().map(|cookie| cookie.accepted_unix_micros);
    let newest = times.max().unwrap_or_default();
    for cookie in cookies {
        let text = |bytes| std::str::from_utf8(bytes).expect("a batch holds checked cookies");
        put_cookie(
            &mut chunk,
            &CookieRef {
                user_id: text(cookie.user_id),
                dsp_id: cookie.dsp_id,
                buyer_uid: text(cookie.buyer_uid),
                age_micros: newest - cookie.accepted_unix_micros,
            },
        );
    }
    let header = ChunkHeader {
        count: u32::try_from(indices.len()).expect("an entry is bounded in cookies"),
        accepted_unix_micros: newest,
        ..ChunkHeader::default()
    };
    // Behind the prefix of a gRPC message: flags and length.
    let at = seal(&mut chunk, &header) + 5;
    Bytes::from(chunk).slice(at..)
}

/// The cookies of entries, as a batch without cursors. What cannot be read is left out.
fn unpack(chunks: Vec<Bytes>) -> Batch {
    let mut batch = Batch::new(usize::MAX, usize::MAX);
    for chunk in chunks {
        if let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(chunk) {
            batch.push_chunk(&chunk);
        }
    }
    batch
}

#[cfg(test)]
mod tests;
