//! Metrics of the edge: requests by outcome, and latency.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use metric_defs::producer;
use prometheus::{IntCounter, IntCounterVec};
use runtime::metrics::{Latency, Registry};

use super::{opt_out::Page, response::Outcome};
use crate::{
    contracts::{Contracts, file::ContractsFile, privacy, rejection::Rejection},
    dsps::Dsps,
    plan,
};

/// Handles of all edge metrics; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Accepted requests, counted after their cookies are in the log.
    pub(super) accepted: IntCounter,
    /// All other requests, by the label of their outcome.
    others: HashMap<&'static str, IntCounter, RandomState>,
    /// Requests by outcome of the privacy check, in the order of [`privacy::Outcome`].
    pub(super) privacy: [IntCounter; privacy::Outcome::LABELS.len()],
    /// Time from reading requests to encoding their responses.
    pub(super) seconds: Latency,
    /// Requests by DSP and outcome.
    pub dsps: Dsps,
    /// Of sync plans.
    pub plans: plan::metrics::Metrics,
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
        let rejections = Rejection::ALL.iter().map(|it| it.label());
        let others = rejections
            .chain(Page::LABELS)
            .chain(Outcome::OTHERS.map(Outcome::label));
        Ok(Self {
            accepted: outcome("accepted"),
            others: others.map(|label| (label, outcome(label))).collect(),
            privacy: privacy::Outcome::LABELS.map(|label| privacy.with_label_values(&[label])),
            seconds: registry.add(producer::EDGE_REQUEST_SECONDS)?,
            dsps: Dsps::register(registry, file, contracts)?,
            plans: plan::metrics::Metrics::register(registry)?,
        })
    }

    /// Counts an outcome, except `Accepted`: see [`accepted`](Self::accepted).
    pub(super) fn count(&self, outcome: Outcome) {
        if !matches!(outcome, Outcome::Accepted(_) | Outcome::AcceptedWithHint(_)) {
            self.others[outcome.label()].inc();
        }
    }
}
