//! What recovery needs of an archive.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use proto::units::UnixMicros;
pub use runtime::connect::ArchiveError;

/// A message of an archive.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its number in the archive. Later messages have higher numbers.
    pub position: u64,
    /// Whether its format is the one that this version reads.
    pub is_known_version: bool,
    /// Its events.
    pub payload: Bytes,
}

/// State of an archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// The position of the last message; 0 if there is none.
    pub last_position: u64,
    /// The time of the last message, by the clock of the archive.
    pub newest: Option<UnixMicros>,
    /// Whether it is a copy of another archive, which may be some minutes behind.
    pub is_copy: bool,
}

/// An archive of all producers. Its implementation connects when needed, and limits the time of each call.
#[async_trait]
pub trait Archive: Debug + Send + Sync {
    /// Checks that the archive is usable.
    async fn check(&mut self) -> Result<Info, ArchiveError>;

    /// The first message of `subject` at or after `position`.
    async fn first(
        &mut self,
        subject: &str,
        position: u64,
    ) -> Result<Option<Message>, ArchiveError>;

    /// Messages of `subject` at or after `position`, in order, about 2 MiB at most. Empty only if there are none now.
    async fn read(&mut self, subject: &str, position: u64) -> Result<Vec<Message>, ArchiveError>;
}
