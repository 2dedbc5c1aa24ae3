//! A configurable test store that records its calls.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::sleep;

use super::*;
use crate::store::{
    Expiry, ExpiryResult, FullRetryEntry, LookupResult, Receipt, RejectedCookie, Store, StoreError,
    StoreFuture, StoredState, WriteOutcome,
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
    pub(super) failing_dsp: Option<u32>,
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

impl FakeStore {
    fn record(&self, event: &str, batch: &Batch) {
        let sequence = batch.cursors().first().map_or(0, |cursor| cursor.sequence);
        let event = format!("{event} {sequence}");
        self.events.lock().push(event);
    }
}

impl Store for FakeStore {
    fn load(&self) -> StoreFuture<'_, StoredState> {
        std::future::ready(Ok(StoredState::default())).boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> StoreFuture<'_, WriteOutcome> {
        async move {
            self.record("write", &batch);
            if self.broken {
                return Err(StoreError::Broken("for good".to_owned()));
            }
            let failures = &self.failures;
            let less = |failures: u32| failures.checked_sub(1);
            if failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                .is_ok()
            {
                return Err(StoreError::Unavailable("for now".to_owned()));
            }
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
        .boxed()
    }

    fn commit<'a>(&'a self, batch: &'a Batch, _: Receipt) -> StoreFuture<'a, ()> {
        async move {
            self.record("commit", batch);
            sleep(self.slow_commit).await;
            let less = |times: u32| times.checked_sub(1);
            let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
            if self.failed_commits.fetch_update(set, fetch, less).is_ok() {
                self.has_failed_commit.store(true, Ordering::Relaxed);
                return Err(StoreError::Unavailable("not durable".to_owned()));
            }
            self.record("committed", batch);
            Ok(())
        }
        .boxed()
    }

    fn put_retry_entries(&self, entries: Arc<[FullRetryEntry]>) -> StoreFuture<'_, ()> {
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let result = match self.failed_puts.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("not now".to_owned())),
            Err(_) => Ok(()),
        };
        if result.is_ok() {
            let mut retry_queue = self.retry_queue.lock();
            retry_queue.extend(entries.iter().cloned());
        }
        let cookies: u64 = entries.iter().map(|full| full.entry.cookies).sum();
        let event = format!("put {cookies}: {}", result.is_ok());
        self.events.lock().push(event);
        std::future::ready(result).boxed()
    }

    fn read_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> StoreFuture<'a, Vec<Bytes>> {
        let retry_queue = self.retry_queue.lock();
        let found = retry_queue
            .iter()
            .filter(|full| numbers.contains(&full.entry.number));
        let chunks = found.map(|full| full.chunk.clone()).collect();
        std::future::ready(Ok(chunks)).boxed()
    }

    fn remove_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> StoreFuture<'a, ()> {
        let mut retry_queue = self.retry_queue.lock();
        retry_queue.retain(|full| !numbers.contains(&full.entry.number));
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let result = match self.lost_removals.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("no response".to_owned())),
            Err(_) => Ok(()),
        };
        std::future::ready(result).boxed()
    }

    fn lookup<'a>(
        &'a self,
        _: &'a str,
        _: &'a crate::deletions::Deletions,
    ) -> StoreFuture<'a, LookupResult> {
        std::future::ready(Ok(LookupResult::default())).boxed()
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let result = match self.read_only.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("read only".to_owned())),
            Err(_) => Ok(()),
        };
        std::future::ready(result).boxed()
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> StoreFuture<'a, ExpiryResult> {
        let nothing = ExpiryResult {
            deleted: 0,
            complete: true,
            ..ExpiryResult::default()
        };
        std::future::ready(Ok(nothing)).boxed()
    }

    fn hang_timeout(&self) -> Option<Duration> {
        self.hang_timeout
    }

    fn delete_cursors_before(&self, _: u64) -> StoreFuture<'_, Vec<Arc<str>>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}
