//! What the edge counts, and how long it takes.

use metric_defs::producer;
use prometheus::{IntCounter, IntCounterVec};
use runtime::metrics::{Latency, Registry};

use super::{
    dsps::{Dsps, Shown},
    request::Rejection,
    response::Outcome,
};

/// The outcome of a request whose cookie is in the log.
const ACCEPTED: &str = "accepted";

/// The handles of all metrics of the edge, resolved once; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Requests that were accepted; counted when their cookies are in the log.
    pub(super) accepted: IntCounter,
    rejected: Vec<IntCounter>,
    not_found: IntCounter,
    method_not_allowed: IntCounter,
    head_too_large: IntCounter,
    malformed: IntCounter,
    /// From read to answered.
    pub(super) seconds: Latency,
    /// The same outcomes for each DSP.
    pub(super) dsps: Dsps,
}

impl Metrics {
    /// Registers them all, with a series for each of the DSPs `shown`.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register(registry: &Registry, shown: &Shown) -> prometheus::Result<Self> {
        let requests: IntCounterVec = registry.add(producer::EDGE_REQUESTS)?;
        let outcome = |label: &str| requests.with_label_values(&[label]);
        Ok(Self {
            accepted: outcome(ACCEPTED),
            rejected: Rejection::ALL
                .iter()
                .map(|rejection| outcome(rejection.label()))
                .collect(),
            not_found: outcome("not_found"),
            method_not_allowed: outcome("method_not_allowed"),
            head_too_large: outcome("head_too_large"),
            malformed: outcome("malformed"),
            seconds: registry.add(producer::EDGE_REQUEST_SECONDS)?,
            dsps: Dsps::register(registry, shown)?,
        })
    }

    /// Which DSPs are known.
    #[must_use]
    pub fn dsps(&self) -> Dsps {
        self.dsps.clone()
    }

    /// Counts one outcome, but for what is counted when it is in the log.
    pub(super) fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => {}
            Outcome::Rejected(rejection) => self.rejected[rejection as usize].inc(),
            Outcome::NotFound => self.not_found.inc(),
            Outcome::MethodNotAllowed => self.method_not_allowed.inc(),
            Outcome::HeadTooLarge => self.head_too_large.inc(),
            Outcome::Malformed => self.malformed.inc(),
        }
    }
}
