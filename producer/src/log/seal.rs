//! The open buffer, to which cookies are appended. It is sealed into an immutable chunk when it is full, when it is old
//! enough, or when the log is closed.

use std::{
    mem,
    time::{Duration, Instant},
};

use bytes::Bytes;
use proto::{
    limits::AGE_MICROS_MAX,
    units::{Epoch, Sequence, UnixMicros},
    wire::{self, ChunkHeader, CookieRef, Record},
};
use tokio::sync::oneshot;

use super::{
    AppendBatch, Closed, Head, Log, LogShared, Progress,
    chunk::Chunk,
    deletions::{Deletion, Pending},
};

/// A buffer below this size is sealed after three times the age. The size is that of about 30 cookies: 30 ms at 1,000
/// cookies per second.
const SMALL_BYTES: usize = 2 * 1024;

/// The buffer of the next chunk.
#[derive(Debug)]
pub(super) struct Open {
    buffer: Vec<u8>,
    count: u32,
    first_sequence: Sequence,
    accepted: UnixMicros,
    opened: Instant,
    closed: bool,
    /// Records the progress of this log.
    progress: Option<Box<dyn Progress>>,
    /// Deletions that begin the next chunk.
    pending: Pending,
    /// The sequence number of the newest deletion.
    pub(super) last_deletion: Sequence,
    /// The last sequence number that may be used before the next call of `progress`.
    reserved: Sequence,
    pub(super) sealed: SealCounts,
}

/// Counters of sealed chunks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SealCounts {
    /// Chunks sealed because they were full.
    pub by_size: u64,
    /// Chunks sealed because of their age.
    pub by_age: u64,
    /// Chunks sealed because the log was closed: at most one.
    pub by_drain: u64,
}

impl Open {
    pub(super) fn new(chunk_bytes: usize, progress: Option<Box<dyn Progress>>) -> Self {
        Self {
            buffer: empty_buffer(chunk_bytes),
            count: 0,
            first_sequence: Sequence::FIRST,
            accepted: UnixMicros::NONE,
            opened: Instant::now(),
            closed: false,
            pending: Pending::default(),
            last_deletion: Sequence(0),
            reserved: progress.as_ref().map_or(Sequence::MAX, |_| Sequence(0)),
            progress,
            sealed: SealCounts::default(),
        }
    }

    /// The first sequence number of the next sealed chunk.
    pub(super) fn next_sequence(&self) -> Sequence {
        self.first_sequence
    }

    /// The sequence number of the newest cookie, sealed or not; 0 without one.
    pub(super) fn newest(&self) -> Sequence {
        self.first_sequence - 1 + u64::from(self.count)
    }

    /// Reserves `count` more sequence numbers.
    fn reserve(&mut self, count: u32) {
        let last = self.newest() + u64::from(count);
        if last > self.reserved
            && let Some(progress) = &mut self.progress
        {
            self.reserved = progress.reserve(last);
        }
    }

    /// Reports the last sequence number while the buffer is empty.
    fn settle(&mut self) {
        let last = self.newest();
        if let Some(progress) = &mut self.progress {
            self.reserved = progress.settle(last);
        }
    }

    /// Sets the time of the chunk before its first cookie.
    fn begin(&mut self, now: UnixMicros, shared: &LogShared) {
        if self.count == 0 {
            self.opened = Instant::now();
            self.accepted = now;
            shared.advance_clock(now);
        }
    }

    /// The record with its age in this chunk, if it was accepted at `accepted`.
    fn with_age<'a>(&self, record: Record<'a>, accepted: UnixMicros) -> Record<'a> {
        let age_micros = self.accepted.since(accepted);
        record.with_age(age_micros.min(AGE_MICROS_MAX))
    }

    /// The age at which to seal, as a multiple of [`Config::chunk_age`](super::Config): three while the buffer is small.
    ///
    /// A chunk costs each subscriber a few microseconds regardless of its size. At 500 cookies per second and 50 subscribers,
    /// sealing at 30 ms instead of 10 ms saves 40% of all CPU time.
    fn ages_max(&self) -> u64 {
        if self.buffer.len() < SMALL_BYTES {
            3
        } else {
            1
        }
    }

    /// Turns the buffer into a chunk; `None` if it is empty.
    fn seal(&mut self, epoch: Epoch, chunk_bytes: usize) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let header = ChunkHeader {
            epoch,
            first_sequence: self.first_sequence,
            count: self.count,
            accepted: self.accepted,
        };
        let at = wire::seal(&mut self.buffer, &header);
        let (wire, allocated) = if self.buffer.len() * 4 < self.buffer.capacity() * 3 {
            let wire = Bytes::copy_from_slice(&self.buffer[at..]);
            self.buffer.truncate(wire::HEADROOM_BYTES);
            let allocated = wire.len();
            (wire, allocated)
        } else {
            let full = mem::replace(&mut self.buffer, empty_buffer(chunk_bytes));
            let allocated = full.capacity();
            (Bytes::from(full).slice(at..), allocated)
        };
        self.first_sequence = self.first_sequence + u64::from(self.count);
        self.count = 0;
        Some(Chunk {
            header,
            opened: self.opened,
            wire,
            allocated,
        })
    }
}

