//! Checks stores against everything that was sent: all pairs of user and DSP, each with its newest value, and nothing else.
//!
//! What was sent is made again from its traffic; kept are 16 bytes for each request ([`SentRequests`]), sorted by a hash of the pair.
//! Each stored cookie is then looked up by its pair, whose requests are made again and compared.
//!
//! A stored value is right when a request with it may be the newest of its pair: none that was accepted is *certainly*
//! newer. Certain is what came later on the same connection, or what was sent when the other had been answered; between
//! two producers by a margin, because their chunks carry the time of their first cookie ([`PRODUCERS_APART`]). A
//! request without an answer may have been accepted or not: its value may be stored, and need not be.
//!
//! Two pairs with the same hash of 64 bits would hide the absence of one of them: at ten million pairs that has a
//! probability of 1 in 370,000.

mod check;
mod scan;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use anyhow::{Context, Result};
use tokio::time::Instant;

pub use self::{
    check::{LossPredicate, StoreCheck, StoreVerdict},
    scan::{embedded, mongodb},
};
use crate::traffic::{SyntheticCookie, Traffic};

/// How much later a request to another producer must have been sent to be certainly newer. A cookie's time is before its
/// acceptance by at most three times the age of a chunk, whatever holds up the producer: 150 ms with the longest age that
/// a cluster's arguments allow. The rest is for stores that keep milliseconds.
pub const PRODUCERS_APART: std::time::Duration = std::time::Duration::from_millis(160);

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Answered with 200.
    Accepted,
    /// Answered otherwise.
    Rejected,
    /// Sent, and no answer came, or none that can be read.
    Unknown,
    /// Never sent.
    Unsent,
}

/// The requests of one connection, by number.
pub trait RequestHistory: Send + Sync {
    /// How many were sent.
    fn sent(&self) -> u64;
    /// What became of one.
    fn outcome(&self, number: u64) -> RequestOutcome;
    /// A time before which it did not leave, not long before; the end of the load when it never did.
    fn sent_after(&self, number: u64) -> Instant;
    /// A time by which its answer was here, not long after; the end of the load when none came.
    fn responded_by(&self, number: u64) -> Instant;
}

/// One connection of a load.
pub struct Source {
    /// Makes its cookies.
    pub traffic: Traffic,
    /// The connection's number in that.
    pub connection: u64,
    /// Which producer it went to.
    pub producer: usize,
    /// What became of its requests.
    pub requests: Box<dyn RequestHistory>,
}

/// A request that was accepted, and of which nothing came into a store.
#[derive(Debug, Clone, Copy)]
pub struct LostRequest {
    /// Which producer it went to.
    pub producer: usize,
    /// A time before which it did not leave.
    pub sent_after: Instant,
    /// A time by which its answer was here.
    pub responded_by: Instant,
}

impl LostRequest {
    /// The request with this number on this connection.
    #[must_use]
    pub fn of(source: &Source, number: u64) -> Self {
        Self {
            producer: source.producer,
            sent_after: source.requests.sent_after(number),
            responded_by: source.requests.responded_by(number),
        }
    }
}

/// Everything that was sent and may be stored.
pub struct SentRequests {
    sources: Vec<Source>,
    /// By hash, then by source and number.
    requests: Vec<RequestRef>,
    hasher: RandomState,
}

/// A request: which one, and the hash of its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RequestRef {
    hash: u64,
    source: u32,
    number: u32,
}

impl SentRequests {
    /// Takes all requests of these connections. Blocks for about a second for each five million.
    ///
    /// # Errors
    /// When a connection has sent more than 2^32.
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

    /// Requests that were accepted, or may have been.
    fn len(&self) -> usize {
        self.requests.len()
    }

    /// Where the requests of a pair are in `requests`.
    fn group(&self, user_id: &[u8], dsp_id: u32) -> std::ops::Range<usize> {
        let hash = hash(&self.hasher, user_id, dsp_id);
        let start = self.requests.partition_point(|request| request.hash < hash);
        let same = self.requests[start..].iter();
        start..start + same.take_while(|request| request.hash == hash).count()
    }

    fn source(&self, request: &RequestRef) -> &Source {
        &self.sources[request.source as usize]
    }

    fn cookie(&self, request: &RequestRef) -> SyntheticCookie {
        let source = self.source(request);
        source
            .traffic
            .cookie(source.connection, request.number.into())
    }

    fn lost(&self, request: &RequestRef) -> LostRequest {
        LostRequest::of(self.source(request), request.number.into())
    }

    fn outcome(&self, request: &RequestRef) -> RequestOutcome {
        self.source(request).requests.outcome(request.number.into())
    }
}

fn hash(hasher: &RandomState, user_id: &[u8], dsp_id: u32) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(user_id);
    state.write_u32(dsp_id);
    state.finish()
}

#[cfg(test)]
mod tests;
