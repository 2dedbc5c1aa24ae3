//! The log: the newest cookies of this producer, encoded once, numbered consecutively, and shared by all readers.
//!
//! # How it works
//!
//! Cookies are encoded in [`AppendBatch`]es and appended to one *open* buffer. The buffer is *sealed* when the next batch
//! would not fit, or when its first cookie is [`Config::chunk_age`] old (three times that while the buffer is small).
//! Sealing, by [`run_timers`] or an append, writes the first sequence number and the headers into the buffer in place, and
//! turns the buffer into an immutable [`Chunk`]. A chunk contains exactly the bytes that every stream sends. The *ring*
//! contains the newest chunks up to [`Config::bytes_max`]. Older ones are evicted, and stay in memory only while a stream
//! sends them.
//!
//! A [`Reader`] is a position in the ring and a maximum lag, without a queue. A chunk costs one wake-up per reader. A slow
//! reader does not affect others: if it exceeds its maximum lag, or its position was evicted, it skips forward and gets
//! the exact [`Delivery::Gap`].
//!
//! # Constraints
//!
//! - This module depends on neither HTTP nor gRPC. It uses the wire format of a chunk, because sealing *is* encoding.
//! - Sequence numbers start at 1 and have no gaps: the chunk that follows number `n` begins with `n + 1`.
//! - The time of a chunk never decreases, even if the system clock jumps back: "newest wins" compares it. A cookie that is
//!   appended late has an age relative to that time ([`Log::append_accepted`]).
//! - The time of a cookie is its acceptance time, or is earlier by at most the maximum chunk age. This is
//!   [`Config::chunk_age`] if the chunk already had 2 KiB, otherwise three times as much. A cookie is accepted when an append
//!   reads the clock under the lock, or when [`Log::now`] is called for it. A late sealing task cannot exceed the
//!   maximum, because each append compares the clock with the time of the open chunk. Consumers rely on this maximum to
//!   compare times of different producers.
//! - There are two locks, always taken in the order *open*, *ring*. Readers take only *ring*, for a few instructions, and are
//!   woken while neither is held. All appenders share *open*, which orders all cookies, and take it once per [`AppendBatch`].
//!   Taking it per cookie cost 8% of all CPU time at 800,000 cookies per second, mostly waiting for a preempted holder.
//! - After [`Log::close`], appends fail; readers get the remaining chunks and then [`Delivery::End`].
//!
//! # Memory
//!
//! The ring counts the allocated bytes of each chunk and its bookkeeping. A small chunk is copied into an allocation of its
//! size, so that chunks at low rates do not take 64 KiB each.

pub(crate) mod append_batch;
mod chunk;
mod deletions;
mod progress;
mod reader;
mod seal;

use std::{
    collections::VecDeque,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use proto::units::{Epoch, Sequence, UnixMicros};
use tokio::sync::{Notify, watch};

use self::seal::{Open, SealCounts};
pub use self::{
    append_batch::AppendBatch,
    chunk::Chunk,
    deletions::Deletion,
    progress::Progress,
    reader::{Delivery, GapReason, Reader},
};
use crate::locks::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// Size of a log, and when it seals chunks.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Identifies this run of the producer.
    pub epoch: Epoch,
    /// Maximum bytes of the ring.
    pub bytes_max: usize,
    /// Maximum size of a chunk message in bytes; see [`proto::limits::CHUNK_BYTES_DEFAULT`].
    pub chunk_bytes: usize,
    /// Age at which a chunk is sealed; three times this while it is small.
    pub chunk_age: Duration,
    /// Time without a delivery after which readers get [`Delivery::Idle`].
    pub idle_after: Duration,
}

/// The log is closed, because the producer is draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log is closed")]
pub struct Closed;

/// A handle to the log; clones share it.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<LogShared>,
}

#[derive(Debug)]
struct LogShared {
    config: Config,
    chunk_age_micros: u64,
    open: Mutex<Open>,
    ring: RwLock<Ring>,
    /// Wakes readers.
    head: watch::Sender<Head>,
    /// The latest [`UnixMicros`] returned or used.
    latest: AtomicU64,
    /// Wakes the sealing task when a cookie is appended to an empty buffer.
    opened: Notify,
}

