//! A worker: takes the oldest job with a free slot, and checks its batches one at a time.
//!
//! Objects are stored or removed first, then the result is published, then the batch is acknowledged. So a crash at any point
//! repeats at most one batch, and repeating it changes nothing.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    apps::{App, CurrentApps},
    batch::Checker,
    concurrency::Controller,
    engine::{ACK_WAIT, Batches, Bucket, Delivery, Engine, Settlement},
    jobs::{self, candidates, is_suspended},
    lease::Lease,
    messages::{
        BATCH_ASSETS_MAX, JobBatch, JobResult, JobStatus, RevalidatorState, Subscription,
        SubscriptionState, WORKERS_NEEDED_MAX,
    },
    mirror::{Mirror, WORKER, change_job},
    origin::Origin,
};

/// Time between two reports of a worker's state.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Wait for the next batch of a job.
const BATCH_WAIT: Duration = Duration::from_secs(2);

/// Pause after an error, and maximum time until a worker looks for a job again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What a worker needs.
#[derive(Clone)]
pub struct Worker<E, O> {
    /// Unique id.
    pub id: String,
    /// The broker.
    pub engine: E,
    /// The copy of its buckets.
    pub mirror: Mirror,
    /// The applications.
    pub apps: CurrentApps,
    /// Checks batches.
    pub checker: Checker<O>,
    /// No further batch is begun after it is cancelled.
    pub stop: CancellationToken,
    /// The current batch is released when it is cancelled.
    pub abort: CancellationToken,
    /// Clock of jobs, in Unix milliseconds.
    pub clock: fn() -> u64,
}

impl<E: Engine, O: Origin> Worker<E, O> {
    /// Works until `stop`.
    pub async fn run(self) {
        let state = watch::Sender::new(self.subscription(None, SubscriptionState::Available));
        let working = async {
            self.work(&state).await;
            let key = format!("{WORKER}{}", self.id);
            let deleted = self.engine.delete(Bucket::Subscriptions, &key, None);
            // Otherwise it expires.
            drop(timeout(RETRY_PAUSE, deleted).await);
        };
        tokio::select! {
            () = working => {}
            () = self.report(state.subscribe()) => {}
        }
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
    async fn report(&self, mut state: watch::Receiver<Subscription>) {
        let key = format!("{WORKER}{}", self.id);
        loop {
            let value = serde_json::to_vec(&*state.borrow_and_update()).unwrap_or_default();
            let put = self.engine.put(Bucket::Subscriptions, &key, value.into());
            if let Err(error) = put.await {
                tracing::debug!(%error, "failed to publish the subscription");
                sleep(RETRY_PAUSE).await;
            }
            drop(timeout(REPORT_INTERVAL, state.changed()).await);
        }
    }

    async fn work(&self, state: &watch::Sender<Subscription>) {
        let mut changes = self.mirror.changes();
        let mut left = None;
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            match self.subscribe(state, left.take().as_deref()).await {
                Ok(Some((id, app, lease))) => {
                    tracing::info!(worker = self.id, job = id, "subscribed");
                    if let Err(error) = self.process(&id, &app, &lease, state).await {
                        let error = format!("{error:#}");
                        tracing::warn!(job = id, error, "left a job after an error");
                        sleep(RETRY_PAUSE).await;
                    }
                    lease.release().await;
                    let gauge = &self.checker.metrics.concurrency;
                    // Fails if no batch was begun.
                    drop(gauge.remove_label_values(&[&app.name, &self.id]));
                    left = Some(id);
                }
                Ok(None) => {
                    let changed = timeout(RETRY_PAUSE, changes.changed());
                    self.stop.run_until_cancelled(changed).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to subscribe to a job");
                    self.stop.run_until_cancelled(sleep(RETRY_PAUSE)).await;
                }
            }
            state.send_if_modified(|state| {
                let available = self.subscription(None, SubscriptionState::Available);
                let is_change = *state != available;
                *state = available;
                is_change
            });
        }
    }

    /// Acquires a slot of the oldest job that has one; the job `left` is the last choice.
    async fn subscribe(
        &self,
        state: &watch::Sender<Subscription>,
        left: Option<&str>,
    ) -> Result<Option<(String, Arc<App>, Lease<E>)>> {
        if !self.mirror.is_current() {
            return Ok(None);
        }
        let jobs = self.mirror.jobs();
        let mut open = candidates(jobs.iter().map(|job| &**job), (self.clock)());
        open.sort_by_key(|job| left == Some(&job.job_id));
        for job in open {
            let Some(app) = (self.apps)().get(&job.app_name) else {
                continue;
            };
            for slot in self.free_slots(job) {
                state
                    .send_replace(self.subscription(Some(&job.job_id), SubscriptionState::Attempt));
                let lease = Lease::acquire(&self.engine, &self.mirror, slot, &self.id).await?;
                if let Some(lease) = lease {
                    let subscribed =
                        self.subscription(Some(&job.job_id), SubscriptionState::Subscribed);
                    state.send_replace(subscribed);
                    return Ok(Some((job.job_id.clone(), app, lease)));
                }
            }
        }
        Ok(None)
    }

    /// Keys of the slots of a job that no live worker holds.
    fn free_slots(&self, job: &JobStatus) -> Vec<String> {
        let needed = job.revalidators_needed.min(WORKERS_NEEDED_MAX);
        let slots = (0..needed).map(|slot| format!("slot.{}.{slot}", job.job_id));
        slots.filter(|slot| self.mirror.is_free(slot)).collect()
    }

