//! A maker: transmits the batches of jobs, counts their results, and ends them.
//!
//! One maker has the lease of a job. Its knowledge of the job is the status and the stream of results, so another one continues after
//! a crash: it repeats at most the batches since the last cursor, and each batch counts once.

mod housekeeping;
mod transmit;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::{
    task::spawn_blocking,
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    apps::{App, CurrentApps},
    engine::{Engine, Results},
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

/// Pause after an error of the broker.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of jobs that one process makes at a time; others wait, or another process takes them.
const JOBS_MAX: usize = 256;

/// Maximum number of results whose metadata are in memory while they are written back.
const UPDATES_MAX: usize = 1_000_000;

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
        let tasks = TaskTracker::new();
        let running = Arc::new(Mutex::new(HashSet::new()));
        let mut changes = self.mirror.changes();
        let mut last_housekeeping = 0;
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            if self.mirror.is_current() {
                self.take_jobs(&tasks, &running).await;
                let now = (self.clock)();
                if now.saturating_sub(last_housekeeping) >= 10_000 {
                    last_housekeeping = now;
                    if let Err(error) = self.keep_house().await {
                        tracing::debug!(error = format!("{error:#}"), "housekeeping failed");
                    }
                }
            }
            let changed = timeout(TICK, changes.changed());
            self.stop.run_until_cancelled(changed).await;
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn take_jobs(&self, tasks: &TaskTracker, running: &Arc<Mutex<HashSet<String>>>) {
        let apps = (self.apps)();
        let mut waiting: Vec<_> = self
            .mirror
            .jobs()
            .into_iter()
            .filter(|job| needs_maker(job))
            .collect();
        waiting.sort_by_key(|job| (job.created_at, job.job_id.clone()));
        for job in waiting {
            let locked = |it: &Arc<Mutex<HashSet<String>>>| {
                it.lock().unwrap_or_else(PoisonError::into_inner).len()
            };
            let is_running = running
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(&job.job_id);
            let Some(app) = apps.get(&job.app_name).filter(|_| !is_running) else {
                continue;
            };
            if locked(running) >= JOBS_MAX {
                return;
            }
            let key = format!("maker.{}", job.job_id);
            if !self.mirror.is_free(&key) {
                continue;
            }
            match Lease::acquire(&self.engine, &self.mirror, key, &self.id).await {
                Ok(Some(lease)) => {
                    let (maker, running) = (self.clone(), Arc::clone(running));
                    let id = job.job_id.clone();
                    running
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(id.clone());
                    tasks.spawn(async move {
                        maker.make(&id, &app, lease).await;
                        running
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .remove(&id);
                    });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "no lease of a job");
                    return;
                }
            }
        }
    }

    /// Makes a job until it ends, the lease is lost, or `stop`.
    async fn make(&self, id: &str, app: &Arc<App>, lease: Lease<E>) {
        let lost = lease.lost().clone();
        let making = async {
            while let Err(error) = self.make_once(id, app).await {
                tracing::warn!(
                    job = id,
                    error = format!("{error:#}"),
                    "job is retried after an error"
                );
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
        let Some(job) = change_job(&self.engine, id, |_| false).await? else {
            return Ok(());
        };
        if !job.is_open() {
            return self.end_cancelled(id).await;
        }
        let mut results = self.engine.results(id, 0).await?;
        let mut tally = Tally::default();
        let first = job.clone();
        let transmission = self.transmit(&first, app);
        tokio::pin!(transmission);
        let mut transmits = job.server_state == ServerState::Transmitting;
        let mut ticks = interval(TICK);
        let mut job = job;
        loop {
            tokio::select! {
                sent = &mut transmission, if transmits => {
                    if let Err(error) = sent {
                        let reason = format!("{error:#}");
                        self.cancel(id, &reason).await?;
                        return self.end_cancelled(id).await;
                    }
                    transmits = false;
                }
                result = results.next() => {
                    let (_, result) = result.context("results ended")??;
                    self.count(id, &mut tally, &result);
                    // A burst of results is counted before anything else.
                    while let Some(Some(result)) = results.next().now_or_never() {
                        self.count(id, &mut tally, &result?.1);
                    }
                }
                _ = ticks.tick() => {}
            }
            let Some(newest) = self.write_progress(id, &tally, &job).await? else {
                return Ok(());
            };
            job = newest;
            if let Some(reason) = jobs::overdue(&job, (self.clock)()) {
                self.cancel(id, reason).await?;
            }
            if !job.is_open() {
                return self.end_cancelled(id).await;
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
            Ok(result) if result.job_id == id => {
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

    /// Writes the counts if they have changed; returns the newest status.
    async fn write_progress(
        &self,
        id: &str,
        tally: &Tally,
        job: &JobStatus,
    ) -> Result<Option<JobStatus>> {
        let is_behind = tally.counts.checked != job.counts.checked;
        let is_last = tally.has_all(job.batch_count);
        let step = (job.asset_count / 200).max(1);
        let has_step = tally.counts.checked.abs_diff(job.counts.checked) >= step;
        if !(is_behind && (has_step || is_last)) {
            // The copy is enough to notice a change by others.
            return match self.mirror.job(id) {
                Some(newest) if newest.batch_count >= job.batch_count => {
                    Ok(Some(newest.as_ref().clone()))
                }
                _ => change_job(&self.engine, id, |_| false).await,
            };
        }
        let write = |job: &mut JobStatus| {
            let pruned = job.counts.pruned;
            job.counts = tally.counts;
            job.counts.pruned = pruned;
            job.is_open()
        };
        change_job(&self.engine, id, write).await
    }

    async fn cancel(&self, id: &str, reason: &str) -> Result<()> {
        tracing::warn!(job = id, reason, "job cancelled");
        let cancel = |job: &mut JobStatus| {
            jobs::cancel(job, reason, (self.clock)());
            true
        };
        change_job(&self.engine, id, cancel).await?;
        Ok(())
    }

    /// Completes a cancellation by either side.
    async fn end_cancelled(&self, id: &str) -> Result<()> {
        let end = |job: &mut JobStatus| {
            if !job.is_cancelled() {
                return false;
            }
            let is_change = job.server_state != ServerState::Cancelled
                || job.revalidator_state != RevalidatorState::Cancelled;
            job.server_state = ServerState::Cancelled;
            job.revalidator_state = RevalidatorState::Cancelled;
            job.ended_at.get_or_insert((self.clock)());
            is_change
        };
        change_job(&self.engine, id, end).await?;
        self.engine.purge(id, false).await
    }

    /// The first result of each batch, in the order of their publication. Ends after the last batch.
    async fn first_results(&self, job: &JobStatus, with_retries: bool) -> Result<FirstResults> {
        let retries = job.retry_batch_count.filter(|_| with_retries).unwrap_or(0);
        Ok(FirstResults {
            results: self.engine.results(&job.job_id, 0).await?,
            seen: HashSet::new(),
            remaining: job.batch_count + retries,
            with_retries,
        })
    }

    /// Publishes all assets whose first attempt failed in batches with a mark; returns their number. Repeating it publishes the same
    /// batches.
    async fn send_retries(&self, job: &JobStatus) -> Result<u64> {
        let mut results = self.first_results(job, false).await?;
        let mut failed = Vec::new();
        let mut count = 0;
        loop {
            let next = results.next().await?;
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
        let mut is_first = true;
        while let Err(error) = self
            .engine
            .send_batch(&batch.job_id, &batch.id(), payload.clone())
            .await
        {
            if is_first {
                tracing::warn!(
                    job = batch.job_id,
                    error = format!("{error:#}"),
                    "batch waits for the broker"
                );
                is_first = false;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn finish(&self, job: &JobStatus, app: &Arc<App>, tally: &Tally) -> Result<()> {
        let id = &job.job_id;
        let processing = |job: &mut JobStatus| {
            job.server_state = ServerState::ProcessingResults;
            job.is_open()
        };
        change_job(&self.engine, id, processing).await?;
        if let Some(path) = app.assets.clone().filter(|_| !job.push) {
            let selection = selection(job, app);
            let prunes = prunes(job, app);
            let mut results = self.first_results(job, true).await?;
            loop {
                let mut updates = HashMap::new();
                while updates.len() < UPDATES_MAX
                    && let Some(result) = results.next().await?
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
            let pruned = job.counts.pruned;
            job.counts = tally.counts;
            job.counts.pruned = pruned;
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
            .prune_after
            .filter(|_| prunes(job, app))
            .map(|it| it.as_secs()),
    }
}

/// Whether a job removes objects that nobody requested.
fn prunes(job: &JobStatus, app: &App) -> bool {
    job.allow_delete.min(app.allow_delete) != AllowDelete::None && app.prune_after.is_some()
}

/// Reads the first result of each batch.
struct FirstResults {
    results: Results,
    seen: HashSet<(u64, u32)>,
    remaining: u64,
    with_retries: bool,
}

impl FirstResults {
    async fn next(&mut self) -> Result<Option<JobResult>> {
        while self.remaining > 0 {
            let Some(payload) = timeout(Duration::from_secs(30), self.results.next()).await? else {
                bail!("results ended");
            };
            let Ok(result) = serde_json::from_slice::<JobResult>(&payload?.1) else {
                continue;
            };
            let is_wanted = self.with_retries || result.attempt == 1;
            if is_wanted && self.seen.insert((result.batch, result.attempt)) {
                self.remaining -= 1;
                return Ok(Some(result));
            }
        }
        Ok(None)
    }
}