fn empty_buffer(chunk_bytes: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(chunk_bytes + wire::TAILROOM_BYTES);
    buffer.resize(wire::HEADROOM_BYTES, 0);
    buffer
}

impl Log {
    /// Appends the cookies of `batch` and empties it. When this returns, they are in the log.
    ///
    /// Costs one lock, one clock reading and one copy per batch; per chunk, one allocation and a wake-up of all readers. If a
    /// cookie of the batch has an acceptance time, all are encoded again under the lock, with their ages in the chunk.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`], unless the batch is empty. The batch is then unchanged.
    pub fn append(&self, batch: &mut AppendBatch) -> Result<(), Closed> {
        if batch.is_empty() {
            batch.clear();
            return Ok(());
        }
        self.append_by(|open, now| {
            if let Some(aged_at) = batch.aged_at() {
                return batch.retain(|staged| {
                    let cookie = staged.cookie();
                    self.put(
                        open,
                        now,
                        Record::Set(cookie),
                        aged_at.before(cookie.age_micros),
                    );
                    false
                });
            }
            self.seal_if_full(open, batch.encoded().len());
            open.begin(now, &self.shared);
            open.reserve(batch.count());
            open.buffer.extend_from_slice(batch.encoded());
            open.count += batch.count();
        })?;
        batch.clear();
        Ok(())
    }

    /// Appends cookies that were accepted earlier, each with its acceptance time. When
    /// this returns, they are in the log, in this order.
    ///
    /// Acceptance times are those that [`Log::now`] returned, in this or an earlier epoch. The age of each cookie is
    /// computed from its acceptance time and the time of its chunk; the age in the argument is ignored. It is zero if the
    /// acceptance time is after the chunk's, and at most [`AGE_MICROS_MAX`].
    ///
    /// Any number of cookies is possible, because full chunks are sealed. The iterator runs under the lock, so pass
    /// only some hundreds per call.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`], unless there are no cookies. None of them is then in the log.
    pub fn append_accepted<'a>(
        &self,
        cookies: impl IntoIterator<Item = (CookieRef<'a>, UnixMicros)>,
    ) -> Result<(), Closed> {
        let mut cookies = cookies.into_iter().peekable();
        if cookies.peek().is_none() {
            return Ok(());
        }
        self.append_by(|open, now| {
            for (cookie, accepted) in cookies {
                self.put(open, now, Record::Set(cookie), accepted);
            }
        })
    }

    /// Appends deletions, at the latest when the open chunk is sealed. Resolves to the sequence number of the last deletion,
    /// once all are in the log; fails when there are none.
    ///
    /// All of them are encoded under the lock, so pass only some hundreds per call.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`]; none of them is then in the log.
    pub fn append_deletions(
        &self,
        deletions: Vec<Deletion>,
    ) -> Result<oneshot::Receiver<Sequence>, Closed> {
        let (appended, sequence) = oneshot::channel();
        if !deletions.is_empty() {
            self.append_by(|open, _| {
                open.pending.push((deletions, appended));
                if open.count == 0 {
                    self.put_pending(open);
                }
            })?;
        }
        Ok(sequence)
    }

    /// Begins a chunk with the deletions that wait for one.
    fn put_pending(&self, open: &mut Open) {
        if open.pending.is_empty() {
            return;
        }
        let now = self.shared.peek_clock();
        for (deletions, appended) in mem::take(&mut open.pending) {
            for deletion in deletions {
                let record = Record::Delete {
                    scope: deletion.scope.as_ref().map(String::as_str),
                    age_micros: 0,
                };
                let until = deletion.until.unwrap_or(now);
                self.put(open, now, record, until);
            }
            open.last_deletion = open.newest();
            // The caller may have stopped waiting.
            appended.send(open.last_deletion).ok();
        }
    }