/// The state that readers wait on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// The first sequence number of the next sealed chunk.
    next: Sequence,
    /// Number of intervals of [`Config::idle_after`] since the start.
    beat: u64,
    /// Whether the log is closed.
    closed: bool,
}

/// The range of sequence numbers in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The oldest sequence number; equal to `next` if the ring is empty.
    pub oldest: Sequence,
    /// The next sequence number to be sealed.
    pub next: Sequence,
}

/// Counters and sizes of a log, for metrics.
#[derive(Debug, Clone, Copy)]
pub struct Stats {
    /// Sequence numbers in the ring.
    pub span: Span,
    /// Cookies appended since start, sealed or not: the newest sequence number.
    pub appended: u64,
    /// The sequence number of the newest deletion; 0 without one.
    pub last_deletion: Sequence,
    /// Counters of sealed chunks.
    pub sealed: SealCounts,
    /// Bytes of the ring.
    pub bytes: usize,
    /// Maximum bytes of the ring.
    pub bytes_max: usize,
    /// Chunks in the ring.
    pub chunks: usize,
    /// Age of the oldest chunk: how long cookies are retained.
    pub retained: Duration,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<Arc<Chunk>>,
    bytes: usize,
}

impl Log {
    /// An empty log.
    pub fn new(config: Config) -> Self {
        Self::with_progress(config, None)
    }

