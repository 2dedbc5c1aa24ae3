//! The retry queue: cookies of DSPs whose MongoDB database fails or is being created, stored on the same MongoDB server.
//!
//! A cursor covers all DSPs. It may advance past cookies of a failing database, because they are durable in the retry queue
//! first. Since only that database fails, the server can hold the queue, and the consumer needs no disk. While the whole server
//! is down, nothing is queued and reading stops. [`Retrier`] writes queued cookies again until the store has them. Later
//! cookies of a DSP are [queued](crate::batch::Batch::is_deferred) behind its earlier ones, because MongoDB cannot order two
//! cookies of the same millisecond. A crash may cause cookies to be written twice, which changes nothing.
//!
//! A [`RetryEntry`] contains at most `ENTRY_COOKIES_MAX` cookies of one DSP. This module keeps an index with 32 bytes per
//! entry. The queue is limited to `BYTES_MAX`. A DSP may not use more bytes than remain free: one DSP can use half of the
//! queue; two DSPs can use a third each. All unlisted DSPs without a database share half of the queue, because clients can
//! invent DSPs. Cookies that do not fit become dead letters.

mod retry;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use proto::{
    limits::AGE_MICROS_MAX,
    units::{DspId, UnixMicros},
    wire::{
        ChunkHeader, CookieRef, HEADROOM_BYTES, Record, Scope, StreamMessage, put_record, seal,
    },
};
use tokio::sync::Notify;

use crate::{
    batch::Batch,
    clock,
    deletions::{Deletion, Deletions},
    metrics,
    store::{DeferredCookies, FullRetryEntry, RejectedCookie, RetryEntry},
};
pub use retry::Retrier;

/// Maximum bytes of the queue.
const BYTES_MAX: u64 = 256 << 20;

/// Maximum number of cookies of an entry. With the largest cookies, it has 350 kB.
const ENTRY_COOKIES_MAX: usize = 1_000;

/// Bytes of overhead of an entry: its document and its index entry. Rounded up, so that the queue has at most 262,144 entries:
/// all are read at startup.
const ENTRY_BYTES: u64 = 1 << 10;

/// Maximum bytes of one retry.
const RETRY_BYTES_MAX: u64 = 1 << 20;

/// The index of one consumer's retry queue; clones share it.
#[derive(Debug, Clone)]
pub struct RetryQueue {
    index: Arc<Mutex<Index>>,
    /// Notified when entries are added.
    changed: Arc<Notify>,
    /// DSPs that are always accepted (`--dsps`).
    listed: Arc<BTreeSet<DspId>>,
    bytes_max: u64,
    deletions: Deletions,
    metrics: metrics::Sink,
}

#[derive(Debug, Default)]
struct Index {
    dsps: BTreeMap<DspId, DspEntries>,
    last_number: u64,
    bytes: u64,
}

/// The entries of one DSP, oldest first.
#[derive(Debug, Default)]
struct DspEntries {
    entries: VecDeque<RetryEntry>,
    bytes: u64,
}

impl RetryQueue {
    /// An empty queue. `listed` DSPs are always accepted.
    pub fn new(listed: BTreeSet<DspId>, deletions: Deletions, metrics: metrics::Sink) -> Self {
        Self {
            index: Arc::default(),
            changed: Arc::default(),
            listed: Arc::new(listed),
            bytes_max: BYTES_MAX,
            deletions,
            metrics,
        }
    }

    /// The deletions, which also cover queued cookies.
    pub fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// Adds the entries of the previous run.
    pub fn load(&self, entries: &[RetryEntry]) {
        let cookies: u64 = entries.iter().map(|entry| entry.cookies).sum();
        self.add(entries.iter().copied());
        self.metrics.ledger.recovered(cookies);
        if cookies > 0 {
            let dsps = self.dsps().len();
            tracing::info!(cookies, dsps, "retrying cookies queued by the previous run");
        }
    }

