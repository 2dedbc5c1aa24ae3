//! Reads everything from the archive, in place of streams of the producers (`--archive-mode follow`).
//!
//! The follower reads the messages of all producers in the order of the archive, and passes them to the buffer as streams do. The positions
//! in the store are those of streams: only sequence numbers of producers, never positions in the archive. So a consumer can be restarted
//! in the other mode at any time.
//!
//! # How it works
//!
//! - The first message to read is that after the oldest position of any producer. What another producer has archived before its own
//!   position is skipped. A node without positions begins at the end of the archive, and raises the floor of its deletions: it does
//!   not know earlier ones, which may cover cookies that a producer has delayed.
//! - Numbers that are missing, because the archive skips them or has a `Gap`, open a hole, which the recoverer closes.
//! - A new epoch of a producer is a restart. If a message of the previous epoch follows, two producers have the same id. Its cookies
//!   are stored, but no position advances.
//! - After an error, reading continues behind the last message. If the archive was created again, or has lost its end, the positions are
//!   searched for again.
//!
//! # Constraints
//!
//! Everything in the archive is untrusted. Messages that are invalid are counted and skipped, and the number of producers is bounded. Memory:
//! about 4 MiB of messages, and the state of each producer.

mod followed;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use proto::{archive::Origin, limits::CURSORS_MAX, v1::TimesToLive};
use tokio::time::{Instant, sleep};

use followed::Followed;

use super::{
    Status,
    archive::{Archive, ArchiveError, Info, Message},
    hole::next,
    reader::{events, last_at, numbered},
};
use crate::{
    backoff::Backoff,
    batch::Cursor,
    clock,
    deletions::{Deletion, Deletions},
    metrics,
    producers::Producers,
    store::Upkeep,
    subscription::buffer::{BufferWriter, Closed},
    ttl::Ttls,
};

/// Time without a message after which a producer no longer exists.
const SILENT_MAX: Duration = Duration::from_secs(3600);

/// Interval of searches for such producers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum delay of an attempt after an error.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The task that follows the archive.
#[derive(Debug)]
pub struct Follower {
    archive: Box<dyn Archive>,
    parts: Parts,
    /// Stores the floor.
    upkeep: Arc<dyn Upkeep>,
    deletions: Deletions,
    /// The archive, and the position of the next message in it.
    reached: Option<(Info, u64)>,
    /// Positions behind the cursors of producers, when they were last searched for. All others are at the end.
    begin: HashMap<Arc<str>, u64>,
    followed: HashMap<Arc<str>, Followed>,
    /// Number of producers so far.
    found: u32,
    swept: Instant,
}

