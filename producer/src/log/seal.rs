//! The open buffer: appending to it, and when it is sealed into a chunk (by size, by age, or at the end).

use std::{
    mem,
    time::{Duration, Instant},
};

use bytes::Bytes;
use proto::{
    limits::AGE_MICROS_MAX,
    wire::{self, ChunkHeader, CookieRef},
};

use super::{AppendBatch, Closed, Head, Log, Progress, Sequence, Shared, chunk::Chunk};

/// A buffer below this size waits three times as long: about 30 cookies, which 1,000 a second bring in that time.
const SMALL_BYTES: usize = 2 * 1024;

/// The buffer that cookies are appended to: the next chunk.
#[derive(Debug)]
pub(super) struct Open {
    buffer: Vec<u8>,
    count: u32,
    first_sequence: Sequence,
    accepted_unix_micros: u64,
    opened: Instant,
    closed: bool,
    /// Is told how far this log gets.
    progress: Option<Box<dyn Progress>>,
    /// The last sequence that may be given out before `progress` must be asked again.
    reserved: Sequence,
    pub(super) sealed_bytes: u64,
    pub(super) sealed_by_size: u64,
    pub(super) sealed_by_age: u64,
    pub(super) sealed_by_drain: u64,
}

impl Open {
    pub(super) fn new(chunk_bytes: usize, progress: Option<Box<dyn Progress>>) -> Self {
        Self {
            buffer: empty_buffer(chunk_bytes),
            count: 0,
            first_sequence: 1,
            accepted_unix_micros: 0,
            opened: Instant::now(),
            closed: false,
            reserved: if progress.is_some() { 0 } else { Sequence::MAX },
            progress,
            sealed_bytes: 0,
            sealed_by_size: 0,
            sealed_by_age: 0,
            sealed_by_drain: 0,
        }
    }

    /// The sequence the next sealed chunk will begin with.
    pub(super) fn next_sequence(&self) -> Sequence {
        self.first_sequence
    }

    /// Cookies appended so far.
    pub(super) fn appended(&self) -> u64 {
        self.first_sequence - 1 + u64::from(self.count)
    }

    /// Makes sure that `count` more sequences may be given out.
    fn reserve(&mut self, count: u32) {
        let last = self.appended() + u64::from(count);
        if last > self.reserved
            && let Some(progress) = &mut self.progress
        {
            self.reserved = progress.reserve(last);
        }
    }

    /// Reports the last sequence, when nothing is open.
    fn settle(&mut self) {
        let last = self.appended();
        if let Some(progress) = &mut self.progress {
            self.reserved = progress.settle(last);
        }
    }

    /// Gives the chunk its time if this is its first cookie.
    fn begin(&mut self, now: u64, shared: &Shared) {
        if self.count == 0 {
            self.opened = Instant::now();
            self.accepted_unix_micros = now;
            shared.tell(now);
        }
    }

    /// The cookie as a chunk of this time has it, if it was accepted at `accepted`.
    fn aged<'a>(&self, cookie: CookieRef<'a>, accepted: u64) -> CookieRef<'a> {
        let age_micros = self.accepted_unix_micros.saturating_sub(accepted);
        CookieRef {
            age_micros: age_micros.min(AGE_MICROS_MAX),
            ..cookie
        }
    }

    /// How many times [`Config::chunk_age`](super::Config) the first cookie waits: three while the buffer is small.
    ///
    /// A chunk costs each subscriber the same few microseconds whether it holds five cookies or a thousand. At 500
    /// cookies a second and 50 subscribers, waiting for 30 ms instead of 10 saves two fifths of all CPU.
    fn ages_max(&self) -> u64 {
        if self.buffer.len() < SMALL_BYTES {
            3
        } else {
            1
        }
    }

    /// Turns what is in the buffer into a chunk; `None` when it is empty.
    fn seal(&mut self, epoch: u64, chunk_bytes: usize) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let header = ChunkHeader {
            epoch,
            first_sequence: self.first_sequence,
            count: self.count,
            accepted_unix_micros: self.accepted_unix_micros,
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
        self.sealed_bytes += wire.len() as u64;
        self.first_sequence += u64::from(self.count);
        self.count = 0;
        Some(Chunk::new(header, self.opened, wire, allocated))
    }
}

fn empty_buffer(chunk_bytes: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(chunk_bytes + wire::TAILROOM_BYTES);
    buffer.resize(wire::HEADROOM_BYTES, 0);
    buffer
}

