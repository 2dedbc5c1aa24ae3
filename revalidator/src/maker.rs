//! A maker: transmits the batches of jobs, counts their results, and ends them.
//!
//! One maker has the lease of a job. Its knowledge of the job is the status and the stream of results, so another one continues after
//! a crash: it repeats at most the batches since the last cursor, and each batch counts once.

mod housekeeping;
mod transmit;

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream::BoxStream};
use tokio::{
    task::{AbortHandle, JoinSet, spawn_blocking},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    apps::{App, CurrentApps},
    engine::Engine,
    jobs::{self, Tally, is_retried},
    lease::Lease,
    messages::{
        AllowDelete, BATCH_ASSETS_MAX, JobBatch, JobResult, JobStatus, RevalidatorState,
        ServerState,
    },
    metrics::Metrics,
    mirror::{Mirror, change_job},
    source::{self, Selection, Update},
};

/// Time between two writes of the progress of a job, two checks of its limits, and two searches for jobs without a maker.
const TICK: Duration = Duration::from_secs(1);

/// Time between two searches for ended jobs, lost processes and due schedules.
const HOUSEKEEPING_MS: u64 = 10_000;

/// Pause after an error of the broker.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of jobs that one process makes at a time; others wait, or another process takes them.
const JOBS_MAX: usize = 256;

/// Maximum number of results whose metadata are in memory while they are written back.
const UPDATES_MAX: usize = 1_000_000;

/// The first result of each batch.
type FirstResults = BoxStream<'static, Result<JobResult>>;

/// What a maker needs; clones share it.
#[derive(Clone)]
pub struct Maker<E> {
    /// Unique id.
    pub id: String,
    /// The broker.
    pub engine: E,
    /// The copy of its buckets.
    pub mirror: Mirror,
    /// The applications.
    pub apps: CurrentApps,
    /// Counters.
    pub metrics: Metrics,
    /// Ends the maker.
    pub stop: CancellationToken,
    /// Start of the process, in Unix milliseconds.
    pub started_at: u64,
    /// Clock of jobs, in Unix milliseconds.
    pub clock: fn() -> u64,
}

impl<E: Engine> Maker<E> {
    /// Makes all jobs of its applications that have no other maker, until `stop`.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        let mut running = HashMap::new();
        let mut changes = self.mirror.changes();
        let mut last_housekeeping = 0;
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            while tasks.join_next().now_or_never().flatten().is_some() {}
            let now = (self.clock)();
            if self.mirror.is_current() {
                let mut results = vec![self.take_jobs(&mut tasks, &mut running).await];
                if now.saturating_sub(last_housekeeping) >= HOUSEKEEPING_MS {
                    last_housekeeping = now;
                    results.push(self.keep_house().await);
                }
                for error in results.into_iter().filter_map(Result::err) {
                    tracing::debug!(error = format!("{error:#}"), "search for jobs failed");
                }
            }
            let changed = timeout(TICK, changes.changed());
            self.stop.run_until_cancelled(changed).await;
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn take_jobs(
        &self,
        tasks: &mut JoinSet<()>,
        running: &mut HashMap<String, AbortHandle>,
    ) -> Result<()> {
        running.retain(|_, task| !task.is_finished());
        let apps = (self.apps)();
        let mut jobs = self.mirror.jobs();
        jobs.retain(|job| needs_maker(job) && !running.contains_key(&job.job_id));
        jobs.sort_by_key(|job| (job.created_at, job.job_id.clone()));
        for job in jobs {
            let key = format!("maker.{}", job.job_id);
            let app = apps
                .get(&job.app_name)
                .filter(|_| self.mirror.is_free(&key));
            let Some(app) = app.filter(|_| running.len() < JOBS_MAX) else {
                continue;
            };
            if let Some(lease) = Lease::acquire(&self.engine, &self.mirror, key, &self.id).await? {
                let (maker, id) = (self.clone(), job.job_id.clone());
                let task = tasks.spawn(async move { maker.make(&id, &app, lease).await });
                running.insert(job.job_id.clone(), task);
            }
        }
        Ok(())
    }

