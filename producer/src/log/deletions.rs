//! Deletions: records at the start of a chunk, so that no match accepted before a deletion appears newer than the
//! deletion.
//!
//! A chunk has the time of its first record, and a match in it may have been accepted later, by up to the maximum chunk
//! age. A deletion in an open chunk would get the chunk's time. Another producer may already have accepted a match with
//! a later time. Deletions therefore wait until the open chunk is sealed, for at most the maximum chunk age. They begin
//! the next chunk, whose time is not before the time of any of these deletions. Deletions never seal a chunk early.

use proto::{
    units::{Sequence, UnixMicros},
    wire::Scope,
};
use tokio::sync::oneshot;

/// Removes the cookies of a user or a DSP that were accepted up to a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The cookies.
    pub scope: Scope<String>,
    /// The time; `None` for the time at which the deletion enters the log.
    pub until: Option<UnixMicros>,
}

/// Deletions that wait for the next chunk, each batch with the sender of its last sequence number.
pub(super) type Pending = Vec<(Vec<Deletion>, oneshot::Sender<Sequence>)>;
