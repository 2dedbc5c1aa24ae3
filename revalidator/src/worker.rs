//! A worker: takes the oldest job that needs a worker, and checks its batches one at a time.
//!
//! Objects are stored or removed first, then the result is published, then the batch is acknowledged. A crash at any point therefore
//! repeats at most one batch, and repeating it changes nothing. Requests stop when the job ends, when it is suspended or throttled, or
//! when the worker loses its lease. The batch is then released, and its completed checks stay in memory.

use std::{
    collections::HashMap,
    sync::{Arc, Once},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_128;

use crate::{
    apps::{App, CurrentApps},
    batch::{Checker, Progress, Suspension, mean},
    concurrency::Controller,
    engine::{ACK_WAIT, Bucket, Engine, RETRY_PAUSE, Settlement},
    jobs::{self, candidates, is_suspended},
    lease::Lease,
    matches::{note, verify},
    messages::{
        Asset, BATCH_ASSETS_MAX, JobBatch, JobResult, JobStatus, RevalidatorState, Subscription,
        SubscriptionState, WORKERS_NEEDED_MAX,
    },
    mirror::{Mirror, WORKER, change_job},
    origin::Origin,
};

/// Time between two reports of a worker's state.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum wait for the next batch of a job.
const BATCH_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of jobs with a [`ResumeState`].
const REMEMBERED_MAX: usize = 16;

/// Dependencies of a worker.
#[derive(Clone)]
pub struct Worker<E, O> {
    /// Unique id.
    pub id: String,
    /// The broker.
    pub engine: E,
    /// The copy of the broker's buckets.
    pub mirror: Mirror,
    /// The applications.
    pub apps: CurrentApps,
    /// Checks batches.
    pub checker: Checker<O>,
    /// If cancelled, the worker starts no further batch.
    pub stop: CancellationToken,
    /// If cancelled, the worker releases its current batch.
    pub abort: CancellationToken,
    /// Clock of jobs, in Unix milliseconds.
    pub clock: fn() -> u64,
}

/// State that a worker keeps to resume a job.
struct ResumeState {
    controller: Controller,
    /// The batch that was interrupted last, by the hash of its message, and its completed checks of up to 1 MiB.
    interrupted: Option<(u128, Progress)>,
}

/// A worker that has a slot of a job.
struct Session<'a, E: Engine, O> {
    worker: &'a Worker<E, O>,
    id: &'a str,
    app: &'a App,
    lease: &'a Lease,
    state: &'a watch::Sender<Subscription>,
    resume: ResumeState,
}

impl<E: Engine, O: Origin> Worker<E, O> {
    /// Works until `stop`.
    pub async fn run(self) {
        let state = watch::Sender::new(self.subscription(None, SubscriptionState::Available));
        let key = format!("{WORKER}{}", self.id);
        tokio::select! {
            () = self.work(&state) => {}
            () = self.report(&key, state.subscribe()) => {}
        }
        let deleted = self.engine.delete(Bucket::Subscriptions, &key, None);
        // If this fails, the key expires.
        drop(timeout(RETRY_PAUSE, deleted).await);
    }

    fn subscription(&self, job: Option<&str>, state: SubscriptionState) -> Subscription {
        Subscription {
            revalidator_id: self.id.clone(),
            job_id: job.map(ToOwned::to_owned),
            state,
            concurrency: 0,
            average_response: 0,
        }
    }

    /// Publishes the state after each change and at least every [`REPORT_INTERVAL`].
    async fn report(&self, key: &str, mut state: watch::Receiver<Subscription>) {
        loop {
            let value = serde_json::to_vec(&*state.borrow_and_update()).unwrap_or_default();
            let put = self.engine.put(Bucket::Subscriptions, key, value.into());
            if let Err(error) = put.await {
                tracing::debug!(%error, "failed to publish the state of a worker");
                sleep(RETRY_PAUSE).await;
            }
            drop(timeout(REPORT_INTERVAL, state.changed()).await);
        }
    }