    /// Packs the deferred cookies of `batch` into entries, which must be stored and then [added](Self::add_durable). Also returns
    /// the cookies that do not fit.
    pub fn pack(
        &self,
        batch: &Batch,
        deferred: &[DeferredCookies],
        has_slot: impl Fn(DspId) -> bool,
    ) -> (Vec<FullRetryEntry>, Vec<RejectedCookie>) {
        let is_trusted = |dsp_id| self.listed.contains(&dsp_id) || has_slot(dsp_id);
        let mut index = self.index.lock();
        let untrusted = index
            .dsps
            .iter()
            .filter(|(dsp_id, _)| !is_trusted(**dsp_id));
        let mut untrusted_bytes: u64 = untrusted.map(|(_, dsp_entries)| dsp_entries.bytes).sum();
        let mut bytes_all = index.bytes;
        let (mut entries, mut overflow) = (Vec::new(), Vec::new());
        for DeferredCookies {
            dsp_id, indices, ..
        } in deferred
        {
            // Deletions are always queued: the deletion table bounds their number.
            entries.extend(pack_deletions(batch, *dsp_id));
            let packed = pack_dsp(batch, *dsp_id, indices);
            let bytes: u64 = packed.iter().map(|it| it.entry.bytes).sum();
            let used = index
                .dsps
                .get(dsp_id)
                .map_or(0, |dsp_entries| dsp_entries.bytes);
            let has_capacity = used + bytes <= self.bytes_max.saturating_sub(bytes_all + bytes);
            let may_use_it = is_trusted(*dsp_id) || untrusted_bytes + bytes <= self.bytes_max / 2;
            if !has_capacity || !may_use_it {
                overflow.extend(indices.iter().map(|index| RejectedCookie {
                    index: *index,
                    reason: "the store deferred the cookie, but the retry queue is full".to_owned(),
                }));
                continue;
            }
            bytes_all += bytes;
            if !is_trusted(*dsp_id) {
                untrusted_bytes += bytes;
            }
            entries.extend(packed);
        }
        for full in &mut entries {
            index.last_number = clock::now().0.max(index.last_number + 1);
            full.entry.number = index.last_number;
        }
        (entries, overflow)
    }

    /// Adds entries that are durable.
    pub fn add_durable(&self, entries: &[FullRetryEntry]) {
        let cookies = entries.iter().map(|full| full.entry.cookies).sum();
        self.metrics.ledger.enqueued(cookies);
        self.add(entries.iter().map(|full| full.entry));
        self.changed.notify_one();
    }

    /// The DSPs with entries.
    pub fn dsps(&self) -> BTreeSet<DspId> {
        self.index.lock().dsps.keys().copied().collect()
    }

    /// Waits until entries were added since the last call.
    async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The oldest entries of a DSP, up to the bytes of one retry.
    fn oldest(&self, dsp_id: DspId) -> Vec<RetryEntry> {
        let index = self.index.lock();
        let mut bytes = 0;
        let entries = index.dsps.get(&dsp_id).into_iter();
        let entries = entries.flat_map(|dsp_entries| &dsp_entries.entries);
        let fits = |entry: &&RetryEntry| {
            let is_first = bytes == 0;
            bytes += entry.bytes;
            is_first || bytes <= RETRY_BYTES_MAX
        };
        entries.take_while(fits).copied().collect()
    }

    /// Removes the oldest entries of a DSP.
    fn remove_oldest(&self, dsp_id: DspId, entries: usize) {
        let mut index = self.index.lock();
        let Some(dsp_entries) = index.dsps.get_mut(&dsp_id) else {
            return;
        };
        let removed = dsp_entries.entries.drain(..entries);
        let bytes: u64 = removed.map(|entry| entry.bytes).sum();
        dsp_entries.bytes -= bytes;
        if dsp_entries.entries.is_empty() {
            index.dsps.remove(&dsp_id);
        }
        index.bytes -= bytes;
        self.changed_index(&index);
    }

    fn add(&self, entries: impl Iterator<Item = RetryEntry>) {
        let mut index = self.index.lock();
        for entry in entries {
            let dsp_entries = index.dsps.entry(entry.dsp_id).or_default();
            dsp_entries.entries.push_back(entry);
            dsp_entries.bytes += entry.bytes;
            index.bytes += entry.bytes;
            index.last_number = index.last_number.max(entry.number);
        }
        self.changed_index(&index);
    }

