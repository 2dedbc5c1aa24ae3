//! Housekeeping: cancels overdue jobs, removes ended jobs and keys of lost processes, bounds the space that results take, and creates
//! scheduled jobs.
//!
//! Every [maker](super) runs all steps. Repeating a step changes nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use anyhow::Result;

use super::Maker;
use crate::{
    engine::{Bucket, Engine, RESULT_BYTES_MAX},
    jobs::{
        DAY_MS, ENDED_CHECK_MS_MAX, ENDED_MS_MAX, QUIET_MS, correct, is_throttled, overdue,
        set_quiet,
    },
    messages::{JobStatus, ServerState, is_job_id},
    mirror::{change_job, create_job, new_job},
};

/// Maximum number of ended jobs, and of ended single checks.
const ENDED_JOBS_MAX: usize = 1000;

/// Prefix of the keys of schedules in the bucket of subscriptions. Their values are the times of the last evaluations.
const SCHEDULE: &str = "schedule.";

/// Time between two runs.
const INTERVAL_MS: u64 = 10_000;

/// State of the last run.
#[derive(Default)]
pub(super) struct LastRun {
    at: u64,
    /// Ids that had messages but no job.
    strays: HashSet<String>,
    /// For foreign jobs, the numbers of batches and results, and since when these are the same.
    progress: HashMap<String, ([u64; 2], u64)>,
}

impl<E: Engine> Maker<E> {
    /// Runs all steps if the last run was at least [`INTERVAL_MS`] ago, and records its state.
    pub(super) async fn run_housekeeping(&self, last: &mut LastRun) -> Result<()> {
        let now = (self.clock)();
        if now.saturating_sub(last.at) < INTERVAL_MS {
            return Ok(());
        }
        let before = std::mem::replace(&mut last.at, now);
        let jobs = self.mirror.jobs();
        let lost = self.mirror.lost().into_iter();
        for (key, revision) in lost.filter(|(key, _)| !key.starts_with(SCHEDULE)) {
            let bucket = Bucket::Subscriptions;
            // Another maker may delete it first.
            drop(self.engine.delete(bucket, &key, Some(revision)).await);
        }
        self.fire(&jobs, before, now).await?;
        let [batches, results] = self.engine.jobs_with_messages().await?;
        for job in &jobs {
            let has_batches = batches.contains(&job.job_id);
            if let Err(error) = self.end_overdue(job, has_batches, now).await {
                tracing::debug!(job = job.job_id, %error, "failed to end a job");
            }
        }
        self.watch_makers(&jobs, &mut last.progress, now).await?;
        self.remove_strays(&batches | &results, &mut last.strays)
            .await?;
        self.remove_ended(&jobs, before, now).await
    }

    /// Marks the open foreign jobs without a new batch or result, or a batch that is not processed yet, for [`QUIET_MS`].
    async fn watch_makers(
        &self,
        jobs: &[Arc<JobStatus>],
        progress: &mut HashMap<String, ([u64; 2], u64)>,
        now: u64,
    ) -> Result<()> {
        let before = std::mem::take(progress);
        for job in jobs.iter().filter(|job| job.foreign && job.is_open()) {
            let id = &job.job_id;
            let [batches, results] = self.engine.messages(id).await?;
            let found = [job.batch_count, results];
            let last = before.get(id).copied().unwrap_or((found, now));
            let has_progress = batches > 0 || last.0 != found;
            let since = if has_progress { now } else { last.1 };
            progress.insert(id.clone(), (found, since));
            let quiet = (now.saturating_sub(since) >= QUIET_MS).then_some(since);
            if quiet.is_some() != job.quiet_since.is_some() && (quiet.is_some() || has_progress) {
                change_job(&self.engine, id, |job| set_quiet(job, quiet)).await?;
            }
        }
        Ok(())
    }

    /// Cancels an overdue job, and removes the batches of a cancelled one. Includes jobs of other programs and of unknown
    /// applications. Removes an overdue job that cannot be changed.
    async fn end_overdue(&self, job: &JobStatus, has_batches: bool, now: u64) -> Result<()> {
        let is_complete = job.server_state == ServerState::Cancelled && !has_batches;
        if correct(&mut job.clone(), now) {
            let correct = |job: &mut JobStatus| {
                correct(job, now);
            };
            change_job(&self.engine, &job.job_id, correct).await?;
        } else if let Some(reason) = overdue(job, now).filter(|_| job.is_open()) {
            if self.end_cancelled(&job.job_id, Some(reason)).await.is_err() {
                self.engine.purge(&job.job_id, true).await?;
                self.engine.delete(Bucket::Jobs, &job.job_id, None).await?;
            }
        } else if job.is_cancelled() && !is_complete {
            self.end_cancelled(&job.job_id, None).await?;
        }
        Ok(())
    }