    async fn work(&self, state: &watch::Sender<Subscription>) {
        let mut changes = self.mirror.changes();
        let (mut last, mut resume_states) = (None, HashMap::new());
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            let available = self.subscription(None, SubscriptionState::Available);
            state.send_if_modified(|it| std::mem::replace(it, available.clone()) != available);
            let subscribed = self.subscribe(state, last.take()).await;
            let subscribed = subscribed.unwrap_or_else(|error| {
                tracing::debug!(%error, "failed to claim a job");
                None
            });
            let Some((job, app, lease)) = subscribed else {
                let changed = timeout(RETRY_PAUSE, changes.changed());
                self.stop.run_until_cancelled(changed).await;
                continue;
            };
            let id = &job.job_id;
            tracing::info!(worker = self.id, job = id, "worker claimed a job");
            let new = || ResumeState {
                controller: Controller::new(app.settings.concurrency),
                interrupted: None,
            };
            let mut session = Session {
                worker: self,
                id,
                app: &app,
                lease: &lease,
                state,
                resume: resume_states.remove(id).unwrap_or_else(new),
            };
            let processed = session.process().await;
            if resume_states.len() == REMEMBERED_MAX {
                resume_states.clear();
            }
            resume_states.insert(id.clone(), session.resume);
            if let Err(error) = &processed {
                // The batches of an ended job are deleted while workers wait for them.
                if self.mirror.is_open(id) {
                    let error = format!("{error:#}");
                    tracing::warn!(job = id, error, "worker released a job after an error");
                }
                sleep(RETRY_PAUSE).await;
            }
            lease.release().await;
            last = Some((job, processed.unwrap_or(true)));
        }
    }

    fn candidates(&self) -> Vec<Arc<JobStatus>> {
        candidates(self.mirror.jobs(), (self.clock)())
    }

    /// The jobs with free slots, the oldest first. A slot is the lease of one of the workers that a job needs.
    fn open_jobs(&self) -> Vec<(Arc<App>, Arc<JobStatus>, Vec<String>)> {
        let apps = (self.apps)();
        let open = self.candidates().into_iter().filter_map(|job| {
            let needed = job.revalidators_needed.min(WORKERS_NEEDED_MAX);
            let slots = (0..needed).map(|slot| format!("slot.{}.{slot}", job.job_id));
            let free: Vec<_> = slots.filter(|slot| self.mirror.is_free(slot)).collect();
            Some((apps.get(&job.app_name)?, job, free))
        });
        open.filter(|(.., slots)| !slots.is_empty()).collect()
    }

    /// Acquires a slot of the first job that has one. Single checks come first, except after a single check, so that other jobs
    /// progress. The `last` job comes last if it had no batch.
    async fn subscribe(
        &self,
        state: &watch::Sender<Subscription>,
        last: Option<(Arc<JobStatus>, bool)>,
    ) -> Result<Option<(Arc<JobStatus>, Arc<App>, Lease)>> {
        if !self.mirror.is_current() {
            return Ok(None);
        }
        let mut open = self.open_jobs();
        let is_after_check = last.as_ref().is_some_and(|(last, _)| last.push);
        open.sort_by_key(|(_, job, _)| {
            let was_idle = last
                .as_ref()
                .is_some_and(|(last, is_idle)| *is_idle && last.job_id == job.job_id);
            (was_idle, job.push == is_after_check)
        });
        for (app, job, slots) in open {
            let id = Some(&*job.job_id);
            for slot in slots {
                state.send_replace(self.subscription(id, SubscriptionState::Attempt));
                let lease = Lease::acquire(&self.engine, &self.mirror, slot, &self.id).await?;
                if let Some(lease) = lease {
                    state.send_replace(self.subscription(id, SubscriptionState::Subscribed));
                    return Ok(Some((job, app, lease)));
                }
            }
        }
        Ok(None)
    }
}

