//! One producer in the archive: its position, and what follows from each of its events.

use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use proto::{
    archive::Origin,
    units::{Epoch, Sequence, UnixMicros},
    v1::{EpochEnd, Tail, event::Event},
    wire::{ChunkRef, StreamMessage},
};
use tokio::time::Instant;

use super::{
    super::{
        Hole,
        cut::cut,
        hole::{begin, next},
        intervals::length,
        recoverer::ENDS_MAX,
    },
    Parts,
};
use crate::{
    batch::Cursor,
    clock,
    producers::{StreamGuard, StreamStart},
    subscription::{
        buffer::{Closed, Item},
        restarts::Restart,
    },
};

/// Number of earlier epochs of a producer of which messages are recognized.
const EARLIER_MAX: usize = 16;

/// Maximum sequence number. At a million cookies per second, a producer reaches it after nine years.
const NUMBER_MAX: u64 = 1 << 48;

/// Minimum time between two log entries about holes.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A producer.
#[derive(Debug)]
pub(super) struct Followed {
    /// Identifies its stream and its TTLs. Nobody connects to it.
    pub(super) key: SocketAddr,
    /// Earlier messages are before its position.
    pub(super) begin: u64,
    /// The position up to which its cookies were passed on; `None` before its first number.
    cursor: Option<Cursor>,
    /// Open until its `Goodbye`.
    stream: Option<StreamGuard>,
    earlier: Vec<Epoch>,
    /// The ends of earlier epochs, as stated by the next one.
    ends: Vec<EpochEnd>,
    has_duplicate: bool,
    pub(super) heard: Instant,
    logged: Option<Instant>,
}

impl Followed {
    /// The producer with this number, whose messages before `begin` are skipped.
    pub(super) fn new(number: u32, begin: u64, cursor: Option<Cursor>) -> Self {
        Self {
            key: (Ipv6Addr::from(u128::from(number)), 0).into(),
            begin,
            cursor,
            stream: None,
            earlier: Vec::new(),
            ends: Vec::new(),
            has_duplicate: false,
            heard: Instant::now(),
            logged: None,
        }
    }

