//! What the edge counts, and how long it takes.

use prometheus::{IntCounter, IntCounterVec, Opts};
use runtime::metrics::{Latency, Registry};

use super::{
    dsps::{Dsps, Shown},
    request::Rejection,
    response::Outcome,
};

/// Finest where it is when all is well: a request that comes alone takes 10 µs, and of many that come together each waits for
/// the last.
const SECONDS: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 1.0, 10.0,
];

/// The handles of all metrics of the edge, resolved once.
#[derive(Debug)]
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
        let requests = IntCounterVec::new(
            Opts::new(
                "producer_edge_requests_total",
                "Requests of the edge by outcome; every outcome but \"accepted\" left nothing in the log.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let outcome = |label: &str| requests.with_label_values(&[label]);
        Ok(Self {
            accepted: outcome("accepted"),
            rejected: Rejection::ALL
                .iter()
                .map(|rejection| outcome(rejection.label()))
                .collect(),
            not_found: outcome("not_found"),
            method_not_allowed: outcome("method_not_allowed"),
            head_too_large: outcome("head_too_large"),
            malformed: outcome("malformed"),
            seconds: Latency::register(
                registry,
                "producer_edge_request_seconds",
                "Time from a request read to its answer made, whatever the outcome.",
                SECONDS,
            )?,
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
