//! A store that does what the one in it does, and notes how long its writes take and how far they got.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use consumer::{
    batch::{Batch, Cursor},
    store::{
        Answer, Compacted, Compaction, Entry, Expired, Expiry, Found, FullEntry, Receipt, Store,
        StoreError, Written,
    },
};
use futures_util::FutureExt;
use hdrhistogram::Histogram;
use tokio::sync::watch;

use crate::report::micros_histogram;

/// A store under the clock.
#[derive(Debug)]
pub(super) struct TimedStore {
    inner: Arc<dyn Store>,
    writes: Mutex<Writes>,
    stored: watch::Sender<u64>,
}

/// What is known of the writes that succeeded.
#[derive(Debug, Clone)]
pub(super) struct Writes {
    pub(super) micros: Histogram<u64>,
    pub(super) batches: u64,
    /// Cookies that were given to the store.
    pub(super) cookies: u64,
    /// Since when it fails, and why.
    pub(super) failing: Option<(Instant, String)>,
}

impl TimedStore {
    pub(super) fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            writes: Mutex::new(Writes::none()),
            stored: watch::Sender::new(0),
        }
    }

    /// The newest sequence whose cursor was committed.
    pub(super) fn stored(&self) -> watch::Receiver<u64> {
        self.stored.subscribe()
    }

    /// All writes until now, or since the last [`forget`](Self::forget).
    pub(super) fn writes(&self) -> Writes {
        self.lock().clone()
    }

    /// Begins to count anew.
    pub(super) fn forget(&self) {
        *self.lock() = Writes::none();
    }

    fn note(&self, began: Instant, batch: &Batch, error: Option<&StoreError>) {
        let mut writes = self.lock();
        if let Some(error) = error {
            let why = error.to_string();
            writes.failing.get_or_insert_with(|| (Instant::now(), why));
            return;
        }
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        writes
            .micros
            .record(micros)
            .expect("the histogram grows to any value");
        writes.batches += 1;
        writes.cookies += batch.len() as u64;
        writes.failing = None;
        drop(writes);
        if let Some(newest) = batch.cursors().iter().map(|cursor| cursor.sequence).max() {
            self.stored.send_replace(newest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writes {
    fn none() -> Self {
        Self {
            micros: micros_histogram(),
            batches: 0,
            cookies: 0,
            failing: None,
        }
    }
}

impl Store for TimedStore {
    fn load_cursors(&self) -> Answer<'_, Vec<Cursor>> {
        self.inner.load_cursors()
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, Written> {
        async move {
            let began = Instant::now();
            let written = self.inner.write(Arc::clone(&batch)).await;
            self.note(began, &batch, written.as_ref().err());
            written
        }
        .boxed()
    }

    fn commit<'a>(&'a self, batch: &'a Batch, receipt: Receipt) -> Answer<'a, ()> {
        self.inner.commit(batch, receipt)
    }

    fn retry(&self, dsp_id: u32, batch: Arc<Batch>) -> Answer<'_, Written> {
        self.inner.retry(dsp_id, batch)
    }

    fn has_slot(&self, dsp_id: u32) -> bool {
        self.inner.has_slot(dsp_id)
    }

    fn load_aside(&self) -> Answer<'_, Vec<Entry>> {
        self.inner.load_aside()
    }

    fn put_aside(&self, entries: Arc<[FullEntry]>) -> Answer<'_, ()> {
        self.inner.put_aside(entries)
    }

    fn read_aside<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, Vec<Bytes>> {
        self.inner.read_aside(numbers)
    }

    fn remove_aside<'a>(&'a self, numbers: &'a [u64]) -> Answer<'a, ()> {
        self.inner.remove_aside(numbers)
    }

    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, Found> {
        self.inner.lookup(user_id)
    }

    fn ping(&self) -> Answer<'_, ()> {
        self.inner.ping()
    }

    fn expire<'a>(&'a self, expiry: Expiry<'a>) -> Answer<'a, Expired> {
        self.inner.expire(expiry)
    }

    fn forget_cursors(&self, before: u64) -> Answer<'_, Vec<Arc<str>>> {
        self.inner.forget_cursors(before)
    }

    fn compact<'a>(&'a self, compaction: Compaction<'a>) -> Answer<'a, Compacted> {
        self.inner.compact(compaction)
    }
}
