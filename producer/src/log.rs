//! The log: the newest cookies of this producer, encoded once, numbered without gaps, and shared by all readers.
//!
//! # How it works
//!
//! Cookies are encoded in [`AppendBatch`]s and appended to one *open* buffer. The buffer is *sealed* when the next batch
//! would not fit, or when its first cookie is [`Config::chunk_age`] old, or three times that while it is small: by the
//! task of [`run_timers`], or by the next append where that comes first.
//! Sealing writes the first sequence and the headers into the buffer, in place, and turns it into an immutable
//! [`Chunk`]: exactly the bytes that every stream will send. The *ring* keeps the newest chunks up to
//! [`Config::bytes_max`]; older ones are evicted, and stay in memory only while a stream still sends them.
//!
//! A [`Reader`] is a position in the ring and a bound, without a queue of its own: a chunk costs one wake-up for each
//! reader, and a slow reader costs the others nothing. A reader that is further behind than its bound, or than the ring
//! reaches back, skips forward and gets the exact [`Delivery::Gap`].
//!
//! # Constraints
//!
//! - This module knows neither HTTP nor gRPC. It knows the wire format of a chunk, because sealing *is* encoding.
//! - Sequences start at 1 and have no gaps: the chunk that follows sequence `n` begins with `n + 1`.
//! - The time of a chunk never decreases, even if the system's clock jumps back: "newest wins" compares it. A cookie that
//!   comes late has an age before that time ([`Log::append_accepted`]).
//! - The time of a cookie is at most the age of a chunk before its acceptance, and never after it: three times
//!   [`Config::chunk_age`], or once that if the chunk already held 2 KiB. A cookie is accepted when an append
//!   reads the clock under the lock, or when [`Log::unix_micros`] is called for it. This holds however late the sealing
//!   task is, because each append compares the clock with the time of the open chunk. Consumers compare the times of
//!   different producers and rely on this.
//! - Two locks, always taken in the order *open*, *ring*; readers take only *ring*, for a few instructions; wake-ups
//!   happen under neither. All appenders share one lock, which gives all cookies one order, and sealing one place. They
//!   take it once for each [`AppendBatch`]: taking it for each cookie cost a twelfth of all CPU at 800 k/s, most of it spent
//!   waiting for a holder that had been preempted.
//! - After [`Log::close`] nothing can be appended; readers get the rest and then [`Delivery::End`].
//!
//! # Memory
//!
//! The ring counts the allocated bytes of each chunk and its bookkeeping. A chunk that is sealed by age, hence small,
//! is copied into an allocation of its own size, so that chunks of quiet hours do not take 64 KiB each.

pub(crate) mod append_batch;
mod chunk;
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

use tokio::sync::{Notify, watch};

use self::seal::Open;
pub use self::{
    append_batch::AppendBatch,
    chunk::Chunk,
    progress::Progress,
    reader::{Delivery, GapReason, Reader},
};
use crate::locks::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// The number of a cookie within an epoch; the first is 1.
pub type Sequence = u64;

/// What a log may hold and when it seals.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Identifies this run of the producer.
    pub epoch: u64,
    /// Most bytes the ring holds.
    pub bytes_max: usize,
    /// Largest message of a chunk, in bytes; see [`proto::limits::CHUNK_BYTES_DEFAULT`].
    pub chunk_bytes: usize,
    /// How long a cookie waits for its chunk to be sealed; three times as long while the chunk is small.
    pub chunk_age: Duration,
    /// How long nothing must have happened before readers get [`Delivery::Idle`].
    pub idle_after: Duration,
}

/// The log is closed: the producer drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log is closed")]
pub struct Closed;

/// A handle to the log; clones share it.
#[derive(Debug, Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    chunk_age_micros: u64,
    open: Mutex<Open>,
    ring: RwLock<Ring>,
    /// Wakes readers when there is something for them.
    head: watch::Sender<Head>,
    /// The latest time told to anyone, in microseconds since the Unix epoch.
    latest: AtomicU64,
    /// Wakes the sealing task when the open buffer gets its first cookie.
    opened: Notify,
}

/// What readers wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// The sequence the next sealed chunk will begin with.
    next: Sequence,
    /// Counts intervals of [`Config::idle_after`].
    beat: u64,
    /// Nothing follows `next`.
    closed: bool,
}

/// The range of sequences a log holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The oldest sequence held; equal to `next` when none is.
    pub oldest: Sequence,
    /// The sequence the next sealed cookie will get.
    pub next: Sequence,
}

/// Figures of a log, for metrics.
#[derive(Debug, Clone, Copy)]
pub struct Stats {
    /// What it holds.
    pub span: Span,
    /// Cookies appended since start, sealed or not.
    pub appended: u64,
    /// Bytes of the chunks sealed since start, as sent to a subscriber.
    pub sealed_bytes: u64,
    /// Chunks sealed since start because they were full.
    pub sealed_by_size: u64,
    /// Chunks sealed since start because of their age.
    pub sealed_by_age: u64,
    /// Chunks sealed because the log was closed: one at most.
    pub sealed_by_drain: u64,
    /// Bytes the ring holds.
    pub bytes: usize,
    /// Most bytes the ring may hold.
    pub bytes_max: usize,
    /// Chunks the ring holds.
    pub chunks: usize,
    /// Age of the oldest chunk held: for how long cookies are retained.
    pub retained: Duration,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<Arc<Chunk>>,
    bytes: usize,
}

