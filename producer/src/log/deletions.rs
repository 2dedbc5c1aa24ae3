//! Deletions: records that begin a chunk, so that no match that was accepted before one looks newer than it.
//!
//! A chunk has the time of its first record, and a match may have been accepted up to the age of a chunk later. A deletion
//! that was added to an open chunk would get the chunk's time, which may lie before a match that another producer accepted
//! earlier. So deletions wait until the open chunk is sealed, at most the age of a chunk, and begin the next one: its time is
//! then not before that of any of them. However many there are, they never seal a chunk early.

use tokio::sync::oneshot;

use super::Sequence;

/// Removes what was accepted for a user, or for a DSP, up to a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The user; empty for all users of the DSP.
    pub user_id: String,
    /// The DSP; 0 for all DSPs of the user.
    pub dsp_id: u32,
    /// The time, in microseconds since the Unix epoch; `None` for the time at which the deletion enters the log.
    pub until_unix_micros: Option<u64>,
}

/// Deletions that wait for the next chunk, and who waits for their sequences.
pub(super) type Pending = Vec<(Vec<Deletion>, oneshot::Sender<Sequence>)>;
