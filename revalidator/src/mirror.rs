//! Local copy of the broker's buckets of jobs and subscriptions, kept up to date by watching the buckets. One task writes the copy.
//! [Makers](crate::maker), workers and status pages read it.
//!
//! The state of a lease follows from this copy: its holder counts as lost if the revision of the key has not changed for
//! [`LEASE`], measured with the reader's clock. The clocks of machines therefore need not agree.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::RwLock;
use prometheus::IntCounter;
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    apps::App,
    engine::{Bucket, Call, Engine, Entry, RETRY_PAUSE},
    messages::{
        AllowDelete, JobStatus, RevalidatorState, STATUS_BYTES_MAX, Subscription, is_job_id,
    },
};

/// Time without renewal after which a lease is free.
pub const LEASE: Duration = Duration::from_secs(30);

/// Time between two checks that the broker has not lost keys.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum numbers of jobs and of other keys, and maximum bytes of a key and of a value that is not a job. The rest is ignored.
const JOBS_MAX: usize = 5_000;
const SUBSCRIPTIONS_MAX: usize = 20_000;
const KEY_BYTES_MAX: usize = 256;
const SUBSCRIPTION_BYTES_MAX: usize = 1 << 10;

/// Prefix of the keys of workers in the bucket of subscriptions.
pub const WORKER: &str = "worker.";

/// A key of the bucket of subscriptions.
#[derive(Debug, Clone)]
struct Observed {
    revision: u64,
    /// When this process first saw the revision.
    since: Instant,
    value: Bytes,
}

#[derive(Debug, Default)]
struct Copy {
    jobs: HashMap<String, Arc<JobStatus>>,
    subscriptions: HashMap<String, Observed>,
    /// Per bucket, whether all entries that existed at the start of the watch have arrived.
    is_current: [bool; 2],
}

/// Whether a lease can be acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// It has no holder.
    Free,
    /// Its holder is lost. Contains the revision to replace.
    Lost(u64),
    /// Its holder renews it.
    Held,
}

/// The copy; clones share it.
#[derive(Debug, Clone)]
pub struct Mirror {
    copy: Arc<RwLock<Copy>>,
    changes: watch::Sender<()>,
    reloads: watch::Sender<()>,
    invalid_messages: IntCounter,
}

impl Mirror {
    /// An empty copy. `invalid_messages` counts entries without a valid job status.
    pub fn new(invalid_messages: IntCounter) -> Self {
        Self {
            copy: Arc::default(),
            changes: watch::Sender::new(()),
            reloads: watch::Sender::new(()),
            invalid_messages,
        }
    }

    /// Whether the copy has all entries.
    pub fn is_current(&self) -> bool {
        self.copy.read().is_current == [true; 2]
    }

    /// Reads the buckets again, because the broker seems to have lost keys.
    pub fn reload(&self) {
        self.reloads.send_replace(());
    }

    /// Notifies about changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// All jobs.
    pub fn jobs(&self) -> Vec<Arc<JobStatus>> {
        let copy = self.copy.read();
        copy.jobs.values().cloned().collect()
    }

    /// A job.
    pub fn job(&self, id: &str) -> Option<Arc<JobStatus>> {
        self.copy.read().jobs.get(id).cloned()
    }

    /// Whether a job exists and is open.
    pub fn is_open(&self, id: &str) -> bool {
        self.job(id).is_some_and(|job| job.is_open())
    }

    /// Repeats a call to the broker until it succeeds; false if the job ends first.
    pub async fn repeat<C: Call<()>>(&self, job: &str, call: impl Fn() -> C) -> bool {
        while let Err(error) = call().await {
            tracing::debug!(
                job,
                error = format!("{error:#}"),
                "failed to publish a batch or a result, retrying"
            );
            sleep(RETRY_PAUSE).await;
            if !self.is_open(job) {
                return false;
            }
        }
        true
    }

    /// The workers that renew their keys.
    pub fn workers(&self) -> Vec<Subscription> {
        let copy = self.copy.read();
        let keys = copy.subscriptions.iter();
        let live = keys.filter(|(key, it)| key.starts_with(WORKER) && it.since.elapsed() < LEASE);
        let parse = |(key, it): (&String, &Observed)| {
            let mut worker: Subscription = serde_json::from_slice(&it.value).ok()?;
            worker.revalidator_id = key.replacen(WORKER, "", 1);
            Some(worker)
        };
        live.filter_map(parse).collect()
    }