    /// Passes on an event. Returns false if it is invalid.
    pub(super) async fn apply(
        &mut self,
        event: StreamMessage,
        origin: &Origin,
        parts: &Parts,
    ) -> Result<bool, Closed> {
        let (Some(first), Some(after)) = (begin(&event), next(&event).map(Sequence)) else {
            match event {
                StreamMessage::Event(Event::TimesToLive(ttls)) => {
                    parts.ttls.report(self.key, &ttls);
                }
                StreamMessage::Event(Event::EpochEnds(ends)) => {
                    self.ends = ends.ends.into_iter().take(ENDS_MAX).collect();
                }
                _ => parts.metrics.unknown_events.inc(),
            }
            return Ok(true);
        };
        let epoch = origin.epoch;
        let is_foreign = matches!(&event, StreamMessage::Chunk(it) if it.header().epoch != epoch);
        if is_foreign || first < Sequence::FIRST || after < first || after.0 > NUMBER_MAX {
            return Ok(false);
        }
        if self.earlier.contains(&epoch) {
            return self.late(event, origin, parts).await.map(|()| true);
        }
        let is_current = |it: &Cursor| it.epoch == epoch && self.stream.is_some();
        if !self.cursor.as_ref().is_some_and(is_current) {
            self.begin(first, origin, parts).await?;
        }
        let Some(mut cursor) = self.cursor.clone() else {
            return Ok(false);
        };
        let expected = cursor.sequence.next();
        let is_chunk = matches!(event, StreamMessage::Chunk(_));
        let reached = if is_chunk { first } else { after };
        if reached > expected {
            cursor.sequence = reached - 1;
            self.open_hole(expected, &cursor, parts).await?;
        }
        match event {
            StreamMessage::Chunk(chunk) => {
                parts.status.repeated(expected.min(after).since(first));
                if after > expected {
                    self.push_chunk(&chunk, expected.max(first), cursor, parts)
                        .await?;
                }
            }
            StreamMessage::Event(Event::Goodbye(_)) if after >= expected => {
                cursor.complete = true;
                self.push(Item::Cursor(cursor.clone()), cursor, parts)
                    .await?;
                self.stream = None;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Begins an epoch, or continues the one of the cursor.
    async fn begin(
        &mut self,
        first: Sequence,
        origin: &Origin,
        parts: &Parts,
    ) -> Result<(), Closed> {
        // Before another is opened.
        self.stream = None;
        let new = |sequence| Cursor {
            producer: (&*origin.producer_id).into(),
            epoch: origin.epoch,
            sequence,
            complete: false,
        };
        let (start, previous) = match self.cursor.take() {
            None => (new(first - 1), None),
            Some(known) if known.epoch == origin.epoch => (known, None),
            Some(known) => {
                self.earlier.truncate(EARLIER_MAX - 1);
                self.earlier.insert(0, known.epoch);
                (new(Sequence(0)), Some(known))
            }
        };
        let newest = start.sequence.max(first - 1);
        let at = StreamStart {
            at: &start,
            newest,
            previous: previous.as_ref(),
        };
        let (stream, observed) = parts.producers.open_stream(self.key, at);
        self.stream = Some(stream);
        let restart = previous.zip(observed).map(|(previous, observed)| Restart {
            tail: tail(&self.ends, &previous),
            previous,
            observed,
            new_epoch: origin.epoch,
        });
        let (producer, epoch) = (&*start.producer, start.epoch.0);
        tracing::info!(
            producer,
            epoch,
            from = start.sequence.next().0,
            "following a producer"
        );
        let item = Item::begin(restart, &start, &parts.metrics, true);
        self.push(item, start, parts).await
    }

    /// Opens a hole of the numbers from `first` up to a cursor.
    async fn open_hole(
        &mut self,
        first: Sequence,
        cursor: &Cursor,
        parts: &Parts,
    ) -> Result<(), Closed> {
        let range = first.0..=cursor.sequence.0;
        let (producer, epoch, last) = (&*cursor.producer, cursor.epoch.0, cursor.sequence.0);
        let is_due = self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if is_due {
            self.logged = Some(Instant::now());
            tracing::info!(
                producer,
                epoch,
                first = first.0,
                last,
                "hole in the archive"
            );
        }
        if let Some(stream) = &self.stream {
            stream.add_lost(length(&range), cursor.sequence);
        }
        let item = Item::Hole(Hole::gap(cursor, range), cursor.clone());
        self.push(item, cursor.clone(), parts).await
    }

    /// Passes on the cookies from number `first` on.
    async fn push_chunk(
        &mut self,
        chunk: &ChunkRef,
        first: Sequence,
        mut cursor: Cursor,
        parts: &Parts,
    ) -> Result<(), Closed> {
        let header = *chunk.header();
        cursor.sequence = header.last_sequence();
        cursor.complete = false;
        let part = if first == header.first_sequence {
            Some(chunk.clone())
        } else {
            cut(chunk, &(first.0..=cursor.sequence.0), UnixMicros::NONE).0
        };
        let id = Arc::clone(&cursor.producer);
        parts.producers.estimate_clock(&id, header.accepted);
        let Some(part) = part else { return Ok(()) };
        let age = Duration::from_micros(clock::now().since(header.accepted));
        let count = part.header().count.into();
        parts.metrics.received_seconds.observe(age, count);
        parts.buffer.push(Item::Chunk(id, part)).await?;
        if let Some(stream) = &mut self.stream {
            stream.advance(&cursor, Some(header.accepted));
        }
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Passes on a position.
    async fn push(&mut self, item: Item, cursor: Cursor, parts: &Parts) -> Result<(), Closed> {
        parts.buffer.push(item).await?;
        if let Some(stream) = &mut self.stream {
            stream.advance(&cursor, None);
        }
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Passes on cookies of an earlier epoch.
    async fn late(
        &mut self,
        event: StreamMessage,
        origin: &Origin,
        parts: &Parts,
    ) -> Result<(), Closed> {
        let producer = &*origin.producer_id;
        parts.metrics.duplicate_producers.inc();
        if !std::mem::replace(&mut self.has_duplicate, true) {
            tracing::error!(
                producer,
                epoch = origin.epoch.0,
                "two producers have the same id, so cookies of one of them are missing after an error; give each producer its own --id"
            );
        }
        match event {
            StreamMessage::Chunk(chunk) => {
                parts.buffer.push(Item::Late(producer.into(), chunk)).await
            }
            _ => Ok(()),
        }
    }
}

/// The number of cookies after a cursor, and in the epochs that follow it, by the recorded ends of epochs.
fn tail(ends: &[EpochEnd], cursor: &Cursor) -> Option<Tail> {
    let at = ends.iter().position(|end| end.epoch == cursor.epoch.0)?;
    let (mut cookies_max, mut received) = (0_u64, cursor.sequence.0);
    for end in &ends[at..] {
        // Unknown if the cursor is beyond the recorded end.
        cookies_max = cookies_max.checked_add(end.last_sequence.checked_sub(received)?)?;
        received = 0;
    }
    let exact = ends[at..].iter().all(|end| end.exact);
    Some(Tail { cookies_max, exact })
}
