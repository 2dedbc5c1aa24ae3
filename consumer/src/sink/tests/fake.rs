//! A configurable test store that records its calls.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use proto::units::DspId;
use tokio::time::sleep;

use super::*;
use crate::store::{
    Backlog, Cookies, FullRetryEntry, Receipt, RejectedCookie, RetryEntry, StoreError, StoredState,
    WriteOutcome,
};

/// A store that fails as configured.
#[derive(Debug, Default)]
pub(super) struct FakeStore {
    /// Number of writes that fail.
    pub(super) failures: AtomicU32,
    /// Duration of a write.
    pub(super) slow: Duration,
    /// Duration of a commit, including a failing one.
    pub(super) slow_commit: Duration,
    pub(super) hang_timeout: Option<Duration>,
    pub(super) broken: bool,
    /// Rejects the first cookie of every batch.
    pub(super) picky: bool,
    /// Number of commits that fail. The first failure sets `picky`.
    pub(super) failed_commits: AtomicU32,
    pub(super) has_failed_commit: AtomicBool,
    /// Defers the cookies of this DSP.
    pub(super) failing_dsp: Option<DspId>,
    /// Number of additions to the retry queue that fail.
    pub(super) failed_puts: AtomicU32,
    /// The retry queue.
    pub(super) retry_queue: Mutex<Vec<FullRetryEntry>>,
    /// Number of removals from the retry queue whose reply is lost.
    pub(super) lost_removals: AtomicU32,
    /// Number of pings that fail.
    pub(super) read_only: AtomicU32,
    pub(super) batches: Mutex<Vec<(usize, Vec<Cursor>)>>,
    /// Started and successful operations, with the last sequence number of the batch.
    pub(super) events: Mutex<Vec<String>>,
}

/// Fails if `failures` are left, and then has one less.
fn fail(failures: &AtomicU32, why: &str) -> Result<(), StoreError> {
    let less = |left: u32| left.checked_sub(1);
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    match failures.fetch_update(set, fetch, less) {
        Ok(_) => Err(StoreError::Unavailable(why.to_owned())),
        Err(_) => Ok(()),
    }
}

impl FakeStore {
    fn record(&self, event: &str, batch: &Batch) {
        let sequence = batch
            .cursors()
            .first()
            .map_or(0, |cursor| cursor.sequence.0);
        let event = format!("{event} {sequence}");
        self.events.lock().push(event);
    }
}

#[async_trait]
impl Cookies for FakeStore {
    async fn load(&self, _: &Deletions) -> Result<StoredState, StoreError> {
        Ok(StoredState::default())
    }

    async fn write(&self, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.record("write", &batch);
        if self.broken {
            return Err(StoreError::Broken("for good".to_owned()));
        }
        fail(&self.failures, "for now")?;
        sleep(self.slow).await;
        self.record("written", &batch);
        let cursors = batch.cursors().to_vec();
        self.batches.lock().push((batch.len(), cursors));
        let rejected = RejectedCookie {
            index: 0,
            reason: "not this one".to_owned(),
        };
        let mut written = WriteOutcome::default();
        if let Some(dsp_id) = self.failing_dsp {
            let indices = (0..).zip(batch.cookies());
            let indices = indices.filter(|(_, cookie)| cookie.dsp_id == dsp_id);
            let indices = indices.map(|(index, _)| index).collect();
            written.deferred(dsp_id, Some("no right".into()), indices);
        }
        let is_picky = self.picky || self.has_failed_commit.load(Ordering::Relaxed);
        written.rejected.extend(is_picky.then_some(rejected));
        Ok(written)
    }

    async fn commit(&self, batch: &Batch, _: Receipt) -> Result<(), StoreError> {
        self.record("commit", batch);
        sleep(self.slow_commit).await;
        if let Err(error) = fail(&self.failed_commits, "not durable") {
            self.has_failed_commit.store(true, Ordering::Relaxed);
            return Err(error);
        }
        self.record("committed", batch);
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        fail(&self.read_only, "read only")
    }

    fn hang_timeout(&self) -> Option<Duration> {
        self.hang_timeout
    }
}

#[async_trait]
impl Backlog for FakeStore {
    fn has_slot(&self, _: DspId) -> bool {
        true
    }

    async fn retry(&self, _: DspId, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        let written = self.write(Arc::clone(&batch)).await?;
        self.commit(&batch, written.receipt).await?;
        Ok(written)
    }

    async fn retry_entries(&self) -> Result<Vec<RetryEntry>, StoreError> {
        Ok(Vec::new())
    }

    async fn put_retry_entries(&self, entries: &[FullRetryEntry]) -> Result<(), StoreError> {
        let result = fail(&self.failed_puts, "not now");
        if result.is_ok() {
            let mut retry_queue = self.retry_queue.lock();
            retry_queue.extend(entries.iter().cloned());
        }
        let cookies: u64 = entries.iter().map(|full| full.entry.cookies).sum();
        let event = format!("put {cookies}: {}", result.is_ok());
        self.events.lock().push(event);
        result
    }

    async fn read_retry_entries(&self, numbers: &[u64]) -> Result<Vec<Bytes>, StoreError> {
        let retry_queue = self.retry_queue.lock();
        let found = retry_queue
            .iter()
            .filter(|full| numbers.contains(&full.entry.number));
        Ok(found.map(|full| full.chunk.clone()).collect())
    }

    async fn remove_retry_entries(&self, numbers: &[u64]) -> Result<(), StoreError> {
        let mut retry_queue = self.retry_queue.lock();
        retry_queue.retain(|full| !numbers.contains(&full.entry.number));
        fail(&self.lost_removals, "no response")
    }
}
