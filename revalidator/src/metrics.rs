//! Metrics of the revalidator.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use metric_defs::{buckets::ORIGIN_SECONDS, revalidator as defs};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Result};
use runtime::{
    metrics::{Registry, as_f64, family, value},
    unix_micros,
};

use crate::{
    apps::CurrentApps,
    jobs::{candidates, explained, throttled},
    messages::{JobStatus, Subscription},
    mirror::Mirror,
};

/// Number of jobs, finished or acknowledged by an operator, that still have series.
const PAST_JOBS_MAX: usize = 10;

/// Metrics updated by events.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Checks by application and outcome.
    pub requests: IntCounterVec,
    /// Response times by application.
    pub response_seconds: HistogramVec,
    /// Removed objects by application.
    pub removed: IntCounterVec,
    /// Objects kept because of the setting `max_removals`, by application.
    pub held_back: IntCounterVec,
    /// Batches whose result was published before.
    pub batches_repeated: IntCounter,
    /// Notes of matches that could not be written.
    pub notes_failed: IntCounter,
    /// Invalid messages.
    pub invalid_messages: IntCounter,
    /// Bytes of the results of all jobs.
    pub result_bytes: IntGauge,
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
        registry.register(defs::RESPONSE_SECONDS, Box::new(response_seconds.clone()))?;
        Ok(Self {
            requests: registry.add(defs::REQUESTS)?,
            response_seconds,
            removed: registry.add(defs::REMOVED)?,
            held_back: registry.add(defs::HELD_BACK)?,
            batches_repeated: registry.add(defs::BATCHES_REPEATED)?,
            notes_failed: registry.add(defs::NOTES_FAILED)?,
            invalid_messages: registry.add(defs::INVALID_MESSAGES)?,
            result_bytes: registry.add(defs::RESULT_BYTES)?,
        })
    }
}

/// Name of the state of a job in metrics and on the page.
pub fn job_state(job: &JobStatus) -> &'static str {
    use crate::messages::{RevalidatorState as R, ServerState as S};
    match (&job.server_state, &job.revalidator_state) {
        _ if job.is_cancelled() && job.acknowledged => "acknowledged",
        _ if job.is_cancelled() => "cancelled",
        (S::Finished, _) => "finished",
        (S::Other(_), _) | (_, R::Other(_)) => "unknown",
        (_, R::Suspended) => "suspended",
        (_, R::Waiting) => "waiting",
        _ if job.quiet_since.is_some() => "waiting",
        _ => "active",
    }
}

/// Beginning of the reason of a job, without texts of other servers.
fn reason(job: &JobStatus) -> String {
    let reason = job.reason.as_deref().unwrap_or_default();
    let first = reason.split(':').next().unwrap_or_default();
    format!("{first:.100}")
}

/// Age in milliseconds of the oldest job that a worker could start at `now`; 0 if there is none.
fn longest_wait(jobs: &[Arc<JobStatus>], now: u64) -> u64 {
    let open = candidates(jobs.iter().map(|job| &**job), now).into_iter();
    let waiting = open.filter(|job| job_state(job) == "waiting");
    let ages = waiting.map(|job| now.saturating_sub(job.created_at));
    ages.max().unwrap_or(0)
}

/// Registers the metrics that are read from the copy of the buckets at each scrape.
///
/// # Errors
/// When a name is already registered.
pub fn register_state(registry: &Registry, mirror: Mirror, apps: CurrentApps) -> Result<()> {
    const STATES: &str = "waiting active suspended finished cancelled acknowledged unknown";
    registry.read(move || {
        let jobs = mirror.jobs();
        let states = STATES.split(' ').map(|state| (state, 0));
        let mut states: BTreeMap<_, u64> = states.collect();
        for job in &jobs {
            *states.entry(job_state(job)).or_default() += 1;
        }
        let states = states.into_iter();
        let states = states.map(|(state, count)| ([state], as_f64(count)));
        let now = unix_micros() / 1000;
        let age = longest_wait(&jobs, now);
        let throttled = throttled(jobs.iter().map(|job| &**job), now);
        let is_past = |job: &Arc<JobStatus>| matches!(job_state(job), "finished" | "acknowledged");
        let all = jobs.iter().filter(|job| !job.push);
        let (mut past, shown): (Vec<_>, Vec<_>) = all.partition(|job| is_past(job));
        past.sort_unstable_by_key(|job| Reverse(job.ended_at));
        past.truncate(PAST_JOBS_MAX);
        let shown = shown.into_iter().chain(past);
        let shown: Vec<_> = shown.map(|job| explained(job, &throttled)).collect();
        let of_job = |def, count: fn(&JobStatus) -> u64| {
            let shown = shown.iter();
            let samples = shown.map(|job| ([&*job.job_id, &*job.app_name], as_f64(count(job))));
            family(def, samples)
        };
        let reasons: Vec<_> = shown.iter().map(|job| reason(job)).collect();
        let resume = shown.iter().zip(&reasons).map(|(job, reason)| {
            let labels = [&*job.job_id, &*job.app_name, job_state(job), reason];
            let resume = job
                .resume_at
                .max(job.throttled_until.filter(|_| job.is_open()));
            (labels, as_f64(resume.unwrap_or(0)) / 1000.0)
        });
        let apps = apps();
        let next = apps.iter().filter_map(|app| {
            let next = app.settings.schedule.as_ref()?.next(now)?;
            Some(([&*app.name], as_f64(next) / 1000.0))
        });
        let app = |id: &String| Some(mirror.job(id)?.app_name.clone());
        let workers = mirror.workers().into_iter().map(|it| {
            let app = it.job_id.as_ref().and_then(app).unwrap_or_default();
            (format!("{:?}", it.state).to_lowercase(), app, it)
        });
        let workers: Vec<_> = workers.collect();
        let of_worker = |def, value: fn(&Subscription) -> u64| {
            let samples = workers.iter().map(|(state, app, it)| {
                let job = it.job_id.as_deref().unwrap_or_default();
                ([&*it.revalidator_id, app, job, state], as_f64(value(it)))
            });
            family(def, samples)
        };
        vec![
            of_job(defs::JOB_ASSETS, |job| job.asset_count),
            of_job(defs::JOB_CHECKED, |job| job.counts.checked),
            family(defs::JOB_RESUME, resume),
            of_worker(defs::CONCURRENCY, |it| it.concurrency as u64),
            family(defs::JOBS, states),
            family(defs::SCHEDULE_NEXT, next),
            value(defs::OLDEST_WAITING, as_f64(age) / 1000.0),
            value(defs::WORKERS, as_f64(workers.len() as u64)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::RevalidatorState;

    #[test]
    fn jobs_behind_their_own_application_do_not_wait_for_workers() {
        let job = |app: &str, created_at, revalidator_state| {
            Arc::new(JobStatus {
                app_name: app.to_owned(),
                created_at,
                revalidator_state,
                ..JobStatus::default()
            })
        };
        let (active, waiting) = (RevalidatorState::Revalidating, RevalidatorState::Waiting);
        let mut jobs = vec![job("a", 1_000, active), job("a", 2_000, waiting.clone())];
        assert_eq!(longest_wait(&jobs, 10_000), 0);
        jobs.push(job("b", 4_000, waiting.clone()));
        jobs.push(job("c", 5_000, waiting));
        assert_eq!(longest_wait(&jobs, 10_000), 6_000);
    }
}