impl Log {
    /// Appends the cookies of `batch` and empties it; when this returns, they are in the log.
    ///
    /// Costs one lock, one reading of the clock and one copy for the batch; for each chunk, one allocation and the wake-up
    /// of all readers.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`], unless the batch is empty; the batch is then unchanged.
    pub fn append(&self, batch: &mut AppendBatch) -> Result<(), Closed> {
        if batch.is_empty() {
            return Ok(());
        }
        self.append_by(|open, now| {
            self.make_room(open, batch.encoded().len());
            open.begin(now, &self.shared);
            open.reserve(batch.count());
            open.buffer.extend_from_slice(batch.encoded());
            open.count += batch.count();
        })?;
        batch.clear();
        Ok(())
    }

    /// Appends cookies that were accepted before they come here, each with when that was, in microseconds since the Unix
    /// epoch; when this returns, they are in the log, in this order.
    ///
    /// The time is one that [`Log::unix_micros`] told, here or in an earlier epoch. Each cookie gets the age that makes its
    /// chunk's time this one, whatever age it has here. A time later than the chunk's counts as that, so that no cookie
    /// looks newer than one that was appended with it: a time told here by at most the age of a chunk. One more than
    /// [`AGE_MICROS_MAX`] earlier counts as so much earlier.
    ///
    /// They may be any number: chunks are sealed as they fill. But the iterator runs under the lock, which all of them take
    /// once, so someone with thousands hands over some hundreds at a time.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`], unless there are none; none of them is then in the log.
    pub fn append_accepted<'a>(
        &self,
        cookies: impl IntoIterator<Item = (CookieRef<'a>, u64)>,
    ) -> Result<(), Closed> {
        let mut cookies = cookies.into_iter().peekable();
        if cookies.peek().is_none() {
            return Ok(());
        }
        self.append_by(|open, now| {
            for (cookie, accepted) in cookies {
                self.make_room(open, wire::cookie_bytes(&open.aged(cookie, accepted)));
                open.begin(now, &self.shared);
                open.reserve(1);
                let aged = open.aged(cookie, accepted);
                wire::put_cookie(&mut open.buffer, &aged);
                open.count += 1;
            }
        })
    }

    /// Calls `append`, which appends at least one cookie, with the open buffer and the time, under its lock.
    ///
    /// Seals the open chunk first if it is due: the task that calls [`Log::seal_due`] may be late. After the process stood
    /// still, the requests in its sockets may be handled before its timers, and they must not get the time of a chunk that
    /// was opened before.
    ///
    /// The age is measured by the clock that orders cookies, because the monotonic clock may stop with a virtual machine. If
    /// the system's clock jumps forward, a chunk is sealed early. If it jumps back, the time of this log stands still, so
    /// a new chunk would get the same time; the sealing task, which uses the monotonic clock, still delivers the cookies.
    fn append_by(&self, append: impl FnOnce(&mut Open, u64)) -> Result<(), Closed> {
        let shared = &*self.shared;
        let mut open = shared.open();
        if open.closed {
            return Err(Closed);
        }
        let now = shared.now();
        let (first, was_empty) = (open.first_sequence, open.count == 0);
        let age_micros = now.saturating_sub(open.accepted_unix_micros);
        if !was_empty && age_micros > shared.chunk_age_micros * open.ages_max() {
            open.sealed_by_age += 1;
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

    /// Seals what is open if `bytes` more would not fit.
    fn make_room(&self, open: &mut Open, bytes: usize) {
        if open.count > 0 && open.buffer.len() + bytes > self.shared.config.chunk_bytes {
            open.sealed_by_size += 1;
            self.seal(open);
        }
    }

    /// Seals the open buffer if it is old enough. Returns how long to wait before looking again, `None` when the buffer
    /// is empty.
    pub(super) fn seal_due(&self, now: Instant) -> Option<Duration> {
        let mut open = self.shared.open();
        if open.count == 0 {
            return None;
        }
        let age = now.saturating_duration_since(open.opened);
        let chunk_age = self.shared.config.chunk_age;
        if age.as_micros() < (self.shared.chunk_age_micros * open.ages_max()).into() {
            // A buffer that is small now may have grown when the first age is over.
            let until_next_look = chunk_age.checked_sub(age);
            return Some(
                until_next_look
                    .filter(|wait| !wait.is_zero())
                    .unwrap_or(chunk_age),
            );
        }
        open.sealed_by_age += 1;
        self.seal(&mut open);
        open.settle();
        let next = open.next_sequence();
        drop(open);
        self.shared.publish(next);
        None
    }

    /// Seals what is open and refuses all further appends. Readers get the rest, then the end.
    pub fn close(&self) {
        let mut open = self.shared.open();
        open.closed = true;
        open.sealed_by_drain += u64::from(open.count > 0);
        self.seal(&mut open);
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

    /// Seals the buffer and pushes it to the ring; the next sequence is to be published after the lock is released.
    fn seal(&self, open: &mut Open) {
        let config = &self.shared.config;
        if let Some(chunk) = open.seal(config.epoch, config.chunk_bytes) {
            self.shared.push(chunk);
        }
    }
}
