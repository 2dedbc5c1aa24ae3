//! A store that does as it is told, and tells what was asked of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::sleep;

use super::*;
use crate::store::{
    Answer, Expired, Expiry, FullRetryEntry, LookupResult, Receipt, RejectedCookie, Store,
    StoreError, StoredState, WriteOutcome,
};

/// Fails some times, then writes slowly.
#[derive(Debug, Default)]
pub(super) struct FakeStore {
    pub(super) failures: AtomicU32,
    pub(super) slow: Duration,
    /// How long a commit takes, whether it fails or not.
    pub(super) slow_commit: Duration,
    pub(super) hang_timeout: Option<Duration>,
    pub(super) broken: bool,
    /// Refuses the first cookie of every batch forever.
    pub(super) picky: bool,
    /// Times that a commit fails; after one it is picky.
    pub(super) failed_commits: AtomicU32,
    pub(super) has_failed_commit: AtomicBool,
    /// Does not take the cookies of this DSP.
    pub(super) failing_dsp: Option<u32>,
    /// Times that it puts nothing into its retry queue.
    pub(super) failed_puts: AtomicU32,
    /// What is in its retry queue.
    pub(super) retry_queue: Mutex<Vec<FullRetryEntry>>,
    /// Times that the answer to a removal from the retry queue is lost.
    pub(super) lost_removals: AtomicU32,
    /// Times that it can be read but not written.
    pub(super) read_only: AtomicU32,
    pub(super) batches: Mutex<Vec<(usize, Vec<Cursor>)>>,
    /// What began and what succeeded, each with the last sequence of its batch.
    pub(super) events: Mutex<Vec<String>>,
}

impl FakeStore {
    fn note(&self, event: &str, batch: &Batch) {
        let sequence = batch.cursors().first().map_or(0, |cursor| cursor.sequence);
        let event = format!("{event} {sequence}");
        self.events.lock().unwrap().push(event);
    }
}

impl Store for FakeStore {
    fn load(&self) -> Answer<'_, StoredState> {
        std::future::ready(Ok(StoredState::default())).boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        async move {
            self.note("write", &batch);
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
            self.note("written", &batch);
            let cursors = batch.cursors().to_vec();
            self.batches.lock().unwrap().push((batch.len(), cursors));
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

    fn commit<'a>(&'a self, batch: &'a Batch, _: Receipt) -> Answer<'a, ()> {
        async move {
            self.note("commit", batch);
            sleep(self.slow_commit).await;
            let less = |times: u32| times.checked_sub(1);
            let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
            if self.failed_commits.fetch_update(set, fetch, less).is_ok() {
                self.has_failed_commit.store(true, Ordering::Relaxed);
                return Err(StoreError::Unavailable("not durable".to_owned()));
            }
            self.note("committed", batch);
            Ok(())
        }
        .boxed()
    }

    fn put_retry_entries(&self, entries: Arc<[FullRetryEntry]>) -> Answer<'_, ()> {
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let answer = match self.failed_puts.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("not now".to_owned())),
            Err(_) => Ok(()),
        };
        if answer.is_ok() {
            let mut retry_queue = self.retry_queue.lock().unwrap();
            retry_queue.extend(entries.iter().cloned());
        }
        let cookies: u64 = entries.iter().map(|full| full.entry.cookies).sum();
        let event = format!("put {cookies}: {}", answer.is_ok());
        self.events.lock().unwrap().push(event);
        std::future::ready(answer).boxed()
    }

    fn read_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, Vec<Bytes>> {
        let retry_queue = self.retry_queue.lock().unwrap();
        let found = retry_queue
            .iter()
            .filter(|full| numbers.contains(&full.entry.number));
        let chunks = found.map(|full| full.chunk.clone()).collect();
        std::future::ready(Ok(chunks)).boxed()
    }

    fn remove_retry_entries<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, ()> {
        let mut retry_queue = self.retry_queue.lock().unwrap();
        retry_queue.retain(|full| !numbers.contains(&full.entry.number));
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let answer = match self.lost_removals.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("no answer".to_owned())),
            Err(_) => Ok(()),
        };
        std::future::ready(answer).boxed()
    }

    fn lookup<'a>(&'a self, _: &'a str) -> Answer<'a, LookupResult> {
        std::future::ready(Ok(LookupResult::default())).boxed()
    }

    fn ping(&self) -> Answer<'_, ()> {
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let answer = match self.read_only.fetch_update(set, fetch, less) {
            Ok(_) => Err(StoreError::Unavailable("read only".to_owned())),
            Err(_) => Ok(()),
        };
        std::future::ready(answer).boxed()
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> Answer<'a, Expired> {
        let nothing = Expired {
            deleted: 0,
            complete: true,
            ..Expired::default()
        };
        std::future::ready(Ok(nothing)).boxed()
    }

    fn hang_timeout(&self) -> Option<Duration> {
        self.hang_timeout
    }

    fn delete_cursors_before(&self, _: u64) -> Answer<'_, Vec<Arc<str>>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}