impl Log {
    /// An empty log.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with_progress(config, None)
    }

    /// An empty log that reports its progress to `progress`.
    #[must_use]
    pub fn with_progress(config: Config, progress: Option<Box<dyn Progress>>) -> Self {
        let head = Head {
            next: 1,
            beat: 0,
            closed: false,
        };
        let chunk_age_micros = u64::try_from(config.chunk_age.as_micros());
        let shared = Shared {
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

    /// The epoch of all sequences here.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.config.epoch
    }

    /// The time by which this log orders cookies, in microseconds since the Unix epoch: the system's, but it never goes
    /// back. What is accepted now and appended later by [`append_accepted`](Self::append_accepted) is of this time. Takes
    /// no lock.
    #[must_use]
    pub fn unix_micros(&self) -> u64 {
        self.shared.unix_micros()
    }

    /// The sequences that readers can get now.
    #[must_use]
    pub fn span(&self) -> Span {
        self.shared.ring().span()
    }

    /// A position at most `bytes` of messages before `position`, at the beginning of a chunk if possible, and neither
    /// before `floor` nor before what the ring holds.
    #[must_use]
    pub fn rewind(&self, position: Sequence, bytes: usize, floor: Sequence) -> Sequence {
        self.shared.ring().rewind(position, bytes, floor)
    }

    /// A reader of everything from `position` on. A reader that is more than `queue_cookies_max` behind skips forward.
    /// This bound applies once the reader has come to `until`, or once it has been within the bound.
    #[must_use]
    pub fn reader(&self, position: Sequence, queue_cookies_max: u64, until: Sequence) -> Reader {
        Reader::new(Arc::clone(&self.shared), position, queue_cookies_max, until)
    }

    /// For each position, the age of the oldest sealed cookie from there on, zero if there is none; all taken at one
    /// moment.
    #[must_use]
    pub fn ages(&self, positions: impl IntoIterator<Item = Sequence>) -> Vec<Duration> {
        let ring = self.shared.ring();
        let age = |position| {
            let chunk = ring.find(position);
            chunk.map_or(Duration::ZERO, |chunk| chunk.opened().elapsed())
        };
        positions.into_iter().map(age).collect()
    }

    /// Figures for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let open = self.shared.open();
        let ring = self.shared.ring();
        Stats {
            span: ring.span(),
            appended: open.appended(),
            sealed_bytes: open.sealed_bytes,
            sealed_by_size: open.sealed_by_size,
            sealed_by_age: open.sealed_by_age,
            sealed_by_drain: open.sealed_by_drain,
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

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        // A panic under this lock would be a bug in this module. The buffer is then still intact up to its last cookie,
        // and continuing loses less than stopping.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unix_micros(&self) -> u64 {
        self.tell(runtime::unix_micros())
    }

    /// Makes sure that no time told from now on is before `now`; returns the latest.
    fn tell(&self, now: u64) -> u64 {
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Like [`unix_micros`](Self::unix_micros), but the time is not told to anyone unless [`tell`](Self::tell) says so.
    fn now(&self) -> u64 {
        runtime::unix_micros().max(self.latest.load(Ordering::Relaxed))
    }

    fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to the ring; the caller holds `open`, so chunks arrive in order.
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
    /// Appends a chunk and returns those that no longer fit.
    fn push(&mut self, chunk: Arc<Chunk>, bytes_max: usize) -> Vec<Arc<Chunk>> {
        self.bytes += chunk.bytes();
        self.chunks.push_back(chunk);
        let mut evicted = Vec::new();
        // The newest chunk stays whatever its size, so that a reader at the head always finds it.
        while self.bytes > bytes_max && self.chunks.len() > 1 {
            if let Some(oldest) = self.chunks.pop_front() {
                self.bytes -= oldest.bytes();
                evicted.push(oldest);
            }
        }
        evicted
    }

    /// Both ends at one moment. Readers learn of `next` a moment later: a chunk is published after the lock is released
    /// under which it was pushed, and meanwhile more may be pushed and this chunk evicted.
    fn span(&self) -> Span {
        match (self.chunks.front(), self.chunks.back()) {
            (Some(oldest), Some(newest)) => Span {
                oldest: oldest.first(),
                next: newest.last() + 1,
            },
            // Once there is a chunk, the newest never leaves.
            _ => Span { oldest: 1, next: 1 },
        }
    }

    /// The chunk that holds `sequence`, or the oldest when `sequence` is older than all.
    fn find(&self, sequence: Sequence) -> Option<&Arc<Chunk>> {
        let at = self.chunks.partition_point(|chunk| chunk.last() < sequence);
        self.chunks.get(at)
    }

    /// The first sequence of `least..next` at which a chunk begins; `least` itself when none does.
    fn boundary(&self, least: Sequence, next: Sequence) -> Sequence {
        let at = self.chunks.partition_point(|chunk| chunk.first() < least);
        let begins = self.chunks.get(at).map(|chunk| chunk.first());
        begins.filter(|&first| first < next).unwrap_or(least)
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

/// Seals buffers by age and wakes readers when nothing happens, until the log is closed.
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
