//! Metrics of `limiter serve`.

use std::sync::Arc;

use http::StatusCode;
use metric_defs::limiter as defs;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};
use runtime::{
    metrics::{Family, Latency, Registry, as_f64, family, value},
    reload::Reloader,
};
use tokio_util::sync::CancellationToken;

use super::{
    engine::{Counts, LimitUsage, UsageSummary},
    limit_sources::LimitSources,
    limits_file,
    problem::KINDS,
    request::Endpoint,
    saver::Saver,
    sharing::Decider,
};

/// Label values: each [`Endpoint`], and other paths.
const CALLS: [&str; 5] = ["delay", "reserve", "increment", "feedback", "other"];

/// Metrics updated by requests.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    /// By call and by hundreds of the status.
    requests: [[IntCounter; 3]; CALLS.len()],
    pub(super) problems: IntCounterVec,
    pub(super) seconds: Latency,
    /// Reservations waiting for their slot.
    pub(super) waiting: IntGauge,
}

/// Metrics read from other components at each scrape.
#[derive(Clone)]
pub(super) struct StateMetrics {
    pub(super) file: Arc<Reloader<limits_file::File>>,
    pub(super) draining: CancellationToken,
    pub(super) sources: Arc<LimitSources>,
    pub(super) counters_max: usize,
    pub(super) saver: Arc<Saver>,
    pub(super) decider: Decider,
}

impl RequestMetrics {
    /// Registers the metrics, with a zero for each known label value.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        let requests: IntCounterVec = registry.add(defs::REQUESTS)?;
        let problems: IntCounterVec = registry.add(defs::PROBLEMS)?;
        let requests = CALLS.map(|call| {
            ["2xx", "4xx", "5xx"].map(|class| requests.with_label_values(&[call, class]))
        });
        for kind in KINDS {
            problems.with_label_values(&[kind.name]);
        }
        Ok(Self {
            requests,
            problems,
            seconds: registry.add(defs::REQUEST_SECONDS)?,
            waiting: registry.add(defs::WAITING)?,
        })
    }

    pub(super) fn responded(&self, endpoint: Option<Endpoint>, status: StatusCode) {
        let call = endpoint.map_or(CALLS.len() - 1, |endpoint| endpoint as usize);
        let class = match status.as_u16() {
            ..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.requests[call][class].inc();
    }
}

impl StateMetrics {
    pub(super) fn register(&self, registry: &Registry) -> Result<()> {
        let state = self.clone();
        registry.read(move || state.families())
    }

    /// Why the newest versions of the file and the collection are not in effect.
    pub(super) fn rejected_limits(&self) -> Option<String> {
        let errors = self.file.error().into_iter().chain(self.sources.rejected());
        let errors: Vec<String> = errors.collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    pub(super) fn usage(&self) -> UsageSummary {
        let Decider { engine, clock, .. } = &self.decider;
        engine.usage_summary(clock.now())
    }

    fn limits_by_source(&self) -> [([&'static str; 1], f64); 2] {
        let effective = self.sources.effective();
        let (all, collection) = (effective.rules.limits.len(), effective.collection.len());
        [
            (["file"], as_f64((all - collection) as u64)),
            (["collection"], as_f64(collection as u64)),
        ]
    }

    fn families(&self) -> Vec<Family> {
        let usage = self.usage();
        let limits = &usage.limits;
        let by_limit = |metric, of: fn(&LimitUsage) -> u64| {
            family(
                metric,
                limits.iter().map(|it| ([&*it.name], as_f64(of(it)))),
            )
        };
        let quotas = limits.iter().filter_map(|it| {
            let used = it.quota.as_ref()?.used_permille;
            Some(([&*it.name], as_f64(used) / 1e3))
        });
        let by_outcome = |metric, values: fn(&Counts) -> [(&'static str, u64); 3]| {
            let samples = limits.iter().flat_map(|it| {
                values(&it.counts).map(|(outcome, count)| ([&*it.name, outcome], as_f64(count)))
            });
            family(metric, samples)
        };
        let decisions = self.decider.decisions().into_iter().flatten();
        let flag = |it: bool| f64::from(u8::from(it));
        vec![
            by_outcome(defs::DECISIONS, |it| {
                [
                    ("now", it.now),
                    ("delayed", it.delayed),
                    ("refused", it.refused),
                ]
            }),
            by_limit(defs::DELAYS, |it| it.counts.delays),
            by_outcome(defs::INCREMENTS, |it| {
                [
                    ("counted", it.counted),
                    ("too_old", it.too_old),
                    ("too_early", it.too_early),
                ]
            }),
            by_limit(defs::OUTBOUND_429, |it| it.counts.outbound_429),
            by_limit(defs::FEEDBACK_APPLIED, |it| it.counts.feedback_applied),
            by_limit(defs::RESTRICTED_COUNTERS, |it| it.restricted),
            family(defs::QUOTA_USED, quotas),
            by_limit(defs::LIMIT_COUNTERS, |it| it.counters),
            value(defs::COUNTERS, as_f64(usage.counters as u64)),
            value(defs::COUNTERS_MAX, as_f64(self.counters_max as u64)),
            family(defs::LIMITS, self.limits_by_source()),
            value(
                defs::COLLECTION_AGE,
                self.sources.collection_age().map(|age| age.as_secs_f64()),
            ),
            value(defs::VERSION, as_f64(usage.version)),
            value(
                defs::VERSION_REFUSED,
                flag(self.rejected_limits().is_some()),
            ),
            value(defs::STATE_AGE, self.saver.age().as_secs_f64()),
            value(
                defs::CLOCK_BEHIND,
                self.decider.clock.behind().as_secs_f64(),
            ),
            family(
                defs::SHARED_DECISIONS,
                decisions.map(|(decider, count)| ([decider], as_f64(count))),
            ),
            value(defs::SHARING_SERVER, self.decider.has_server().map(flag)),
        ]
    }
}
