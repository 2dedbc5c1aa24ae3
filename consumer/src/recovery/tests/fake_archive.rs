//! An archive in memory, which tests fill and in which calls can fail.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use proto::units::UnixMicros;

use super::{
    super::archive::{Archive, ArchiveError, Info, Message, Messages},
    origin,
};
use crate::clock;

/// The messages of an archive, by position, with their subjects. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeArchive(pub(super) Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) messages: Vec<Message>,
    pub(super) error: Option<ArchiveError>,
    pub(super) is_copy: bool,
    pub(super) calls: usize,
    pub(super) created: u64,
}

/// How soon a follower finds a new message or an error.
pub(super) const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of messages of a read.
pub(super) const READ_MAX: usize = 7;

impl FakeArchive {
    fn call(&self) -> Result<parking_lot::MutexGuard<'_, Contents>, ArchiveError> {
        let mut contents = self.0.lock();
        contents.calls += 1;
        match contents.error.clone() {
            Some(error) => Err(error),
            None => Ok(contents),
        }
    }

    pub(super) fn push(&self, subject: &str, version: bool, payload: impl Into<Bytes>) {
        let mut contents = self.0.lock();
        let message = Message {
            // Not all positions exist.
            position: contents.messages.len() as u64 * 3 + 5,
            archived: clock::now(),
            subject: subject.to_owned(),
            is_known_version: version,
            payload: payload.into(),
        };
        contents.messages.push(message);
    }

    /// Publishes events of the test's epoch.
    pub(super) fn publish(&self, events: &[Bytes]) {
        self.push(&origin().subject(), true, events.concat());
    }
}

#[async_trait]
impl Archive for FakeArchive {
    async fn check(&mut self) -> Result<Info, ArchiveError> {
        let contents = self.call()?;
        Ok(Info {
            created: UnixMicros(contents.created),
            last_position: contents.messages.last().map_or(0, |it| it.position),
            newest: contents.messages.last().map(|it| it.archived),
            is_copy: contents.is_copy,
            ..Info::default()
        })
    }

    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError> {
        let contents = self.call()?;
        let mut messages = contents.messages.iter();
        let found = messages.find(|it| is_of(&it.subject, subject) && it.position >= position);
        Ok(found.cloned())
    }

    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError> {
        let contents = self.call()?;
        let messages = contents.messages.iter();
        let found = messages.filter(|it| it.subject == subject && it.position >= position);
        Ok(found.take(READ_MAX).cloned().collect())
    }

    async fn follow(&mut self, position: u64) -> Result<Messages, ArchiveError> {
        let created = self.call()?.created;
        Ok(stream::unfold((self.clone(), created, position), next).boxed())
    }
}

/// The next message of an archive, unless it was created again.
async fn next(
    (archive, created, position): (FakeArchive, u64, u64),
) -> Option<(Result<Message, ArchiveError>, (FakeArchive, u64, u64))> {
    loop {
        let next = match archive.call() {
            Ok(contents) if contents.created == created => {
                let mut messages = contents.messages.iter();
                Ok(messages.find(|it| it.position >= position).cloned())
            }
            Ok(_) => Err(ArchiveError::Unavailable("created again".to_owned())),
            Err(error) => Err(error),
        };
        if let Some(next) = next.transpose() {
            let position = next.as_ref().map_or(position, |it| it.position + 1);
            return Some((next, (archive, created, position)));
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Whether a subject matches one whose last token may be `*`.
fn is_of(subject: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(id) => subject.starts_with(id),
        None => subject == pattern,
    }
}