    /// Removes messages of jobs that do not exist. A job may be created after its messages, so they are removed only by the second
    /// check.
    async fn remove_strays(
        &self,
        mut found: HashSet<String>,
        strays: &mut HashSet<String>,
    ) -> Result<()> {
        // Wildcards would remove messages of other jobs.
        found.retain(|id| self.mirror.job(id).is_none() && !id.contains(['*', '>']));
        for id in found.intersection(strays) {
            // The copy of the bucket may be late.
            if !is_job_id(id) || self.engine.get(Bucket::Jobs, id).await?.is_none() {
                self.engine.purge(id, true).await?;
                self.metrics.invalid_messages.inc();
            }
        }
        *strays = found;
        Ok(())
    }

    /// Removes ended jobs: old ones, those above the maximum, and the oldest while results fill more than half of their stream.
    async fn remove_ended(&self, jobs: &[Arc<JobStatus>], last: u64, now: u64) -> Result<()> {
        let mut bytes = self.engine.result_bytes().await?;
        let gauge = &self.metrics.result_bytes;
        gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        for (is_check, age_max) in [(false, ENDED_MS_MAX), (true, ENDED_CHECK_MS_MAX)] {
            // Cancelled jobs are shown until they are acknowledged.
            let is_shown = |job: &JobStatus| job.is_cancelled() && !job.acknowledged && !is_check;
            let is_kept = |job: &JobStatus| job.is_open() || is_throttled(job, now);
            let ended = jobs
                .iter()
                .filter(|job| job.push == is_check && !is_kept(job));
            let ended = ended.filter_map(|job| Some((is_shown(job), job.ended_at?, &job.job_id)));
            let mut ended: Vec<_> = ended.collect();
            ended.sort_unstable();
            let surplus = ended.len().saturating_sub(ENDED_JOBS_MAX);
            for (index, (is_shown, at, id)) in ended.into_iter().enumerate() {
                let age = now.saturating_sub(at);
                let is_full = bytes > RESULT_BYTES_MAX / 2;
                if is_full {
                    self.engine.purge(id, true).await?;
                    bytes = self.engine.result_bytes().await?;
                }
                if index < surplus || (!is_shown && (is_full || age >= age_max)) {
                    self.engine.purge(id, true).await?;
                    self.engine.delete(Bucket::Jobs, id, None).await?;
                } else if is_shown && age / DAY_MS != last.saturating_sub(at) / DAY_MS {
                    // Written again, because the bucket removes old keys.
                    if let Some((it, revision)) = self.engine.get(Bucket::Jobs, id).await? {
                        let revision = Some(revision);
                        let set = self.engine.compare_and_set(Bucket::Jobs, id, it, revision);
                        set.await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates the jobs of schedules: one per firing, however many makers run, and none while another job of the application is open.
    async fn fire(&self, jobs: &[Arc<JobStatus>], before: u64, now: u64) -> Result<()> {
        for app in (self.apps)().iter() {
            let Some(schedule) = &app.settings.schedule else {
                continue;
            };
            let key = format!("{SCHEDULE}{}", app.name);
            let found = self.engine.get(Bucket::Subscriptions, &key).await?;
            let revision = found.as_ref().map(|it| it.1);
            let last = found.and_then(|it| serde_json::from_slice::<u64>(&it.0).ok());
            let last = last.filter(|last| *last <= now + DAY_MS);
            // Without a stored time, this process has evaluated the schedule in its last run, if there was one.
            let last_run = if before > 0 { before } else { now };
            let due = schedule.due(last.unwrap_or(last_run), now);
            // The key is also written once a day, because the bucket removes old keys.
            if due.is_none() && last.is_some_and(|last| now.saturating_sub(last) < DAY_MS) {
                continue;
            }
            let is_busy =
                |job: &Arc<JobStatus>| job.app_name == app.name && !job.push && job.is_open();
            if let Some(due) = due.filter(|_| !jobs.iter().any(is_busy)) {
                let job = new_job(app, format!("{}-{due}", app.name), now);
                if create_job(&self.engine, &job).await? {
                    tracing::info!(app = app.name, "scheduled job created");
                }
            }
            let (bucket, value) = (Bucket::Subscriptions, now.to_string().into());
            let set = self.engine.compare_and_set(bucket, &key, value, revision);
            set.await?;
        }
        Ok(())
    }
}
