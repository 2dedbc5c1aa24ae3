//! The requests of a load, indexed by user and DSP.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    ops::Range,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::time::Instant;

use crate::traffic::{SyntheticCookie, Traffic};

/// How much later a request to another producer must be sent to be certainly newer. The time of a cookie is at most three
/// chunk ages before its acceptance: 150 ms if the chunk age is 50 ms, the maximum with which runs of several producers can be
/// verified. The rest is for stores with millisecond resolution.
pub const PRODUCER_CLOCK_MARGIN: Duration = Duration::from_millis(160);

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Response 200.
    Accepted,
    /// Any other response.
    Rejected,
    /// Sent, but without a valid response.
    Unknown,
    /// Never sent.
    Unsent,
}

/// The requests of one connection. They are numbered from 0.
pub trait RequestHistory: Send + Sync {
    /// Number of sent requests.
    fn sent(&self) -> u64;
    /// Outcome of a request.
    fn outcome(&self, number: u64) -> RequestOutcome;
    /// A lower bound of its send time, up to 10 ms early; the end of the load if it was not sent.
    fn sent_after(&self, number: u64) -> Instant;
    /// An upper bound of its response time, up to 10 ms late; the end of the load without a response.
    fn responded_by(&self, number: u64) -> Instant;
}

/// One connection of a load.
pub struct Source {
    /// Generator of its cookies.
    pub traffic: Traffic,
    /// Number of the connection in `traffic`.
    pub connection: u64,
    /// Index of its producer.
    pub producer: usize,
    /// Outcomes and times of its requests.
    pub requests: Box<dyn RequestHistory>,
}

/// An accepted request whose cookie is not in a store.
#[derive(Debug, Clone, Copy)]
pub struct LostRequest {
    /// Index of its producer.
    pub producer: usize,
    /// Lower bound of the send time.
    pub sent_after: Instant,
    /// Upper bound of the response time.
    pub responded_by: Instant,
}

impl LostRequest {
    /// The request with this number on this connection.
    pub fn of(source: &Source, number: u64) -> Self {
        Self {
            producer: source.producer,
            sent_after: source.requests.sent_after(number),
            responded_by: source.requests.responded_by(number),
        }
    }
}

/// All requests that may be stored.
pub struct SentRequests {
    pub(super) sources: Vec<Source>,
    /// Sorted by hash, source and number.
    pub(super) requests: Vec<RequestRef>,
    hasher: RandomState,
}

/// A request and the hash of its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestRef {
    pub(super) hash: u64,
    pub(super) source: u32,
    pub(super) number: u32,
}

impl SentRequests {
    /// Indexes all requests of these connections. Blocks for about one second per five million requests.
    ///
    /// # Errors
    /// A connection has sent more than 2^32 requests.
    pub fn new(sources: Vec<Source>) -> Result<Self> {
        let hasher = RandomState::new();
        let mut requests = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let index = u32::try_from(index).context("too many connections to verify")?;
            let sent = u32::try_from(source.requests.sent())
                .context("too many requests on a connection to verify")?;
            for number in 0..sent {
                if let RequestOutcome::Rejected | RequestOutcome::Unsent =
                    source.requests.outcome(number.into())
                {
                    continue;
                }
                let cookie = source.traffic.cookie(source.connection, number.into());
                requests.push(RequestRef {
                    hash: hash(&hasher, cookie.user_id_bytes(), cookie.dsp_id()),
                    source: index,
                    number,
                });
            }
        }
        requests.sort_unstable();
        Ok(Self {
            sources,
            requests,
            hasher,
        })
    }

    /// Number of requests that were or may have been accepted.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Range of the requests of a pair in `requests`.
    pub(super) fn group(&self, user_id: &[u8], dsp_id: u32) -> Range<usize> {
        let hash = hash(&self.hasher, user_id, dsp_id);
        let start = self.requests.partition_point(|request| request.hash < hash);
        let same = self.requests[start..].iter();
        start..start + same.take_while(|request| request.hash == hash).count()
    }

    pub(super) fn source(&self, request: &RequestRef) -> &Source {
        &self.sources[request.source as usize]
    }

    pub(super) fn cookie(&self, request: &RequestRef) -> SyntheticCookie {
        let source = self.source(request);
        source
            .traffic
            .cookie(source.connection, request.number.into())
    }

    pub(super) fn lost(&self, request: &RequestRef) -> LostRequest {
        LostRequest::of(self.source(request), request.number.into())
    }

    pub(super) fn outcome(&self, request: &RequestRef) -> RequestOutcome {
        self.source(request).requests.outcome(request.number.into())
    }
}

fn hash(hasher: &RandomState, user_id: &[u8], dsp_id: u32) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(user_id);
    state.write_u32(dsp_id);
    state.finish()
}
