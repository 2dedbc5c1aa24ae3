//! Deletions: records that begin a chunk, so that no match that was accepted before one looks newer than it.
//!
//! A chunk has the time of its first record, and a match may have been accepted up to the age of a chunk later. A deletion
//! that was added to an open chunk would get the chunk's time, which may lie before a match that another producer accepted
//! earlier. So deletions wait until the open chunk is sealed, at most the age of a chunk, and begin the next one: its time is
//! then not before that of any of them. However many there are, they never seal a chunk early.

use proto::wire::CookieRef;
use tokio::sync::oneshot;

use super::{Closed, Log, Sequence, seal::Open};

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
#[derive(Debug, Default)]
pub(super) struct Pending(Vec<(Vec<Deletion>, oneshot::Sender<Sequence>)>);

impl Log {
    /// Appends deletions, at the latest when the open chunk is sealed. Resolves to the sequence of the last one, once all
    /// are in the log; fails when there are none.
    ///
    /// All of them are encoded under the lock: hand over some hundreds at a time.
    ///
    /// # Errors
    /// [`Closed`] after [`Log::close`]; none of them is then in the log.
    pub fn append_deletions(
        &self,
        deletions: Vec<Deletion>,
    ) -> Result<oneshot::Receiver<Sequence>, Closed> {
        let (appended, sequence) = oneshot::channel();
        if !deletions.is_empty() {
            self.append_by(|open, _| {
                open.pending.0.push((deletions, appended));
                if open.is_empty() {
                    self.put_pending(open);
                }
            })?;
        }
        Ok(sequence)
    }

    /// Begins a chunk with the deletions that wait for one.
    pub(super) fn put_pending(&self, open: &mut Open) {
        if open.pending.0.is_empty() {
            return;
        }
        let now = self.shared.now();
        for (deletions, appended) in std::mem::take(&mut open.pending).0 {
            for deletion in deletions {
                let record = CookieRef {
                    user_id: &deletion.user_id,
                    dsp_id: deletion.dsp_id,
                    buyer_uid: "",
                    age_micros: 0,
                };
                let until = deletion.until_unix_micros.unwrap_or(now);
                self.put(open, now, record, until);
            }
            // The caller may have stopped waiting.
            appended.send(open.appended()).ok();
        }
    }
}