/// What the follower updates.
#[derive(Debug)]
pub struct Parts {
    /// The table of producers.
    pub producers: Producers,
    /// Input of the sink.
    pub buffer: BufferWriter,
    /// TTLs, which reports of the producers may shorten.
    pub ttls: Ttls,
    /// State of the archive.
    pub status: Status,
    /// Metrics of streams.
    pub metrics: metrics::Subscription,
}

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Follower {
    /// A follower that begins after the cursors of the table of producers.
    pub fn new(
        archive: Box<dyn Archive>,
        parts: Parts,
        upkeep: Arc<dyn Upkeep>,
        deletions: Deletions,
    ) -> Self {
        Self {
            archive,
            parts,
            upkeep,
            deletions,
            reached: None,
            begin: HashMap::new(),
            followed: HashMap::new(),
            found: 0,
            swept: Instant::now(),
        }
    }

    /// Reads until the buffer is closed, or the future is dropped.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), RETRY_MAX);
        loop {
            let before = self.reached.map(|(_, next)| next);
            match self.read().await {
                Ok(never) => match never {},
                Err(Ended::Closed(_)) => return,
                Err(Ended::Archive(error)) => self.parts.status.set_followed(Some(&error)),
            }
            if self.reached.map(|(_, next)| next) != before {
                backoff.reset();
            }
            sleep(backoff.delay()).await;
        }
    }

    async fn read(&mut self) -> Result<std::convert::Infallible, Ended> {
        let info = self.archive.check().await?;
        let known = self.reached.filter(|(known, next)| {
            known.created == info.created && *next <= info.last_position.saturating_add(1)
        });
        let next = match known {
            Some((_, next)) => next,
            None => self.search(&info).await?,
        };
        self.reached = Some((info, next));
        if let Some(newest) = info.newest.filter(|_| next > info.last_position) {
            self.parts.status.read(newest);
        }
        let mut messages = self.archive.follow(next).await?;
        self.parts.status.set_followed(None);
        loop {
            let message = messages.next().await.unwrap_or_else(|| {
                let error = "the archive has ended".to_owned();
                Err(ArchiveError::Unavailable(error))
            })?;
            if self.apply(&message).await? {
                self.parts.status.read(message.archived);
            } else {
                self.parts.status.rejected();
            }
            self.reached = Some((info, message.position.saturating_add(1)));
        }
    }

    /// Searches for the first message that this node may not have.
    async fn search(&mut self, info: &Info) -> Result<u64, Ended> {
        self.begin.clear();
        self.withdraw(|_| true);
        let end = info.last_position.saturating_add(1);
        let cursors = self.parts.producers.cursors();
        if cursors.is_empty() && !self.deletions.is_copying() {
            self.raise_floor().await?;
        }
        let (mut start, mut received) = (end, 0);
        for cursor in cursors {
            let (last, next) = self.search_cursor(&cursor, info.last_position).await?;
            received = received.max(last.unwrap_or_default());
            start = start.min(next.unwrap_or(end));
            self.begin.insert(cursor.producer, next.unwrap_or(end));
        }
        if received > 0 {
            // Producers that this node does not know may have archived something since.
            start = start.min(received + 1);
        }
        tracing::info!(position = start, end, "following the archive");
        Ok(start)
    }

    /// The positions of the message with the last received number of a producer, and of the first message after it.
    async fn search_cursor(
        &mut self,
        cursor: &Cursor,
        last_position: u64,
    ) -> Result<(Option<u64>, Option<u64>), ArchiveError> {
        let archive = &mut *self.archive;
        let subject = Origin {
            producer_id: cursor.producer.to_string(),
            epoch: cursor.epoch,
        };
        let subject = subject.subject();
        let (id, _) = subject.rsplit_once('.').unwrap_or_default();
        let all = format!("{id}.*");
        let number = cursor.sequence;
        let (mut last, mut from) = (None, 0);
        if let Some((first, _)) = numbered(archive, &subject, 0).await? {
            let at = last_at(archive, &subject, first, number, last_position).await?;
            let behind = last_at(archive, &subject, at, number.next(), last_position).await?;
            let message = archive.first(&subject, behind).await?;
            let events = message.and_then(|it| events(&it)).unwrap_or_default();
            let has_more = events.iter().filter_map(next).max() > Some(number.next().0);
            last = Some(at);
            from = if has_more { behind } else { behind + 1 };
        }
        let next = archive.first(&all, from).await?;
        Ok((last, next.map(|it| it.position)))
    }

    /// Rejects cookies that were accepted before now, because this node does not know the deletions that cover them.
    async fn raise_floor(&mut self) -> Result<(), ArchiveError> {
        let floor = clock::now();
        self.deletions.add(&Deletion::floor(floor));
        let stored = self.upkeep.remove_deletions_until(floor).await;
        stored.map_err(|error| ArchiveError::Unavailable(format!("waiting for the store: {error}")))
    }

    /// Passes on what a message has. Returns false if it is invalid.
    async fn apply(&mut self, message: &Message) -> Result<bool, Closed> {
        let origin = Origin::parse(&message.subject);
        let Some((origin, events)) = origin.zip(events(message)) else {
            return Ok(false);
        };
        if self.swept.elapsed() >= SWEEP_INTERVAL {
            self.swept = Instant::now();
            self.withdraw(|it| it.heard.elapsed() >= SILENT_MAX);
        }
        let id = &*origin.producer_id;
        if !self.followed.contains_key(id) {
            if self.followed.len() >= CURSORS_MAX {
                return Ok(false);
            }
            self.found += 1;
            let begin = self.begin.get(id).copied().unwrap_or_default();
            let followed = Followed::new(self.found, begin, self.parts.producers.cursor(id));
            self.followed.insert(id.into(), followed);
        }
        let Some(followed) = self.followed.get_mut(id) else {
            return Ok(false);
        };
        followed.heard = Instant::now();
        if message.position < followed.begin {
            return Ok(true);
        }
        self.parts
            .metrics
            .bytes
            .inc_by(message.payload.len() as u64);
        for event in events {
            if !followed.apply(event, &origin, &self.parts).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes producers, and their TTLs.
    fn withdraw(&mut self, is_removed: impl Fn(&Followed) -> bool) {
        for (_, it) in self.followed.extract_if(|_, it| is_removed(it)) {
            self.parts.ttls.report(it.key, &TimesToLive::default());
        }
    }
}