    fn changed_index(&self, index: &Index) {
        self.metrics
            .retry_queue_bytes
            .set(metrics::gauge_value(index.bytes));
        let oldest = |it: &DspEntries| {
            it.entries
                .iter()
                .find(|entry| entry.deletions > 0)
                .map(|entry| entry.number)
        };
        let dsps = index.dsps.iter().map(|(id, it)| (*id, oldest(it)));
        self.deletions.set_queued(dsps.collect(), index.last_number);
    }
}

/// Packs the cookies at these indices, all of one DSP, into entries without numbers. Times within an entry differ by less than
/// the maximum age in a chunk, so they are read back exactly.
fn pack_dsp(batch: &Batch, dsp_id: DspId, indices: &[u32]) -> Vec<FullRetryEntry> {
    let span = |index: &u32| batch.cookie(*index as usize).accepted.0 / AGE_MICROS_MAX;
    let mut indices = indices.to_vec();
    indices.sort_by_key(span);
    let spans = indices.chunk_by(|one, other| span(one) == span(other));
    let parts = spans.flat_map(|indices| indices.chunks(ENTRY_COOKIES_MAX));
    let parts = parts.map(|part| {
        let cookies = part.iter().map(|index| {
            let cookie = batch.cookie(*index as usize);
            let record = Record::Set(CookieRef {
                user_id: text(cookie.user_id),
                dsp_id,
                buyer_uid: text(cookie.buyer_uid),
                age_micros: 0,
            });
            (record, cookie.accepted)
        });
        entry(dsp_id, part.len(), 0, cookies)
    });
    parts.collect()
}

/// Packs the deletions of users that remove cookies of a DSP into entries of this DSP without numbers.
fn pack_deletions(batch: &Batch, dsp_id: DspId) -> Vec<FullRetryEntry> {
    let deletions = batch.deletions().iter();
    let deletions: Vec<&Deletion> = deletions.filter(|it| it.removes_from(dsp_id)).collect();
    let parts = deletions.chunks(ENTRY_COOKIES_MAX).map(|part| {
        let records = part.iter().map(|deletion| {
            let scope = Scope::Match(text(deletion.ids().0), dsp_id);
            let record = Record::Delete {
                scope,
                age_micros: 0,
            };
            (record, deletion.until)
        });
        entry(dsp_id, 0, part.len(), records)
    });
    parts.collect()
}

fn text(id: &[u8]) -> &str {
    std::str::from_utf8(id).expect("ids of a batch are valid")
}

/// An entry without a number, with records and their times.
fn entry<'a>(
    dsp_id: DspId,
    cookies: usize,
    deletions: usize,
    records: impl ExactSizeIterator<Item = (Record<'a>, UnixMicros)> + Clone,
) -> FullRetryEntry {
    let chunk = encode(records);
    let entry = RetryEntry {
        number: 0,
        dsp_id,
        cookies: cookies as u64,
        deletions: deletions as u64,
        bytes: chunk.len() as u64 + ENTRY_BYTES,
    };
    FullRetryEntry { entry, chunk }
}

/// Encodes records as a chunk with the time of the newest record.
fn encode<'a>(records: impl ExactSizeIterator<Item = (Record<'a>, UnixMicros)> + Clone) -> Bytes {
    let mut chunk = vec![0; HEADROOM_BYTES];
    let count = records.len();
    let newest = records.clone().map(|(_, accepted)| accepted).max();
    let newest = newest.unwrap_or_default();
    for (record, accepted) in records {
        put_record(&mut chunk, &record.with_age(newest.since(accepted)));
    }
    let header = ChunkHeader {
        count: u32::try_from(count).expect("the size of an entry is bounded"),
        accepted: newest,
        ..ChunkHeader::default()
    };
    // Skip the gRPC message prefix: flags and length.
    let at = seal(&mut chunk, &header) + 5;
    Bytes::from(chunk).slice(at..)
}

/// Unpacks entries into a batch without cursors. Unreadable chunks are skipped.
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
