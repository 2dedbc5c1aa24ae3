//! The figures of a queue, for metrics and the status page.

use super::{Call, RESUMES, Totals};
use crate::log::Sequence;

/// The figures of one queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscriber's name.
    pub name: String,
    /// The call it uses.
    pub call: Call,
    /// Whether it has its own metric series.
    pub is_shown: bool,
    /// Whether a stream is open.
    pub connected: bool,
    /// Whether the reader of its current or latest stream says that it acts on the age of cookies.
    pub supports_age: bool,
    /// The sequence after the last one taken out of the log.
    pub position: Sequence,
    /// The first sequence that is accounted for.
    pub joined: Sequence,
    /// The sequence after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// Its counters.
    pub totals: Totals,
    /// Its streams by how they began: see [`RESUMES`].
    pub resumes: [u64; RESUMES.len()],
    /// The greatest lag since the scrape before the last, in sealed cookies: see [`Peak`](runtime::metrics::Peak).
    pub lag_max: u64,
    /// In-flight bytes of its streams.
    pub in_flight_bytes: u64,
    /// Streams cut off because all streams together exceeded the budget of in-flight bytes.
    pub cuts: u64,
}

impl Snapshot {
    /// Cookies appended since the queue's account began; `appended` is the log's count, read after this snapshot.
    #[must_use]
    pub fn appended(&self, appended: u64) -> u64 {
        appended + 1 - self.joined
    }

    /// Cookies that are neither delivered nor lost yet, sealed or not; `appended` as above.
    #[must_use]
    pub fn queued(&self, appended: u64) -> u64 {
        appended + 1 - self.high_water
    }
}
