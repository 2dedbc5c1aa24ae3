//! A simulated archive: it has each event of a producer's log as soon as the event is sealed, and is sometimes unavailable to readers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use consumer::recovery::archive::{Archive, ArchiveError, Info, Message, Messages};
use futures_util::{StreamExt as _, stream};
use producer::log::{Delivery, Log};
use proto::{
    archive::Origin,
    units::{Sequence, UnixMicros},
};
use tokio::time::sleep;

use crate::UNPOISONED;

/// One in this number of calls fails.
const FAILURES: u32 = 60;

/// Maximum number of messages of a read.
const READ_MAX: usize = 100;

/// How soon a follower finds a new message.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The messages with their subjects; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimArchive(Arc<Mutex<Vec<(String, Bytes)>>>);

impl SimArchive {
    /// Archives the log of one incarnation of a producer until its end.
    pub(crate) async fn copy(self, producer_id: String, log: Log) {
        let epoch = log.epoch();
        let subject = Origin { producer_id, epoch }.subject();
        let mut reader = log.reader(Sequence::FIRST, u64::MAX, Sequence::FIRST);
        let mut has_ended = false;
        while !has_ended {
            let delivery = reader.next().await;
            has_ended = matches!(delivery, Delivery::End { .. });
            let mut messages = self.0.lock().expect(UNPOISONED);
            messages.push((subject.clone(), delivery.event()));
        }
    }

    /// The messages of a subject at or after a position, which begin at 1.
    fn messages(&self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        fail()?;
        let messages = self.0.lock().expect(UNPOISONED);
        let numbered = (1..).zip(&*messages);
        let id = subject.strip_suffix('*');
        let is_of = |of: &str| of == subject || id.is_some_and(|id| of.starts_with(id));
        let found = numbered.filter(|(at, (of, _))| *at >= position && is_of(of));
        let found = found.map(|(position, (subject, payload))| Message {
            position,
            archived: UnixMicros::NONE,
            subject: subject.clone(),
            is_known_version: true,
            payload: payload.clone(),
        });
        Ok(found.take(READ_MAX).collect())
    }
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