    /// Puts one record that was accepted at `accepted` into the open buffer.
    fn put(&self, open: &mut Open, now: UnixMicros, record: Record<'_>, accepted: UnixMicros) {
        self.seal_if_full(open, wire::record_bytes(&open.with_age(record, accepted)));
        open.begin(now, &self.shared);
        open.reserve(1);
        let aged = open.with_age(record, accepted);
        wire::put_record(&mut open.buffer, &aged);
        open.count += 1;
    }

    /// Calls `append`, which must append at least one cookie, with the open buffer and the time, under the lock.
    ///
    /// First seals the open chunk if it is due, because the task that calls [`Log::seal_due`] may be late. After a process was
    /// suspended, requests in its sockets may be handled before its timers, and must not get the time of an old chunk.
    ///
    /// The age is measured by the clock of the log, because the monotonic clock may stop with a virtual machine. If the system
    /// clock jumps forward, a chunk is sealed early. If it jumps back, the clock of the log stands still, and the sealing task,
    /// which uses the monotonic clock, still delivers the cookies.
    fn append_by(&self, append: impl FnOnce(&mut Open, UnixMicros)) -> Result<(), Closed> {
        let shared = &*self.shared;
        let mut open = shared.open();
        if open.closed {
            return Err(Closed);
        }
        let now = shared.peek_clock();
        let (first, was_empty) = (open.first_sequence, open.count == 0);
        let age_micros = now.since(open.accepted);
        if !was_empty && age_micros > shared.chunk_age_micros * open.ages_max() {
            open.sealed.by_age += 1;
            self.seal(&mut open);
        }
        append(&mut open, now);
        let next = open.first_sequence;
        drop(open);
        if next > first {
            shared.publish(next);
        }
        if was_empty || next > first {
            shared.opened.notify_one();
        }
        Ok(())
    }

    /// Seals the open buffer if `bytes` more would not fit.
    fn seal_if_full(&self, open: &mut Open, bytes: usize) {
        while open.count > 0 && open.buffer.len() + bytes > self.shared.config.chunk_bytes {
            open.sealed.by_size += 1;
            self.seal(open);
        }
    }

    /// Seals the open buffer if it is due. Returns the time until the next check, `None` if the buffer is empty.
    pub(super) fn seal_due(&self, now: Instant) -> Option<Duration> {
        let mut open = self.shared.open();
        if open.count == 0 {
            return None;
        }
        let age = now.saturating_duration_since(open.opened);
        let chunk_age = self.shared.config.chunk_age;
        if age.as_micros() < (self.shared.chunk_age_micros * open.ages_max()).into() {
            // A small buffer may have grown by then.
            let until_first_age = chunk_age.checked_sub(age);
            return Some(
                until_first_age
                    .filter(|wait| !wait.is_zero())
                    .unwrap_or(chunk_age),
            );
        }
        open.sealed.by_age += 1;
        self.seal(&mut open);
        let is_empty = open.count == 0;
        if is_empty {
            open.settle();
        }
        let next = open.next_sequence();
        drop(open);
        self.shared.publish(next);
        (!is_empty).then_some(chunk_age)
    }

    /// Seals the open buffer and rejects further appends. Readers get the remaining chunks, then the end.
    pub fn close(&self) {
        let mut open = self.shared.open();
        open.closed = true;
        // Sealing may begin another chunk, with pending deletions.
        while open.count > 0 {
            open.sealed.by_drain += 1;
            self.seal(&mut open);
        }
        let next = open.next_sequence();
        if let Some(mut progress) = open.progress.take() {
            progress.end(next - 1);
        }
        drop(open);
        self.shared.head.send_modify(|head| {
            *head = Head {
                next,
                closed: true,
                beat: head.beat,
            };
        });
    }

    /// Seals the buffer and pushes it to the ring, and begins the next chunk with the pending deletions. The caller publishes
    /// the next sequence number after releasing the lock.
    pub(super) fn seal(&self, open: &mut Open) {
        let config = &self.shared.config;
        if let Some(chunk) = open.seal(config.epoch, config.chunk_bytes) {
            self.shared.push(chunk);
            self.put_pending(open);
        }
    }
}