    /// The state of a lease.
    pub fn lease(&self, key: &str) -> LeaseState {
        match self.copy.read().subscriptions.get(key) {
            None => LeaseState::Free,
            Some(it) if it.since.elapsed() >= LEASE => LeaseState::Lost(it.revision),
            Some(_) => LeaseState::Held,
        }
    }

    /// Whether a lease can be acquired.
    pub fn is_free(&self, key: &str) -> bool {
        self.lease(key) != LeaseState::Held
    }

    /// Keys whose holders are lost, with their revisions.
    pub fn lost(&self) -> Vec<(String, u64)> {
        let copy = self.copy.read();
        let keys = copy.subscriptions.iter();
        let lost = keys.filter(|(_, it)| it.since.elapsed() >= LEASE);
        lost.map(|(key, it)| (key.clone(), it.revision)).collect()
    }

    /// Applies an entry. If an invalid status replaced an open job, returns the last valid status, suspended.
    fn apply(&self, bucket: Bucket, entry: Entry) -> Option<JobStatus> {
        let mut copy = self.copy.write();
        let key = &entry.key;
        let (is_known, is_free) = match bucket {
            Bucket::Jobs => (copy.jobs.contains_key(key), copy.jobs.len() < JOBS_MAX),
            _ => {
                let (keys, max) = (&copy.subscriptions, SUBSCRIPTIONS_MAX);
                (keys.contains_key(key), keys.len() < max)
            }
        };
        let has_room = is_known || is_free && key.len() <= KEY_BYTES_MAX;
        match (bucket, entry.value) {
            (_, Some(_)) if !has_room => self.invalid_messages.inc(),
            (Bucket::Jobs, None) => drop(copy.jobs.remove(&entry.key)),
            (_, None) => drop(copy.subscriptions.remove(&entry.key)),
            (Bucket::Jobs, Some(value)) => match JobStatus::parse(&entry.key, &value) {
                Some(job) => drop(copy.jobs.insert(entry.key, Arc::new(job))),
                None => {
                    if self.invalid_messages.get() == 0 {
                        tracing::warn!("ignored an invalid job status");
                    }
                    self.invalid_messages.inc();
                    let known = copy.jobs.get(&entry.key).filter(|job| job.is_open())?;
                    return Some(JobStatus {
                        revalidator_state: RevalidatorState::Suspended,
                        resume_at: None,
                        reason: Some("another program wrote an invalid status".to_owned()),
                        ..JobStatus::clone(known)
                    });
                }
            },
            (_, Some(mut value)) => {
                value.truncate(SUBSCRIPTION_BYTES_MAX);
                // A restarted watch repeats entries, which are not renewals.
                let is_seen = |it: &Observed| it.revision == entry.revision && it.value == value;
                if copy.subscriptions.get(&entry.key).is_some_and(is_seen) {
                    return None;
                }
                let observed = Observed {
                    revision: entry.revision,
                    since: Instant::now(),
                    value,
                };
                copy.subscriptions.insert(entry.key, observed);
            }
        }
        None
    }

    /// Keeps the copy up to date until `stop`.
    pub async fn run<E: Engine>(self, engine: E, stop: CancellationToken) {
        let both = async {
            tokio::join!(
                self.follow(&engine, Bucket::Jobs),
                self.follow(&engine, Bucket::Subscriptions)
            );
        };
        stop.run_until_cancelled(both).await;
    }