    /// Whether another job needs this worker.
    fn is_needed_elsewhere(&self, job: &str) -> bool {
        let jobs = self.mirror.jobs();
        let open = candidates(jobs.iter().map(|job| &**job), (self.clock)());
        let apps = (self.apps)();
        open.into_iter().any(|it| {
            it.job_id != job && apps.get(&it.app_name).is_some() && !self.free_slots(it).is_empty()
        })
    }

    /// Checks the batches of a job until it ends or is suspended, or another job needs the worker.
    async fn process(
        &self,
        id: &str,
        app: &Arc<App>,
        lease: &Lease<E>,
        state: &watch::Sender<Subscription>,
    ) -> Result<()> {
        let begin = |job: &mut JobStatus| {
            let begins = job.is_open()
                && !is_suspended(job, (self.clock)())
                && job.revalidator_state != RevalidatorState::Revalidating;
            if begins {
                jobs::resume(job, (self.clock)());
            }
            begins
        };
        let Some(mut job) = change_job(&self.engine, id, begin).await? else {
            return Ok(());
        };
        let needed = job.revalidators_needed.clamp(1, WORKERS_NEEDED_MAX);
        let mut batches = self.engine.batches(id, needed).await?;
        let mut controller = Controller::new(app.settings.concurrency);
        while job.is_open() && !is_suspended(&job, (self.clock)()) {
            let next = batches.next(BATCH_WAIT);
            let stays = match self.stop.run_until_cancelled(next).await {
                None => false,
                Some(next) => match next? {
                    Some(delivery) => {
                        let next = self.process_batch(&job, app, &delivery, &mut controller, state);
                        next.await?
                    }
                    None => !self.is_needed_elsewhere(id),
                },
            };
            let newest = self
                .mirror
                .job(id)
                .filter(|_| stays && !lease.lost().is_cancelled());
            let Some(newest) = newest else {
                return Ok(());
            };
            job = newest.as_ref().clone();
        }
        Ok(())
    }

    /// Checks a batch; false if the worker must leave the job.
    async fn process_batch(
        &self,
        job: &JobStatus,
        app: &Arc<App>,
        delivery: &impl Delivery,
        controller: &mut Controller,
        state: &watch::Sender<Subscription>,
    ) -> Result<bool> {
        let batch: Option<JobBatch> = serde_json::from_slice(delivery.payload()).ok();
        let is_valid =
            |it: &JobBatch| it.job_id == job.job_id && it.assets.len() <= BATCH_ASSETS_MAX;
        let Some(batch) = batch.filter(is_valid) else {
            self.checker.metrics.invalid_messages.inc();
            tracing::warn!(job = job.job_id, "ignored an invalid batch");
            delivery.settle(Settlement::Done).await?;
            return Ok(true);
        };
        let plan = controller.plan(Duration::from_millis((self.clock)()));
        let gauge = &self.checker.metrics.concurrency;
        let gauge = gauge.with_label_values(&[&app.name, &self.id]);
        gauge.set(i64::try_from(plan.concurrency).unwrap_or(i64::MAX));
        state.send_modify(|state| state.concurrency = plan.concurrency);
        let work = async {
            let (checked, times) = self.checker.check(app, job, &batch, plan).await?;
            controller.finish(times);
            let (results, average_response) = match checked {
                Ok(results) => results,
                Err(reason) => {
                    tracing::warn!(job = job.job_id, reason, "job suspended");
                    let suspend = |job: &mut JobStatus| {
                        jobs::suspend(job, reason, (self.clock)());
                        true
                    };
                    change_job(&self.engine, &job.job_id, suspend).await?;
                    return Ok(false);
                }
            };
            state.send_modify(|state| {
                state.average_response = average_response;
                state.concurrency = controller.concurrency();
            });
            let result = JobResult {
                average_response,
                results,
                revalidator_id: self.id.clone(),
                job_id: batch.job_id.clone(),
                batch: batch.batch,
                attempt: batch.attempt,
            };
            self.publish(&result).await;
            Ok(true)
        };
        let is_done = tokio::select! {
            is_done = work => is_done,
            () = keep(delivery) => unreachable!("it never ends"),
            () = self.abort.cancelled() => Ok(false),
        };
        let Ok(true) = is_done else {
            delivery.settle(Settlement::GiveBack).await?;
            return is_done;
        };
        delivery.settle(Settlement::Done).await?;
        if job.failing_since.is_some() {
            let succeed = |job: &mut JobStatus| {
                job.suspensions = 0;
                job.failing_since.take().is_some()
            };
            change_job(&self.engine, &job.job_id, succeed).await?;
        }
        Ok(true)
    }

    /// Publishes a result; retries until it is accepted.
    async fn publish(&self, result: &JobResult) {
        let payload = Bytes::from(serde_json::to_vec(result).unwrap_or_default());
        let (job, id) = (&result.job_id, result.id());
        while let Err(error) = self.engine.send_result(job, &id, payload.clone()).await {
            let error = format!("{error:#}");
            tracing::debug!(id, error, "result waits for the broker");
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Keeps a batch from being delivered to another worker.
async fn keep(delivery: &impl Delivery) {
    let mut ticks = interval_at(Instant::now() + ACK_WAIT / 3, ACK_WAIT / 3);
    loop {
        ticks.tick().await;
        if let Err(error) = delivery.settle(Settlement::InProgress).await {
            tracing::debug!(%error, "failed to extend the deadline of a batch");
        }
    }
}
