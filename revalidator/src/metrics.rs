//! Metrics of the revalidator.

use std::{collections::BTreeMap, time::Duration};

use metric_defs::{buckets::ORIGIN_SECONDS, revalidator as defs};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Result};
use runtime::{
    metrics::{Registry, as_f64, family, value},
    unix_micros,
};

use crate::{messages::JobStatus, mirror::Mirror};

/// Metrics updated by events.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Checks by application and outcome.
    pub requests: IntCounterVec,
    /// Response times by application.
    pub response_seconds: HistogramVec,
    /// Parallel requests by application and worker.
    pub concurrency: IntGaugeVec,
    /// Removed objects by application.
    pub removed: IntCounterVec,
    /// Objects that the brake kept, by application.
    pub held_back: IntCounterVec,
    /// Batches whose result was published before.
    pub batches_repeated: IntCounter,
    /// Messages that are not valid.
    pub invalid_messages: IntCounter,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        let seconds = HistogramOpts::new(defs::RESPONSE_SECONDS.name, defs::RESPONSE_SECONDS.help);
        let seconds = seconds.buckets(ORIGIN_SECONDS.to_vec());
        let response_seconds = HistogramVec::new(seconds, defs::RESPONSE_SECONDS.labels)?;
        registry.register(Box::new(response_seconds.clone()))?;
        Ok(Self {
            requests: registry.add(defs::REQUESTS)?,
            response_seconds,
            concurrency: registry.add(defs::CONCURRENCY)?,
            removed: registry.add(defs::REMOVED)?,
            held_back: registry.add(defs::HELD_BACK)?,
            batches_repeated: registry.add(defs::BATCHES_REPEATED)?,
            invalid_messages: registry.add(defs::INVALID_MESSAGES)?,
        })
    }
}

/// Name of the state of a job in metrics and on the page.
#[must_use]
pub fn job_state(job: &JobStatus) -> &'static str {
    use crate::messages::{RevalidatorState as R, ServerState as S};
    match (&job.server_state, &job.revalidator_state) {
        _ if job.is_cancelled() && job.acknowledged => "acknowledged",
        _ if job.is_cancelled() => "cancelled",
        (S::Finished, _) => "finished",
        (S::Other(_), _) | (_, R::Other(_)) => "unknown",
        (_, R::Suspended) => "suspended",
        (_, R::Waiting) => "waiting",
        _ => "active",
    }
}

/// Registers the metrics that are read from the copy of the buckets at each scrape.
///
/// # Errors
/// When a name is already registered.
pub fn register_state(registry: &Registry, mirror: Mirror) -> Result<()> {
    const STATES: [&str; 7] = [
        "waiting",
        "active",
        "suspended",
        "finished",
        "cancelled",
        "acknowledged",
        "unknown",
    ];
    registry.read(move || {
        let jobs = mirror.jobs();
        let mut states: BTreeMap<_, u64> = STATES.map(|state| (state, 0)).into();
        for job in &jobs {
            *states.entry(job_state(job)).or_default() += 1;
        }
        let waiting = jobs.iter().filter(|job| job_state(job) == "waiting");
        let oldest = waiting.map(|job| job.created_at).min();
        let now = unix_micros() / 1000;
        let age = oldest.map_or(0, |created| now.saturating_sub(created));
        vec![
            family(
                defs::JOBS,
                states
                    .into_iter()
                    .map(|(state, count)| ([state], as_f64(count))),
            ),
            value(
                defs::OLDEST_WAITING,
                Some(Duration::from_millis(age).as_secs_f64()),
            ),
            value(defs::WORKERS, as_f64(mirror.workers().len() as u64)),
        ]
    })
}