    /// Makes a job until it ends, the lease is lost, or `stop`.
    async fn make(&self, id: &str, app: &Arc<App>, lease: Lease<E>) {
        let lost = lease.lost().clone();
        let making = async {
            while let Err(error) = self.make_once(id, app).await {
                let error = format!("{error:#}");
                tracing::warn!(job = id, error, "job is retried after an error");
                sleep(RETRY_PAUSE).await;
            }
        };
        tokio::select! {
            () = making => {}
            () = lost.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
        lease.release().await;
    }

    async fn make_once(&self, id: &str, app: &Arc<App>) -> Result<()> {
        let Some(mut job) = change_job(&self.engine, id, |_| false).await? else {
            return Ok(());
        };
        if !job.is_open() && !job.is_cancelled() {
            // Another program wrote states that contradict each other, or an unknown one.
            let suspend = |job: &mut JobStatus| {
                jobs::pause(job, (self.clock)());
                job.reason = Some("its state is impossible".to_owned());
                true
            };
            let suspended = change_job(&self.engine, id, suspend).await?;
            job = suspended.context("the job was deleted")?;
        }
        if !job.is_open() {
            return self.end_cancelled(id, None).await;
        }
        let mut results = self.engine.results(id, 0).await?;
        let mut tally = Tally::default();
        let first = job.clone();
        let transmission = self.transmit(&first, app);
        tokio::pin!(transmission);
        let mut transmits = job.server_state == ServerState::Transmitting;
        let mut ticks = interval(TICK);
        loop {
            tokio::select! {
                sent = &mut transmission, if transmits => {
                    if let Err(error) = sent {
                        return self.end_cancelled(id, Some(&format!("{error:#}"))).await;
                    }
                    transmits = false;
                }
                result = results.next() => {
                    let (_, result) = result.context("results ended")??;
                    self.count(id, &mut tally, &result);
                    if transmits || !tally.has_all(job.batch_count) {
                        continue;
                    }
                }
                _ = ticks.tick() => {}
            }
            let write_counts = |job: &mut JobStatus| {
                let is_change = job.counts != tally.counts;
                job.counts = tally.counts;
                is_change && job.is_open()
            };
            match change_job(&self.engine, id, write_counts).await? {
                Some(newest) => job = newest,
                None => return Ok(()),
            }
            let overdue = jobs::overdue(&job, (self.clock)());
            if overdue.is_some() || !job.is_open() {
                return self.end_cancelled(id, overdue).await;
            }
            if transmits
                || job.server_state == ServerState::Transmitting
                || !tally.has_all(job.batch_count)
            {
                continue;
            }
            if job.retry_batch_count.is_none() {
                let count = self.send_retries(&job).await?;
                let set = |job: &mut JobStatus| {
                    job.retry_batch_count = Some(count);
                    true
                };
                match change_job(&self.engine, id, set).await? {
                    Some(newest) => job = newest,
                    None => return Ok(()),
                }
            }
            if tally.is_complete(&job) {
                return self.finish(&job, app, &tally).await;
            }
        }
    }

    fn count(&self, id: &str, tally: &mut Tally, payload: &[u8]) {
        match serde_json::from_slice::<JobResult>(payload) {
            Ok(result) if result.job_id == id && matches!(result.attempt, 1 | 2) => {
                if !tally.count(&result) {
                    self.metrics.batches_repeated.inc();
                }
            }
            _ => {
                self.metrics.invalid_messages.inc();
                tracing::debug!(job = id, "ignored an invalid result");
            }
        }
    }

    /// Cancels a job for a reason, or completes a cancellation by others.
    async fn end_cancelled(&self, id: &str, reason: Option<&str>) -> Result<()> {
        let end = |job: &mut JobStatus| {
            if let Some(reason) = reason {
                tracing::warn!(job = id, reason, "job cancelled");
                jobs::cancel(job, reason, (self.clock)());
            }
            if job.is_cancelled() {
                job.server_state = ServerState::Cancelled;
                job.revalidator_state = RevalidatorState::Cancelled;
                job.ended_at.get_or_insert((self.clock)());
            }
            job.is_cancelled()
        };
        let ended = change_job(&self.engine, id, end).await?;
        if ended.is_none_or(|job| job.is_cancelled()) {
            self.engine.purge(id, false).await?;
        }
        Ok(())
    }

    /// The first result of each batch, in the order of their publication. Ends after the last batch.
    async fn first_results(&self, job: &JobStatus, with_retries: bool) -> Result<FirstResults> {
        let retries = job.retry_batch_count.filter(|_| with_retries).unwrap_or(0);
        let (batches, id) = (job.batch_count, job.job_id.clone());
        let count = usize::try_from(batches + retries)?;
        let mut seen = HashSet::new();
        let mut is_first = move |it: &JobResult| {
            let is_expected = match it.attempt {
                1 => it.batch < batches,
                2 => it.batch < retries,
                _ => false,
            };
            is_expected && it.job_id == id && seen.insert((it.batch, it.attempt))
        };
        let first = move |payload: Result<(u64, Bytes)>| {
            ready(match payload {
                Ok((_, payload)) => {
                    let result = serde_json::from_slice(&payload).ok();
                    result.filter(|it| is_first(it)).map(Ok)
                }
                Err(error) => Some(Err(error)),
            })
        };
        let results = self.engine.results(&job.job_id, 0).await?;
        Ok(results.filter_map(first).take(count).boxed())
    }

    /// Publishes all assets whose first attempt failed in batches with a mark; returns their number. Repeating it publishes the same
    /// batches.
    async fn send_retries(&self, job: &JobStatus) -> Result<u64> {
        let mut results = self.first_results(job, false).await?;
        let mut failed = Vec::new();
        let mut count = 0;
        loop {
            let next = results.next().await.transpose()?;
            let is_end = next.is_none();
            let found = next.into_iter().flat_map(|it| it.results);
            failed.extend(found.filter(|it| is_retried(it, 1)).map(|it| it.asset));
            while failed.len() >= BATCH_ASSETS_MAX || (is_end && !failed.is_empty()) {
                let rest = failed.split_off(failed.len().min(BATCH_ASSETS_MAX));
                let batch = JobBatch {
                    assets: failed,
                    job_id: job.job_id.clone(),
                    batch: count,
                    attempt: 2,
                };
                self.send(&batch).await;
                failed = rest;
                count += 1;
            }
            if is_end {
                return Ok(count);
            }
        }
    }

    /// Publishes a batch; retries until it is accepted, because a full stream has room again when workers have progressed.
    async fn send(&self, batch: &JobBatch) {
        let payload = Bytes::from(serde_json::to_vec(batch).unwrap_or_default());
        let (job, id) = (&batch.job_id, batch.id());
        while let Err(error) = self.engine.send_batch(job, &id, payload.clone()).await {
            let error = format!("{error:#}");
            tracing::debug!(id, error, "batch waits for the broker");
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn finish(&self, job: &JobStatus, app: &Arc<App>, tally: &Tally) -> Result<()> {
        let id = &job.job_id;
        let processing = |job: &mut JobStatus| {
            let is_open = job.is_open();
            if is_open {
                job.server_state = ServerState::ProcessingResults;
            }
            is_open
        };
        let newest = change_job(&self.engine, id, processing).await?;
        if !newest.is_some_and(|job| job.is_open()) {
            return self.end_cancelled(id, None).await;
        }
        if let Some(path) = app.settings.assets.clone().filter(|_| !job.push) {
            let selection = selection(job, app);
            let prunes = job.pruned > 0;
            let mut results = self.first_results(job, true).await?;
            loop {
                let mut updates = HashMap::new();
                while updates.len() < UPDATES_MAX
                    && let Some(result) = results.next().await.transpose()?
                {
                    for it in result.results {
                        let name = it.asset.name().to_owned();
                        if it.is_deleted {
                            updates.insert(name, Update::Removed);
                        } else if !it.server_error {
                            updates.insert(name, Update::Checked(it.asset));
                        }
                    }
                }
                let is_last = updates.len() < UPDATES_MAX;
                let (path, selection) = (path.clone(), selection.clone());
                spawn_blocking(move || source::write_back(&path, &selection, prunes, &updates))
                    .await??;
                if is_last {
                    break;
                }
            }
        }
        let end = |job: &mut JobStatus| {
            job.counts = tally.counts;
            if job.is_open() {
                job.server_state = ServerState::Finished;
                job.revalidator_state = RevalidatorState::Finished;
                job.started_at.get_or_insert((self.clock)());
                job.ended_at = Some((self.clock)());
                job.reason = None;
            }
            true
        };
        change_job(&self.engine, id, end).await?;
        tracing::info!(
            job = id,
            checked = tally.counts.checked,
            changed = tally.counts.changed,
            "job finished"
        );
        self.engine.purge(id, false).await
    }
}

/// Whether a maker of this program has something to do for a job.
fn needs_maker(job: &JobStatus) -> bool {
    let is_unfinished = matches!(
        job.server_state,
        ServerState::Transmitting | ServerState::WaitForResults | ServerState::ProcessingResults
    );
    is_unfinished && !job.foreign
}

fn selection(job: &JobStatus, app: &App) -> Selection {
    Selection {
        filter: job.filter.clone(),
        created_at: job.created_at / 1000,
        prune_after: app
            .settings
            .prune_after
            .filter(|_| prunes(job, app))
            .map(|it| it.as_secs()),
    }
}

/// Whether a job removes objects that were not requested for a long time.
fn prunes(job: &JobStatus, app: &App) -> bool {
    job.allow_delete.min(app.settings.allow_delete) != AllowDelete::None
        && app.settings.prune_after.is_some()
}