impl<E: Engine, O: Origin> Session<'_, E, O> {
    /// Checks the batches of a job until it ends or is suspended, or another job needs the worker. Returns whether it had no batch.
    async fn process(&mut self) -> Result<bool> {
        let worker = self.worker;
        let now = worker.clock;
        let begin = |job: &mut JobStatus| {
            let is_active = job.revalidator_state == RevalidatorState::Revalidating;
            if job.is_open() && !is_active && !is_suspended(job, now()) {
                jobs::resume(job, now());
            }
        };
        let job = change_job(&worker.engine, self.id, begin).await?;
        // Then the worker's copy is old, and the caller makes a pause before it claims a job again.
        let job = job.filter(|it| it.is_open() && !is_suspended(it, now()));
        let mut job = job.context("the job has ended or is suspended")?;
        let needed = job.revalidators_needed.clamp(1, WORKERS_NEEDED_MAX);
        let mut batches = worker.engine.batches(self.id, needed).await?;
        while job.is_open() && !is_suspended(&job, now()) && !self.lease.lost.is_cancelled() {
            let next = worker.engine.next_batch(&batches, BATCH_WAIT);
            let Some(next) = worker.stop.run_until_cancelled(next).await else {
                return Ok(false);
            };
            let next = next?;
            let is_idle = next.is_none();
            if let Some((payload, delivery)) = next
                && !self.process_batch(&job, &payload, &delivery).await?
            {
                return Ok(false);
            }
            // While there are batches, only a single check needs the worker more.
            let needs = |it: &JobStatus| it.job_id != job.job_id && (is_idle || it.push);
            if worker.open_jobs().iter().any(|(_, it, _)| needs(it)) {
                return Ok(is_idle);
            }
            match worker.mirror.job(self.id) {
                Some(newest) => job = newest.as_ref().clone(),
                None => break,
            }
            if is_idle && job.is_open() {
                batches = worker.engine.batches(self.id, needed).await?;
            }
        }
        Ok(false)
    }

    /// Checks a batch; false if the worker must leave the job.
    async fn process_batch(
        &mut self,
        job: &JobStatus,
        payload: &[u8],
        delivery: &E::Delivery,
    ) -> Result<bool> {
        let worker = self.worker;
        let settle = |settlement| worker.engine.settle(delivery, settlement);
        let Some(batch) = parse_batch(self.id, payload) else {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| tracing::warn!(job = self.id, "ignored an invalid batch"));
            worker.checker.metrics.invalid_messages.inc();
            settle(Settlement::Done).await?;
            return Ok(true);
        };
        let is_done = tokio::select! {
            is_done = self.check(job, batch, xxh3_128(payload)) => is_done,
            () = keep(&worker.engine, delivery) => unreachable!("it never ends"),
            () = worker.abort.cancelled() => Ok(false),
        };
        let Ok(true) = is_done else {
            settle(Settlement::GiveBack).await?;
            return is_done;
        };
        settle(Settlement::Done).await?;
        if job.failing_since.is_some() {
            let succeed = |job: &mut JobStatus| (job.suspensions, job.failing_since) = (0, None);
            change_job(&worker.engine, self.id, succeed).await?;
        }
        Ok(true)
    }

    /// Checks a batch, whose message has this hash, and publishes its result; false if the worker must leave the job.
    async fn check(&mut self, job: &JobStatus, mut batch: JobBatch, hash: u128) -> Result<bool> {
        let (worker, app, state) = (self.worker, self.app, self.state);
        let checker = &worker.checker;
        if app.settings.cookies.is_some() {
            verify(&worker.engine, app, &mut batch.assets).await?;
        }
        let plan = self.resume.controller.plan(Instant::now());
        state.send_modify(|it| it.concurrency = plan.concurrency);
        // A batch with the same number may have other assets.
        let interrupted = self.resume.interrupted.take_if(|it| it.0 == hash);
        let (_, mut progress) = interrupted.unwrap_or_default();
        let checked = tokio::select! {
            biased;
            () = self.blocked() => None,
            checked = checker.check(app, job, &batch, plan, &mut progress, worker.clock) => Some(checked),
        };
        let Some(Ok((results, times))) = checked else {
            self.resume.interrupted = Some((hash, progress));
            if let Some(Err(suspension)) = checked {
                // A throttled batch lowers the concurrency when it is complete.
                if suspension.1.is_none() {
                    self.resume.controller.lower();
                }
                self.suspend(suspension).await?;
            }
            return Ok(false);
        };
        if app.settings.cookies.is_some() {
            let failed = note(&worker.engine, app, &results, (worker.clock)()).await;
            checker.metrics.notes_failed.inc_by(failed);
        }
        self.resume.controller.finish(times);
        let average_response = mean(&results).unwrap_or(0);
        state.send_modify(|it| it.average_response = average_response);
        let result = JobResult {
            average_response,
            results,
            revalidator_id: worker.id.clone(),
            job_id: batch.job_id.clone(),
            batch: batch.batch,
            attempt: batch.attempt,
            restarts: batch.restarts,
        };
        let (payload, id) = (Bytes::from(serde_json::to_vec(&result)?), batch.id());
        let send = || worker.engine.send_result(self.id, &id, payload.clone());
        Ok(worker.mirror.repeat(self.id, send).await)
    }

    /// Waits until the job may send no more requests.
    async fn blocked(&self) {
        let mut changes = self.worker.mirror.changes();
        let candidates = || self.worker.candidates().into_iter();
        let is_candidate = || candidates().any(|job| job.job_id == self.id);
        let blocked = async { while is_candidate() && changes.changed().await.is_ok() {} };
        self.lease.lost.run_until_cancelled(blocked).await;
    }

    async fn suspend(&self, (reason, time): Suspension) -> Result<()> {
        let suspend = |job: &mut JobStatus| {
            jobs::suspend(job, &reason, time, (self.worker.clock)());
        };
        let job = change_job(&self.worker.engine, self.id, suspend).await?;
        // Only the first suspension since a result is logged.
        if job.is_some_and(|job| job.suspensions == 1) {
            tracing::warn!(job = self.id, reason, "job suspended");
        }
        Ok(())
    }
}

/// A batch of a job, within the bounds that keep its result below 1 MiB.
fn parse_batch(job: &str, payload: &[u8]) -> Option<JobBatch> {
    let batch: JobBatch = serde_json::from_slice(payload).ok()?;
    let is_short = batch.assets.iter().all(Asset::is_short);
    let has_bounds = batch.assets.len() <= BATCH_ASSETS_MAX && is_short;
    (batch.job_id == job && has_bounds).then_some(batch)
}

/// Keeps a batch from being delivered to another worker.
async fn keep<E: Engine>(engine: &E, delivery: &E::Delivery) {
    let mut ticks = interval_at(Instant::now() + ACK_WAIT / 3, ACK_WAIT / 3);
    loop {
        ticks.tick().await;
        if let Err(error) = engine.settle(delivery, Settlement::InProgress).await {
            tracing::debug!(%error, "failed to extend the deadline of a batch");
        }
    }
}
