//! A maker: sends the batches of each job to workers through the broker, counts the results, and ends the job.
//!
//! At most one maker at a time holds the lease of a job. The broker stores the status and the results of the job, so another maker can
//! continue after a crash. It resends only the batches after the last saved cursor, and each batch counts once. The counted results are
//! collected in a file.

pub mod bodies;
mod housekeeping;
mod transmit;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::{
    sync::{Semaphore, watch},
    task::{AbortHandle, JoinSet, spawn_blocking},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use self::{bodies::Bodies, housekeeping::LastRun};
use crate::{
    apps::{App, CurrentApps},
    engine::{Engine, RETRY_PAUSE},
    jobs::{self, OPEN_JOBS_MAX},
    lease::Lease,
    messages::{
        AllowDelete, Asset, BATCH_ASSETS_MAX, JobBatch, JobResult, JobStatus, RevalidatorState,
        ServerState,
    },
    metrics::Metrics,
    mirror::{Mirror, change_job, change_job_of, maker_key},
    source::{self, ResultFile, Selection},
};

/// Time between two writes of the progress of a job, and between two searches for jobs without a maker.
const TICK: Duration = Duration::from_secs(1);

/// Maximum pause after an error; it doubles with each error of a job.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Seconds without a result after which a maker checks that no batch is lost.
const QUIET_TICKS: u32 = 10;

/// First words of the reason of a job that is retried.
const RETRIED: &str = "retrying after an error";

/// Time after which received assets are removed if their job does not exist.
const UNKNOWN_JOB: Duration = Duration::from_secs(60);

/// Dependencies of a maker; clones share them.
#[derive(Clone)]
pub struct Maker<E> {
    /// Unique id.
    pub id: String,
    /// The broker.
    pub engine: E,
    /// The copy of the broker's buckets.
    pub mirror: Mirror,
    /// The applications.
    pub apps: CurrentApps,
    /// Counters.
    pub metrics: Metrics,
    /// Assets that this process received.
    pub bodies: Bodies,
    /// Permit to write back results, which needs disk space.
    pub write_back: Arc<Semaphore>,
    /// Ends the maker.
    pub stop: CancellationToken,
    /// Clock of jobs, in Unix milliseconds.
    pub clock: fn() -> u64,
}

impl<E: Engine> Maker<E> {
    /// Runs all jobs of its applications that have no other maker, until `stop`.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        let mut running = HashMap::new();
        let mut changes = self.mirror.changes();
        let mut last_run = LastRun::default();
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            while let Some(made) = tasks.join_next().now_or_never().flatten() {
                made.expect("the maker of a job does not panic");
            }
            if self.mirror.is_current() {
                let taken = self.take_jobs(&mut tasks, &mut running).await;
                let kept = self.run_housekeeping(&mut last_run).await;
                if let Err(error) = taken.and(kept) {
                    tracing::debug!(error = format!("{error:#}"), "failed to start or end jobs");
                }
            }
            let changed = timeout(TICK, changes.changed());
            self.stop.run_until_cancelled(changed).await;
        }
        tasks.join_all().await;
    }

    async fn take_jobs(
        &self,
        tasks: &mut JoinSet<()>,
        running: &mut HashMap<String, AbortHandle>,
    ) -> Result<()> {
        running.retain(|_, task| !task.is_finished());
        self.bodies
            .lock()
            .retain(|id, body| match self.mirror.job(id) {
                Some(job) => job.is_open() && job.server_state == ServerState::Transmitting,
                None => body.at.elapsed() < UNKNOWN_JOB,
            });
        let (apps, mut jobs) = ((self.apps)(), self.mirror.jobs());
        jobs.sort_by_key(|job| (job.created_at, job.job_id.clone()));
        let candidates = jobs::candidates(jobs.iter().map(|job| &**job), (self.clock)());
        for job in &jobs {
            let id = &job.job_id;
            // An older job of the application may change the source.
            let waits = job.is_open()
                && job.server_state == ServerState::Transmitting
                && !candidates.iter().any(|it| it.job_id == *id);
            let is_taken = running.contains_key(id) || running.len() >= OPEN_JOBS_MAX;
            let app = apps.get(&job.app_name);
            let Some(app) = app.filter(|_| needs_maker(job) && !waits && !is_taken) else {
                continue;
            };
            let key = maker_key(id);
            let received = self.bodies.lock().get_mut(id).map(|it| it.lease.take());
            let lease = match received.flatten() {
                None => Lease::acquire(&self.engine, &self.mirror, key, &self.id).await?,
                lease => lease,
            };
            if let Some(lease) = lease {
                let (maker, id) = (self.clone(), id.clone());
                let task = tasks.spawn(async move { maker.make(&id, &app, lease).await });
                running.insert(job.job_id.clone(), task);
            }
        }
        Ok(())
    }

    /// Runs a job until it ends, the lease is lost, `stop` is cancelled, or a file cannot be read or written. Another maker may be
    /// able to use the file, so this one then leaves the job to others for [`RETRY_PAUSE_MAX`]; otherwise for [`RETRY_PAUSE`],
    /// because its copy of the job may be old.
    async fn make(&self, id: &str, app: &Arc<App>, lease: Lease) {
        let lost = lease.lost.clone();
        let pause = tokio::select! {
            pause = self.make_with_retries(id, app) => pause,
            () = lost.cancelled() => RETRY_PAUSE,
            () = self.stop.cancelled() => RETRY_PAUSE,
        };
        lease.release().await;
        self.stop.run_until_cancelled(sleep(pause)).await;
    }

    /// Returns the time for which only other makers may take the job.
    async fn make_with_retries(&self, id: &str, app: &Arc<App>) -> Duration {
        let mut pause = RETRY_PAUSE;
        while let Err(error) = self.make_once(id, app).await {
            let text = format!("{RETRIED}: {error:#}");
            tracing::warn!(job = id, error = text, "failed to process a job");
            let explain = |job: &mut JobStatus| {
                if job.is_open() && job.revalidator_state != RevalidatorState::Suspended {
                    job.reason = Some(text.clone());
                }
            };
            drop(self.change_job(id, explain).await);
            if error.is::<io::Error>() {
                return RETRY_PAUSE_MAX;
            }
            sleep(pause).await;
            pause = (2 * pause).min(RETRY_PAUSE_MAX);
        }
        RETRY_PAUSE
    }

    async fn change(&self, id: &str, change: impl FnMut(&mut JobStatus)) -> Result<JobStatus> {
        let job = self.change_job(id, change).await?;
        job.context("the job was deleted")
    }

    async fn change_job(
        &self,
        id: &str,
        change: impl FnMut(&mut JobStatus),
    ) -> Result<Option<JobStatus>> {
        change_job_of(&self.engine, id, Some(&self.id), change).await
    }

    async fn make_once(&self, id: &str, app: &Arc<App>) -> Result<()> {
        let Some(mut job) = self.change_job(id, |_| ()).await? else {
            self.mirror.reload();
            return Ok(());
        };
        if job.server_state == ServerState::Finished {
            return self.engine.purge(id, false).await;
        }
        if !job.is_open() && !job.is_cancelled() {
            // Transmission continues at the cursor, which may be the end.
            job.server_state = ServerState::Transmitting;
            job = self.change(id, |it| self.restore(it, &job)).await?;
        }
        if !job.is_open() {
            return self.end_cancelled(id, None).await;
        }
        let mut results = self.engine.results(id, 0).await?;
        let list = app.settings.assets.as_deref().filter(|_| !job.push);
        let mut counted = ResultFile::new(list);
        counted.tally.counts.other.clone_from(&job.counts.other);
        let progress = watch::Sender::new(0);
        let (first, sent_batches) = (job.clone(), AtomicU64::new(job.batch_count));
        let transmission = self.transmit(&first, app, progress.subscribe(), &sent_batches);
        tokio::pin!(transmission);
        let mut transmits = job.server_state == ServerState::Transmitting;
        let known = self.engine.messages(id).await?;
        let is_continued = transmits && known.iter().any(|count| *count > 0);
        let (mut ticks, mut quiet, mut results_read) = (interval(TICK), 0, 0);
        loop {
            tokio::select! {
                sent = &mut transmission, if transmits => match sent {
                    Ok(sent) => {
                        transmits = false;
                        (job.server_state, job.batch_count) = (sent.server_state, sent.batch_count);
                    }
                    Err(error) if error.is::<io::Error>() && !job.has_body => return Err(error),
                    Err(error) => {
                        return self.end_cancelled(id, Some(&format!("{error:#}"))).await;
                    }
                },
                result = results.next() => {
                    let (_, result) = result.context("the stream of results ended")??;
                    (quiet, results_read) = (0, results_read + 1);
                    self.count(&job, &result, &mut counted)?;
                    progress.send_replace(counted.tally.first.len() as u64);
                    if transmits || !counted.tally.has_all(job.batch_count) {
                        continue;
                    }
                }
                _ = ticks.tick() => quiet += 1,
            }
            let update = |it: &mut JobStatus| {
                let is_own = it.server_state == job.server_state
                    && it.batch_count == job.batch_count
                    && it.retry_batch_count == job.retry_batch_count;
                if !it.is_cancelled() && !(it.is_open() && (is_own || transmits)) {
                    self.restore(it, &job);
                }
                if it.is_open() {
                    it.counts.clone_from(&counted.tally.counts);
                    drop(it.reason.take_if(|it| it.starts_with(RETRIED)));
                }
            };
            job = self.change(id, update).await?;
            if !job.is_open() {
                return self.end_cancelled(id, None).await;
            }
            let sent = sent_batches.load(Ordering::Relaxed);
            if quiet >= QUIET_TICKS && counted.tally.misses(sent, &job) {
                quiet = 0;
                // The result of a batch is published before the batch is settled.
                let [batches, results] = self.engine.messages(id).await?;
                if batches == 0 && results <= results_read {
                    return self.begin_again(id).await;
                }
            }
            if transmits || !counted.tally.has_all(job.batch_count) {
                continue;
            }
            if job.retry_batch_count.is_none() {
                let count = self.send_retries(&job, &mut counted).await?;
                let set = |job: &mut JobStatus| job.retry_batch_count = Some(count);
                job = self.change(id, set).await?;
            }
            // If an earlier maker published a batch with the same number, the later batch may have more assets.
            let has_batches = is_continued && self.engine.messages(id).await?[0] > 0;
            if counted.tally.is_complete(&job) && !has_batches {
                return self.finish(&job, app, counted).await;
            }
        }
    }

    /// Begins a job whose batches or results are lost again, or cancels it.
    async fn begin_again(&self, id: &str) -> Result<()> {
        self.engine.purge(id, true).await?;
        let received = self.bodies.lock().get(id).map(|it| it.start.to_string());
        let again = |job: &mut JobStatus| {
            let of_source = (!job.push && !job.has_body).then(String::new);
            jobs::begin_again(job, received.clone().or(of_source), (self.clock)());
        };
        let job = self.change(id, again).await?;
        tracing::warn!(
            job = id,
            restarts = job.restarts,
            "NATS lost batches or results of a job"
        );
        match job.is_cancelled() {
            true => self.end_cancelled(id, None).await,
            false => Ok(()),
        }
    }

    /// Pauses a job with an impossible state, which another program wrote, and restores the state of `last`.
    fn restore(&self, job: &mut JobStatus, last: &JobStatus) {
        job.server_state.clone_from(&last.server_state);
        (job.batch_count, job.retry_batch_count) = (last.batch_count, last.retry_batch_count);
        job.ended_at = None;
        jobs::pause(job, (self.clock)());
        job.reason = Some("another program wrote an impossible state".to_owned());
    }

    /// Counts a result, and adds it to the file.
    fn count(&self, job: &JobStatus, it: &[u8], to: &mut ResultFile) -> Result<()> {
        let result = serde_json::from_slice::<JobResult>(it).ok();
        let Some(result) = result.filter(|it| to.tally.is_expected(it, job)) else {
            self.metrics.invalid_messages.inc();
            tracing::debug!(job = job.job_id, "ignored an invalid result");
            return Ok(());
        };
        if !to.add(&result)? {
            self.metrics.batches_repeated.inc();
        }
        Ok(())
    }

    /// Cancels a job for `reason`; without it, completes a cancellation by another process.
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
        };
        let ended = change_job(&self.engine, id, end).await?;
        if ended.is_none_or(|job| job.is_cancelled()) {
            self.engine.purge(id, false).await?;
        }
        Ok(())
    }

    /// Publishes all assets whose first attempt failed, in batches of attempt 2; returns the number of batches. A repeated call
    /// publishes the same batches.
    async fn send_retries(&self, job: &JobStatus, file: &mut ResultFile) -> Result<u64> {
        let failed = file.failed.clone();
        let batches = failed.chunks(BATCH_ASSETS_MAX);
        for (number, positions) in (0..).zip(batches.clone()) {
            let assets = positions.iter().map(|it| Ok(file.read(*it)?.asset));
            let assets = assets.collect::<Result<_>>()?;
            self.send(job, number, 2, assets).await?;
        }
        Ok(batches.len() as u64)
    }

    /// Publishes a batch; retries while the job is open, because workers make room in a full stream. The message id depends on the
    /// assets, because an earlier maker may have published a batch with this number and other assets.
    async fn send(
        &self,
        job: &JobStatus,
        number: u64,
        attempt: u32,
        assets: Vec<Asset>,
    ) -> Result<()> {
        let (job, restarts) = (&job.job_id, job.restarts);
        let batch = JobBatch {
            restarts,
            ..JobBatch::new(job, number, attempt, assets)
        };
        let payload = Bytes::from(serde_json::to_vec(&batch)?);
        let id = format!("{}-{:x}", batch.id(), xxh3_64(&payload));
        let send = || self.engine.send_batch(job, &id, payload.clone());
        ensure!(self.mirror.repeat(job, send).await, "the job has ended");
        Ok(())
    }

    async fn finish(&self, job: &JobStatus, app: &App, counted: ResultFile) -> Result<()> {
        let id = &job.job_id;
        let processing = |job: &mut JobStatus| {
            if job.is_open() {
                job.server_state = ServerState::ProcessingResults;
            }
        };
        if !self.change(id, processing).await?.is_open() {
            return self.end_cancelled(id, None).await;
        }
        if let Some(path) = app.settings.assets.clone().filter(|_| !job.push) {
            let max_removals = match job.permitted(app.settings.allow_delete) {
                AllowDelete::None => 0.0,
                _ => app.settings.max_removals,
            };
            let selection = selection(job, app);
            let permit = Arc::clone(&self.write_back).acquire_owned().await;
            // Writing continues when this task ends, but does not replace the file.
            let ended = CancellationToken::new();
            let _end = ended.clone().drop_guard();
            let write = move || {
                let _permit = permit;
                source::write_back(&path, &selection, max_removals, counted, || {
                    !ended.is_cancelled()
                })
            };
            spawn_blocking(write).await??;
        }
        let end = |job: &mut JobStatus| {
            if job.is_open() {
                job.server_state = ServerState::Finished;
                job.revalidator_state = RevalidatorState::Finished;
                job.started_at.get_or_insert((self.clock)());
                job.ended_at = Some((self.clock)());
                job.reason = None;
            }
        };
        self.change_job(id, end).await?;
        let (checked, changed) = (job.counts.checked, job.counts.changed);
        tracing::info!(job = id, checked, changed, "job finished");
        self.engine.purge(id, false).await
    }
}

/// Whether a job needs a maker of this program.
fn needs_maker(job: &JobStatus) -> bool {
    use ServerState as S;
    let has_ended = matches!(job.server_state, S::Finished | S::Cancelled);
    !has_ended && !job.foreign && job.created_at > 0
}

fn selection(job: &JobStatus, app: &App) -> Selection {
    let may_remove = job.permitted(app.settings.allow_delete) != AllowDelete::None;
    let prune_after = app.settings.prune_after.filter(|_| may_remove);
    Selection {
        filter: job.filter.clone(),
        created_at: job.created_at / 1000,
        prune_after: prune_after.map(|it| it.as_secs()),
    }
}