    async fn follow<E: Engine>(&self, engine: &E, bucket: Bucket) {
        loop {
            if let Err(error) = self.follow_once(engine, bucket).await {
                tracing::debug!(%error, ?bucket, "watch of a bucket ended, retrying");
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn follow_once<E: Engine>(&self, engine: &E, bucket: Bucket) -> Result<()> {
        let mut reloads = self.reloads.subscribe();
        let mut watch = engine.watch(bucket).await?;
        let (mut revision, mut seen) = (0, Some(HashSet::new()));
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        loop {
            if let Some(seen) = seen.take_if(|_| revision >= watch.current) {
                self.replace(engine, bucket, &seen).await?;
            }
            self.changes.send_replace(());
            let entry = tokio::select! {
                biased;
                entry = watch.entries.next() => entry.transpose()?,
                _ = reloads.changed() => None,
                _ = checks.tick() => {
                    let copy = || self.copy.read();
                    let known = match bucket {
                        Bucket::Jobs => copy().jobs.len(),
                        _ => copy().subscriptions.len(),
                    };
                    let keys = engine.keys(bucket).await?;
                    ensure!(keys >= known as u64, "the broker has lost keys");
                    // The newest entries may not exist any more.
                    revision = revision.max(watch.current);
                    continue;
                }
            };
            let Some(entry) = entry else {
                return Ok(());
            };
            revision = entry.revision;
            if let Some(seen) = &mut seen {
                seen.insert(entry.key.clone());
            }
            if let Some(last) = self.apply(bucket, entry) {
                let value = serde_json::to_vec(&last)?.into();
                let id = &last.job_id;
                // Without effect if another process has already replaced the entry.
                let replaced = engine.compare_and_set(bucket, id, value, Some(revision));
                replaced.await?;
            }
        }
    }

    /// Removes the keys that a new watch has not `seen`, because the broker has lost them, and restores the open jobs among them.
    async fn replace<E: Engine>(
        &self,
        engine: &E,
        bucket: Bucket,
        seen: &HashSet<String>,
    ) -> Result<()> {
        let mut lost = Vec::new();
        if bucket == Bucket::Jobs {
            let jobs = &mut self.copy.write().jobs;
            jobs.retain(|id, job| seen.contains(id) || job.is_open());
            lost.extend(
                jobs.values()
                    .filter(|it| !seen.contains(&it.job_id))
                    .cloned(),
            );
        } else {
            self.copy
                .write()
                .subscriptions
                .retain(|key, _| seen.contains(key));
        }
        for job in lost {
            if create_job(engine, &job).await? {
                tracing::warn!(job = job.job_id, "restored a job that the broker had lost");
            }
        }
        self.copy.write().is_current[bucket as usize] = true;
        Ok(())
    }
}

/// A status for a new job, with the defaults of an application. Times are Unix milliseconds.
pub fn new_job(app: &App, id: String, now: u64) -> JobStatus {
    JobStatus {
        app_name: app.name.clone(),
        job_id: id,
        // Only a request can remove all objects.
        allow_delete: app.settings.allow_delete.min(AllowDelete::Partial),
        revalidators_needed: app.settings.workers,
        created_at: now,
        ..JobStatus::default()
    }
}

/// Creates a job; false if one with this id exists.
///
/// # Errors
/// When the engine fails.
pub async fn create_job<E: Engine>(engine: &E, job: &JobStatus) -> Result<bool> {
    let value = serde_json::to_vec(job)?.into();
    let created = engine.compare_and_set(Bucket::Jobs, &job.job_id, value, None);
    Ok(created.await?.is_some())
}

/// Key of the lease of a job's maker.
pub fn maker_key(job: &str) -> String {
    format!("maker.{job}")
}

/// Applies `change` to the newest version of a job, by compare-and-set. Returns the new version; `None` if the job does not exist.
///
/// # Errors
/// When the engine fails.
pub async fn change_job<E: Engine>(
    engine: &E,
    id: &str,
    change: impl FnMut(&mut JobStatus),
) -> Result<Option<JobStatus>> {
    change_job_of(engine, id, None, change).await
}

/// Like [`change_job`], but only if `maker` still holds the lease of the job: a suspended process may have lost it without
/// noticing. The lease is read after the job, so a change by a later maker causes a conflict.
///
/// # Errors
/// When the engine fails, or the lease is lost.
pub async fn change_job_of<E: Engine>(
    engine: &E,
    id: &str,
    maker: Option<&str>,
    mut change: impl FnMut(&mut JobStatus),
) -> Result<Option<JobStatus>> {
    if !is_job_id(id) {
        return Ok(None);
    }
    loop {
        let Some((value, revision)) = engine.get(Bucket::Jobs, id).await? else {
            return Ok(None);
        };
        let found = JobStatus::parse(id, &value).context("invalid job status")?;
        let mut job = found.clone();
        change(&mut job);
        if job == found {
            return Ok(Some(job));
        }
        let value = serde_json::to_vec(&job)?;
        ensure!(value.len() <= STATUS_BYTES_MAX, "job status too large");
        if let Some(maker) = maker {
            let lease = engine.get(Bucket::Subscriptions, &maker_key(id)).await?;
            // The process that received the assets of a job acquired the lease with the id of the job as holder.
            let is_own = lease.is_some_and(|(holder, _)| holder == maker || holder == id);
            ensure!(is_own, "the lease is lost");
        }
        let set = engine.compare_and_set(Bucket::Jobs, id, value.into(), Some(revision));
        if set.await?.is_some() {
            return Ok(Some(job));
        }
    }
}
