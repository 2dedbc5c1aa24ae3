//! The table of producers at one moment, for those who show it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

/// So many producers are shown, if there are, but for those that are read, of which all are.
pub const PRODUCERS_SHOWN: usize = 256;

/// All addresses, and the producers that are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By address.
    pub addresses: Vec<AddressFigures>,
    /// By id: all that an address reads from, and as many others that have a durable cursor as make up [`PRODUCERS_SHOWN`].
    pub producers: BTreeMap<Arc<str>, ProducerFigures>,
}

/// An address that is subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressFigures {
    /// The address.
    pub address: SocketAddr,
    /// The setting that stands for it.
    pub origin: Arc<str>,
    /// The id of the producer that has or had a stream here.
    pub producer: Option<Arc<str>>,
    /// Whether a stream is open.
    pub is_connected: bool,
    /// Why not, if an attempt failed.
    pub why_not: Option<Arc<str>>,
}

/// A producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProducerFigures {
    /// Whether an address reads from it, or did last.
    pub is_read: bool,
    /// Streams that are open.
    pub streams: usize,
    /// How far it is durable: epoch and sequence.
    pub durable: Option<(u64, u64)>,
    /// Cookies that it is known to have and that are not durable here.
    pub lag_cookies: Option<u64>,
    /// How far our clock is ahead of its, at most, in microseconds: the least time from accepted there to received here in the
    /// last one to two minutes.
    pub skew_micros: Option<i64>,
}

impl Snapshot {
    /// What is known of a producer.
    #[must_use]
    pub fn producer(&self, id: &str) -> Option<&ProducerFigures> {
        self.producers.get(id)
    }
}
