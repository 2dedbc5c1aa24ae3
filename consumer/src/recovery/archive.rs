//! What recovery needs of an archive.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use proto::units::UnixMicros;
pub use runtime::connect::ArchiveError;

/// A message of an archive.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its number in the archive. Later messages have higher numbers.
    pub position: u64,
    /// When it was archived, by the clock of the archive.
    pub archived: UnixMicros,
    /// Its producer and epoch, see [`Origin`](proto::archive::Origin).
    pub subject: String,
    /// Whether its format is the one that this version reads.
    pub is_known_version: bool,
    /// Its events.
    pub payload: Bytes,
}

/// State of an archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// When it was created: a new archive has new positions.
    pub created: UnixMicros,
    /// The position of the last message; 0 if there is none.
    pub last_position: u64,
    /// The time of the last message, by the clock of the archive.
    pub newest: Option<UnixMicros>,
    /// The time of the first message, by the clock of the archive.
    pub oldest: Option<UnixMicros>,
    /// Bytes of all messages.
    pub bytes: u64,
    /// Number of bytes above which the archive removes the first messages, if that is limited.
    pub bytes_max: Option<u64>,
    /// Whether it is a copy of another archive, which may be some minutes behind.
    pub is_copy: bool,
}

/// Messages that are read while they are archived.
pub type Messages = BoxStream<'static, Result<Message, ArchiveError>>;

/// An archive of all producers. Its implementation connects when needed, and limits the time of each call.
#[async_trait]
pub trait Archive: Debug + Send + Sync {
    /// Checks that the archive is usable.
    async fn check(&mut self) -> Result<Info, ArchiveError>;

    /// The first message of `subject` at or after `position`. The last token of the subject may be `*`.
    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError>;

    /// Messages of `subject` at or after `position`, in order, about 2 MiB at most. Empty only if there are none now.
    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError>;

    /// All messages at or after `position` in order, and later ones as soon as they are archived. Ends after an error.
    async fn follow(&mut self, position: u64) -> Result<Messages, ArchiveError>;
}
