//! A simulated archive, which the real archivers write. It is sometimes unavailable to writers and readers. Sometimes it stores a message
//! without acknowledging it, at once or after later ones, and it recognizes only recent messages that it has stored before.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use consumer::recovery::archive::{Archive, Info, Message, Messages};
use futures_util::{StreamExt as _, stream};
use producer::archive::{self, Publisher};
use proto::{
    archive::{Events, Origin},
    units::UnixMicros,
    wire::StreamMessage,
};
use runtime::connect::ArchiveError;
use tokio::{task::JoinSet, time::sleep};

use crate::UNPOISONED;

/// One in this number of reads fails. A message has three chances: to be lost, to be stored late, and to be stored without an acknowledgement.
const FAILURES: u32 = 150;

/// Number of the newest messages whose ids the archive remembers: an older one is stored twice.
const REMEMBERED: usize = 5;

/// Maximum time after which a message is stored that was not acknowledged.
const LATE_MAX_MILLIS: u64 = 2_000;

/// Maximum number of messages of a read.
const READ_MAX: usize = 100;

/// Maximum time of half of a round trip.
const LATENCY_MAX_MILLIS: u64 = 20;

/// How soon a follower finds a new message.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The messages; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimArchive(Arc<Mutex<Vec<archive::Message>>>);

impl SimArchive {
    /// The last number of a producer's epoch that is archived, or 0.
    pub(crate) fn last_number(&self, origin: &Origin) -> u64 {
        let subject = origin.subject();
        let messages = self.0.lock().expect(UNPOISONED);
        let own = messages.iter().filter(|it| it.subject == subject);
        let events = own.flat_map(|it| Events::new(it.payload.clone()));
        let last = events.filter_map(|event| match event.expect("archivers are correct") {
            StreamMessage::Chunk(chunk) => Some(chunk.header().last_sequence().0),
            _ => None,
        });
        last.max().unwrap_or_default()
    }

    fn store(&self, message: archive::Message) {
        let mut messages = self.0.lock().expect(UNPOISONED);
        let mut remembered = messages.iter().rev().take(REMEMBERED);
        if remembered.all(|it| it.id != message.id) {
            messages.push(message);
        }
    }

    /// The messages of a subject at or after a position, which begin at 1.
    fn messages(&self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        fail()?;
        let messages = self.0.lock().expect(UNPOISONED);
        let id = subject.strip_suffix('*');
        let is_of = |of: &str| of == subject || id.is_some_and(|id| of.starts_with(id));
        let found = (1..).zip(&*messages);
        let found = found.filter(|(at, it)| *at >= position && is_of(&it.subject));
        let found = found.map(|(position, it)| Message {
            position,
            archived: UnixMicros::NONE,
            subject: it.subject.clone(),
            is_known_version: true,
            payload: it.payload.clone(),
        });
        Ok(found.take(READ_MAX).collect())
    }
}

/// The connection of a producer to an archive.
#[derive(Debug)]
pub(crate) struct SimPublisher {
    pub(crate) archive: SimArchive,
    /// Messages that are stored later.
    pub(crate) late: JoinSet<()>,
}

impl Publisher for SimPublisher {
    async fn publish(&mut self, message: &archive::Message) -> Result<(), ArchiveError> {
        latency().await;
        fail()?;
        if let Err(error) = fail() {
            let (archive, message) = (self.archive.clone(), message.clone());
            self.late.spawn(async move {
                sleep(Duration::from_millis(fastrand::u64(..LATE_MAX_MILLIS))).await;
                archive.store(message);
            });
            return Err(error);
        }
        self.archive.store(message.clone());
        latency().await;
        fail()
    }
}

async fn latency() {
    sleep(Duration::from_millis(fastrand::u64(..LATENCY_MAX_MILLIS))).await;
}

fn fail() -> Result<(), ArchiveError> {
    match fastrand::u32(..FAILURES) {
        0 => Err(ArchiveError::Unavailable("simulated".to_owned())),
        _ => Ok(()),
    }
}

#[async_trait]
impl Archive for SimArchive {
    async fn check(&mut self) -> Result<Info, ArchiveError> {
        fail()?;
        Ok(Info {
            last_position: self.0.lock().expect(UNPOISONED).len() as u64,
            ..Info::default()
        })
    }

    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError> {
        Ok(self.messages(subject, position)?.into_iter().next())
    }

    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        self.messages(subject, position)
    }

    async fn follow(&mut self, position: u64) -> Result<Messages, ArchiveError> {
        fail()?;
        let next = async |(archive, position): (Self, u64)| {
            loop {
                match archive
                    .messages("*", position)
                    .map(|all| all.into_iter().next())
                {
                    Ok(None) => sleep(POLL_INTERVAL).await,
                    Ok(Some(next)) => return Some((Ok(next), (archive, position + 1))),
                    Err(error) => return Some((Err(error), (archive, position))),
                }
            }
        };
        Ok(stream::unfold((self.clone(), position), next).boxed())
    }
}
