//! Metrics of the edge: requests by outcome, and latency.

use std::sync::Arc;

use metric_defs::producer;
use prometheus::{IntCounter, IntCounterVec};
use runtime::metrics::{Latency, Registry};

use super::{opt_out::Page, response::Outcome};
use crate::{
    contracts::{Contracts, file::ContractsFile, privacy, rejection::Rejection},
    dsps::Dsps,
};

/// Label of accepted requests.
const ACCEPTED: &str = "accepted";

/// Handles of all edge metrics; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Accepted requests, counted after their cookies are in the log.
    pub(super) accepted: IntCounter,
    opt_out: Vec<IntCounter>,
    rejected: Vec<IntCounter>,
    not_found: IntCounter,
    method_not_allowed: IntCounter,
    preflight: IntCounter,
    headers_too_large: IntCounter,
    malformed: IntCounter,
    /// Requests by outcome of the privacy check, in the order of [`privacy::Outcome`].
    pub(super) privacy: [IntCounter; privacy::Outcome::LABELS.len()],
    /// Time from reading requests to encoding their responses.
    pub(super) seconds: Latency,
    /// Requests by DSP and outcome.
    pub dsps: Dsps,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When one of the metrics is registered already.
    pub fn register(
        registry: &Registry,
        file: Option<ContractsFile>,
        contracts: Arc<Contracts>,
    ) -> prometheus::Result<Self> {
        let requests: IntCounterVec = registry.add(producer::EDGE_REQUESTS)?;
        let outcome = |label: &str| requests.with_label_values(&[label]);
        let privacy: IntCounterVec = registry.add(producer::PRIVACY)?;
        Ok(Self {
            accepted: outcome(ACCEPTED),
            opt_out: Page::LABELS.map(outcome).into(),
            rejected: Rejection::ALL
                .iter()
                .map(|rejection| outcome(rejection.label()))
                .collect(),
            not_found: outcome("not_found"),
            method_not_allowed: outcome("method_not_allowed"),
            preflight: outcome("preflight"),
            headers_too_large: outcome("headers_too_large"),
            malformed: outcome("malformed"),
            privacy: privacy::Outcome::LABELS.map(|label| privacy.with_label_values(&[label])),
            seconds: registry.add(producer::EDGE_REQUEST_SECONDS)?,
            dsps: Dsps::register(registry, file, contracts)?,
        })
    }

    /// Counts an outcome, except `Accepted`: see [`accepted`](Self::accepted).
    pub(super) fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted(_) => {}
            Outcome::OptOut(page) => self.opt_out[page as usize].inc(),
            Outcome::Rejected(rejection, _) => self.rejected[rejection as usize].inc(),
            Outcome::NotFound => self.not_found.inc(),
            Outcome::MethodNotAllowed => self.method_not_allowed.inc(),
            Outcome::Preflight => self.preflight.inc(),
            Outcome::HeadTooLarge => self.headers_too_large.inc(),
            Outcome::Malformed => self.malformed.inc(),
        }
    }
}
