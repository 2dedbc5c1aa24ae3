//! What is shown of a queue.

use super::{Call, RESUMES, Totals};
use crate::log::Sequence;

/// The figures of one queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscriber's name.
    pub name: String,
    /// The call it uses.
    pub call: Call,
    /// Whether it has series of metrics of its own.
    pub is_shown: bool,
    /// Whether a stream is open.
    pub connected: bool,
    /// The sequence after the last one taken out of the log.
    pub position: Sequence,
    /// The first sequence that is accounted for.
    pub joined: Sequence,
    /// The sequence after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// What it counts.
    pub totals: Totals,
    /// Its streams by how they were met: see [`RESUMES`].
    pub resumes: [u64; RESUMES.len()],
    /// The greatest lag since the scrape before the last, in sealed cookies: see [`Peak`](runtime::metrics::Peak).
    pub lag_max: u64,
    /// Bytes handed to its streams that their connections have not let go.
    pub pinned_bytes: u64,
    /// Streams cut off for what their connections held.
    pub cuts: u64,
}

impl Snapshot {
    /// Cookies appended since the queue's account begins, of `appended` in all, read after this snapshot.
    #[must_use]
    pub fn appended(&self, appended: u64) -> u64 {
        appended + 1 - self.joined
    }

    /// Cookies neither delivered nor lost yet, sealed or not, of `appended` in all, read after this snapshot.
    #[must_use]
    pub fn queued(&self, appended: u64) -> u64 {
        appended + 1 - self.high_water
    }
}
