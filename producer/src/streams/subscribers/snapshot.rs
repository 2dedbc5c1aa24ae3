//! Counters of a subscriber, for metrics and the status page.

use proto::units::Sequence;

use super::{Call, RESUMES, Totals};

/// State and counters of one subscriber at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The subscriber's name.
    pub name: String,
    /// The call it uses.
    pub call: Call,
    /// Whether it has its own metric series.
    pub has_series: bool,
    /// Whether a stream is open.
    pub connected: bool,
    /// Whether the client of its current or latest stream supports cookie ages.
    pub supports_age: bool,
    /// The sequence number after the last one taken from the log.
    pub position: Sequence,
    /// The first sequence number of its account.
    pub joined: Sequence,
    /// The last positions that its node has confirmed as durable and as applied, if any.
    pub confirmed: Option<[Sequence; 2]>,
    /// The sequence number after the newest one ever delivered or lost.
    pub high_water: Sequence,
    /// Its counters.
    pub totals: Totals,
    /// Number of streams by resume outcome: see [`RESUMES`].
    pub resumes: [u64; RESUMES.len()],
    /// Maximum lag in sealed cookies over the last two scrape intervals: see [`Peak`](runtime::metrics::Peak).
    pub lag_max: u64,
    /// Bytes in flight on its streams.
    pub in_flight_bytes: u64,
    /// Number of streams disconnected because the budget of in-flight bytes was exceeded.
    pub disconnects: u64,
}