    /// An empty log that reports its progress to `progress`.
    pub fn with_progress(config: Config, progress: Option<Box<dyn Progress>>) -> Self {
        let head = Head {
            next: Sequence::FIRST,
            beat: 0,
            closed: false,
        };
        let chunk_age_micros = u64::try_from(config.chunk_age.as_micros());
        let shared = LogShared {
            config,
            chunk_age_micros: chunk_age_micros.unwrap_or(u64::MAX / 3),
            open: Mutex::new(Open::new(config.chunk_bytes, progress)),
            ring: RwLock::new(Ring::default()),
            head: watch::channel(head).0,
            latest: AtomicU64::new(0),
            opened: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The epoch of all sequence numbers.
    pub fn epoch(&self) -> Epoch {
        self.shared.config.epoch
    }

    /// The current time of this log: the system time, but never decreasing. It is the acceptance time of cookies that are
    /// appended later by [`append_accepted`](Self::append_accepted). Takes no lock.
    pub fn now(&self) -> UnixMicros {
        self.shared
            .advance_clock(UnixMicros(runtime::unix_micros()))
    }

    /// The sequence numbers that readers can read now.
    pub fn span(&self) -> Span {
        self.shared.ring().span()
    }

    /// A position up to `bytes` of messages before `position`, at the start of a chunk if possible. It is neither before
    /// `floor` nor before the oldest chunk.
    pub fn rewind(&self, position: Sequence, bytes: usize, floor: Sequence) -> Sequence {
        self.shared.ring().rewind(position, bytes, floor)
    }

    /// For each position, the age of the oldest sealed cookie from there on, or zero. All ages refer to the same moment.
    pub fn ages(&self, positions: impl IntoIterator<Item = Sequence>) -> Vec<Duration> {
        let ring = self.shared.ring();
        let age = |position| {
            let chunk = ring.find(position);
            chunk.map_or(Duration::ZERO, |chunk| chunk.opened().elapsed())
        };
        positions.into_iter().map(age).collect()
    }

    /// Counters and sizes, for metrics.
    pub fn stats(&self) -> Stats {
        let open = self.shared.open();
        let ring = self.shared.ring();
        Stats {
            span: ring.span(),
            appended: open.newest().0,
            last_deletion: open.last_deletion,
            sealed: open.sealed,
            bytes: ring.bytes,
            bytes_max: self.shared.config.bytes_max,
            chunks: ring.chunks.len(),
            retained: ring
                .chunks
                .front()
                .map_or(Duration::ZERO, |chunk| chunk.opened().elapsed()),
        }
    }
}

impl LogShared {
    fn open(&self) -> MutexGuard<'_, Open> {
        // A panic under this lock is a bug in this module. The buffer is then still valid up to its last cookie, and
        // continuing loses less than stopping.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the clock of the log to `now` unless it is later already; returns it.
    fn advance_clock(&self, now: UnixMicros) -> UnixMicros {
        let latest = self.latest.fetch_max(now.0, Ordering::Relaxed);
        now.max(UnixMicros(latest))
    }

    /// The time that [`Log::now`] would return, without advancing the clock.
    fn peek_clock(&self) -> UnixMicros {
        let latest = self.latest.load(Ordering::Relaxed);
        UnixMicros(runtime::unix_micros().max(latest))
    }

    fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to the ring. The caller holds the lock of `open`, which keeps chunks in order.
    fn push(&self, chunk: Chunk) {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let evicted = ring.push(Arc::new(chunk), self.config.bytes_max);
        drop(ring);
        drop(evicted);
    }

    /// Wakes the readers; the caller holds no lock.
    fn publish(&self, next: Sequence) {
        self.head.send_if_modified(|head| {
            let newer = next > head.next;
            head.next = head.next.max(next);
            newer
        });
    }
}

impl Ring {
    /// Appends a chunk; returns evicted chunks.
    fn push(&mut self, chunk: Arc<Chunk>, bytes_max: usize) -> Vec<Arc<Chunk>> {
        self.bytes += chunk.bytes();
        self.chunks.push_back(chunk);
        let mut evicted = Vec::new();
        // The newest chunk is never evicted, so that a reader at the head always finds it.
        while self.bytes > bytes_max && self.chunks.len() > 1 {
            if let Some(oldest) = self.chunks.pop_front() {
                self.bytes -= oldest.bytes();
                evicted.push(oldest);
            }
        }
        evicted
    }

    /// Both ends at one moment. Readers see `next` later, because a chunk is published after the lock is released. In between,
    /// more chunks may be pushed, and this chunk may be evicted.
    fn span(&self) -> Span {
        match (self.chunks.front(), self.chunks.back()) {
            (Some(oldest), Some(newest)) => Span {
                oldest: oldest.first(),
                next: newest.last() + 1,
            },
            // No chunk was pushed yet; the newest is never evicted.
            _ => Span {
                oldest: Sequence::FIRST,
                next: Sequence::FIRST,
            },
        }
    }

    /// The chunk that contains this sequence number, or the oldest chunk if the number was evicted.
    fn find(&self, sequence: Sequence) -> Option<&Arc<Chunk>> {
        let at = self.chunks.partition_point(|chunk| chunk.last() < sequence);
        self.chunks.get(at)
    }

    /// The first start of a chunk in `min..next`, or `min` without one.
    fn boundary(&self, min: Sequence, next: Sequence) -> Sequence {
        let at = self.chunks.partition_point(|chunk| chunk.first() < min);
        let first = self.chunks.get(at).map(|chunk| chunk.first());
        first.filter(|&first| first < next).unwrap_or(min)
    }

    fn rewind(&self, position: Sequence, bytes: usize, floor: Sequence) -> Sequence {
        let end = self
            .chunks
            .partition_point(|chunk| chunk.first() < position);
        let mut left = bytes;
        let mut rewound = position;
        for chunk in self.chunks.range(..end).rev() {
            match left.checked_sub(chunk.wire().len()) {
                Some(rest) if chunk.last() >= floor => left = rest,
                _ => break,
            }
            rewound = chunk.first().max(floor).min(position);
        }
        rewound
    }
}

/// Seals buffers by age, and wakes idle readers, until the log is closed.
pub async fn run_timers(log: Log) {
    let mut beats = tokio::time::interval(log.shared.config.idle_after);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut head = log.shared.head.subscribe();
    let sealing = async {
        loop {
            match log.seal_due(Instant::now()) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => log.shared.opened.notified().await,
            }
        }
    };
    tokio::select! {
        () = sealing => {}
        () = async {
            loop {
                beats.tick().await;
                log.shared.head.send_modify(|head| head.beat += 1);
            }
        } => {}
        _ = head.wait_for(|head| head.closed) => {}
    }
}

#[cfg(test)]
#[cfg(not(interleavings))]
pub(crate) mod tests;
