//! A store in memory with the faults of a real store: it is slow or unavailable, or reports failures of writes that succeeded. A power
//! loss discards a random subset of the uncommitted writes.
//!
//! As in MongoDB, a failure can be limited to the database of one DSP, and a retry creates the database of a new DSP. Until then, the
//! cookies and deletions of the DSP are in the retry queue.
//!
//! The [`Disk`] outlives the incarnations (runs of the process) of the consumer that use it through [`SimStore`].

mod disk;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use consumer::{
    batch::Batch,
    copy::protocol::CopyPage,
    deletions::{Deletions, DspDeletion},
    store::{
        Backlog, Compaction, Cookies, Copies, Expiry, ExpiryResult, FullRetryEntry, Lookup,
        LookupQuery, LookupResult, Page, PageQuery, Receipt, RetryEntry, StoreError, StoredMatch,
        StoredState, Upkeep, UserMatches, WriteOutcome,
    },
    ttl::Ttls,
};
use proto::units::{DspId, UnixMicros};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) use self::disk::{Disk, StoredValue};
use crate::{loss_reports, trace};

/// The DSPs of all syncs.
const DSPS: [DspId; 3] = [DspId(1), DspId(2), DspId(3)];

/// How the store responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StoreBehavior {
    /// Responds in a few milliseconds.
    #[default]
    Healthy,
    /// Responds in 0.2 to 2 s.
    Slow,
    /// Fails every operation.
    Failing,
    /// Does not respond.
    Hanging,
    /// Executes writes and commits, but reports half of them as failed.
    FalseErrors,
}

/// The store of one incarnation of a consumer.
#[derive(Clone)]
pub(crate) struct SimStore(pub(crate) Arc<Mutex<Disk>>);

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

impl SimStore {
    /// Discards loss reports of the previous process that were not committed: the next process reports them again.
    pub(crate) fn discard_uncommitted_reports(&self, consumer: &str) {
        let disk = self.disk();
        loss_reports::retain(consumer, |loss| {
            let cursor = disk.cursors.get(loss.producer.as_str());
            cursor.is_some_and(|cursor| (cursor.epoch, cursor.sequence) >= loss.durable_position())
        });
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays the response, or fails, according to the behavior; returns the current generation.
    async fn respond(&self) -> Result<u64, StoreError> {
        loop {
            let (behavior, millis) = {
                let mut disk = self.disk();
                let millis = match disk.behavior {
                    StoreBehavior::Slow => disk.random.u64(200..2_000),
                    StoreBehavior::Hanging => 100,
                    _ => disk.random.u64(0..8),
                };
                (disk.behavior, millis)
            };
            sleep(Duration::from_millis(millis)).await;
            match behavior {
                StoreBehavior::Hanging => {}
                StoreBehavior::Failing => {
                    return Err(StoreError::Unavailable("failing".to_owned()));
                }
                _ => return Ok(self.disk().generation),
            }
        }
    }

    fn reports_false_error(&self) -> bool {
        let mut disk = self.disk();
        disk.behavior == StoreBehavior::FalseErrors && disk.random.bool()
    }

    fn check(&self, generation: u64) -> Result<(), StoreError> {
        if self.disk().generation == generation {
            Ok(())
        } else {
            Err(StoreError::Unavailable("restarted".to_owned()))
        }
    }

    async fn write_parts(&self, batch: &Batch) -> Result<WriteOutcome, StoreError> {
        self.disk().check_deleted(batch);
        let generation = self.respond().await?;
        let mut written = WriteOutcome::default();
        let (deferred, removals) = {
            let mut disk = self.disk();
            disk.put_deletions(batch);
            let failing = disk.failing_dsp;
            let is_deferred = |dsp: &DspId| {
                failing == Some(*dsp) || batch.is_deferred(*dsp) || !disk.slots.contains(dsp)
            };
            let deferred: BTreeSet<DspId> = DSPS.into_iter().filter(is_deferred).collect();
            disk.remove_deleted(batch, &deferred);
            (deferred, batch.dsps_with_removals(&disk.slots))
        };
        for dsp in &deferred {
            let indices = (0..).zip(batch.cookies());
            let indices = indices.filter(|(_, cookie)| cookie.dsp_id == *dsp);
            let indices: Vec<u32> = indices.map(|(index, _)| index).collect();
            if !indices.is_empty() || removals.contains(dsp) {
                let is_failing = self.disk().failing_dsp == Some(*dsp);
                written.deferred(*dsp, is_failing.then(|| "failing".into()), indices);
            }
        }
        let middle = self.disk().random.usize(0..=batch.len());
        for range in [0..middle, middle..batch.len()] {
            self.respond().await?;
            self.check(generation)?;
            let mut disk = self.disk();
            for at in range {
                let cookie = batch.cookie(at);
                if !deferred.contains(&cookie.dsp_id) && !disk.write(&cookie) {
                    let at = u32::try_from(at).expect("batches are small");
                    written.stale.push(at);
                }
            }
        }
        trace::record("written", (batch.len(), written.stale.len()));
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "write reported as failed".to_owned(),
            ));
        }
        written.receipt.0[..8].copy_from_slice(&generation.to_be_bytes());
        Ok(written)
    }

    async fn retry_parts(&self, dsp_id: DspId, batch: &Batch) -> Result<WriteOutcome, StoreError> {
        self.disk().check_deleted(batch);
        let generation = self.respond().await?;
        if self.disk().failing_dsp == Some(dsp_id) {
            return Err(StoreError::Unavailable("failing".to_owned()));
        }
        if !self.has_slot(dsp_id) {
            // Long enough for a deletion of a cookie in this retry to arrive.
            let millis = self.disk().random.u64(0..10_000);
            sleep(Duration::from_millis(millis)).await;
            self.disk().slots.insert(dsp_id);
        }
        let others = DSPS.into_iter().filter(|dsp| *dsp != dsp_id).collect();
        self.disk().remove_deleted(batch, &others);
        let mut written = WriteOutcome::default();
        self.respond().await?;
        self.check(generation)?;
        for (index, cookie) in (0..).zip(batch.cookies()) {
            if !self.disk().write(&cookie) {
                written.stale.push(index);
            }
        }
        trace::record("retried", (batch.len(), written.stale.len()));
        self.respond().await?;
        self.check(generation)?;
        self.disk().commit_retry(dsp_id, batch);
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "retry reported as failed".to_owned(),
            ));
        }
        Ok(written)
    }

    /// Adds or removes entries of the retry queue.
    async fn change_retry_queue(
        &self,
        change: impl FnOnce(&mut Disk) + Send,
    ) -> Result<(), StoreError> {
        let generation = self.respond().await?;
        self.check(generation)?;
        change(&mut self.disk());
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "change reported as failed".to_owned(),
            ));
        }
        Ok(())
    }

    async fn remove_all(
        &self,
        deletion: &DspDeletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        for is_last in [false, true] {
            self.respond().await?;
            if stop.is_cancelled() {
                return Ok(None);
            }
            if self.disk().failing_dsp == Some(deletion.dsp_id) {
                return Err(StoreError::Unavailable("failing".to_owned()));
            }
            self.disk().remove_dsp(deletion, is_last);
        }
        Ok(Some(0))
    }

    async fn commit_parts(&self, batch: &Batch, receipt: Receipt) -> Result<(), StoreError> {
        let written = receipt.0.first_chunk().copied().map(u64::from_be_bytes);
        let written = written.expect("a receipt has at least 8 bytes");
        self.respond().await?;
        self.check(written)?;
        if self.reports_false_error() {
            return Err(StoreError::Unavailable("commit failed".to_owned()));
        }
        self.disk().commit(batch);
        self.respond().await?;
        self.check(written)?;
        let mut disk = self.disk();
        for cursor in batch.cursors() {
            trace::record("committed", (&*cursor.producer, cursor.sequence));
            let first = disk.first_epochs.entry(Arc::clone(&cursor.producer));
            first.or_insert(cursor.epoch);
            disk.cursors
                .insert(Arc::clone(&cursor.producer), cursor.clone());
        }
        for end in batch.completed_epochs() {
            let incarnation = (Arc::clone(&end.producer), end.epoch);
            disk.completed.insert(incarnation);
        }
        drop(disk);
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "commit reported as failed".to_owned(),
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl Cookies for SimStore {
    async fn load(&self, deletions: &Deletions) -> Result<StoredState, StoreError> {
        self.respond().await?;
        let disk = self.disk();
        deletions.load(disk.stored_deletions());
        Ok(StoredState {
            cursors: disk.cursors.values().cloned().collect(),
            slots: disk.slots.iter().copied().collect(),
        })
    }

    async fn write(&self, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.write_parts(&batch).await
    }

    async fn commit(&self, batch: &Batch, receipt: Receipt) -> Result<(), StoreError> {
        self.commit_parts(batch, receipt).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.respond().await.map(|_| ())
    }

    fn hang_timeout(&self) -> Option<Duration> {
        None
    }
}

/// Simulated nodes copy no others.
#[async_trait]
impl Copies for SimStore {
    fn order(&self) -> &'static str {
        ""
    }

    async fn cookies_after(&self, _: &str, _: &Deletions) -> Result<CopyPage, StoreError> {
        Ok(CopyPage::default())
    }

    async fn deletions_after(&self, _: &str) -> Result<CopyPage, StoreError> {
        Ok(CopyPage::default())
    }

    async fn approximate_cookies(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn copy_state(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn put_copy_state(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl Lookup for SimStore {
    fn in_memory(&self, _: &str) -> Option<UserMatches> {
        None
    }

    async fn lookup(&self, query: LookupQuery) -> Result<LookupResult, StoreError> {
        self.respond().await?;
        let of_user = |user_id: &str| {
            let user = user_id.strip_prefix('u').and_then(|user| user.parse().ok());
            let found = self.disk().lookup(user.expect("a user of a plan"));
            let matches = found
                .iter()
                .map(|(dsp_id, accepted, buyer_uid)| StoredMatch {
                    dsp_id: *dsp_id,
                    accepted: *accepted,
                    buyer_uid: buyer_uid.as_bytes(),
                });
            Some(matches.collect())
        };
        Ok(LookupResult {
            users: query.user_ids.iter().map(|it| of_user(it)).collect(),
            ..LookupResult::default()
        })
    }

    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn dsps(&self) -> BTreeSet<DspId> {
        DSPS.into()
    }

    /// The disk removes expired cookies itself.
    fn ttls(&self) -> &Ttls {
        static NEVER: LazyLock<Ttls> = LazyLock::new(|| Ttls::new(Duration::MAX, [].into()));
        &NEVER
    }

    async fn page(&self, _: &PageQuery, _: &Deletions) -> Result<Page, StoreError> {
        unreachable!("no simulated client reads pages")
    }
}

#[async_trait]
impl Backlog for SimStore {
    fn has_slot(&self, dsp_id: DspId) -> bool {
        self.disk().slots.contains(&dsp_id)
    }

    async fn retry(&self, dsp_id: DspId, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.retry_parts(dsp_id, &batch).await
    }

    async fn retry_entries(&self) -> Result<Vec<RetryEntry>, StoreError> {
        self.respond().await?;
        let disk = self.disk();
        Ok(disk.retry_queue.values().map(|full| full.entry).collect())
    }

    async fn put_retry_entries(&self, entries: &[FullRetryEntry]) -> Result<(), StoreError> {
        let put = |disk: &mut Disk| {
            for full in entries {
                disk.retry_queue.insert(full.entry.number, full.clone());
            }
        };
        self.change_retry_queue(put).await
    }

    async fn read_retry_entries(&self, numbers: &[u64]) -> Result<Vec<Bytes>, StoreError> {
        self.respond().await?;
        let disk = self.disk();
        let entries = numbers.iter().filter_map(|it| disk.retry_queue.get(it));
        Ok(entries.map(|full| full.chunk.clone()).collect())
    }

    async fn remove_retry_entries(&self, numbers: &[u64]) -> Result<(), StoreError> {
        let remove = |disk: &mut Disk| {
            disk.retry_queue
                .retain(|number, _| !numbers.contains(number));
        };
        self.change_retry_queue(remove).await
    }
}

#[async_trait]
impl Upkeep for SimStore {
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn expire(&self, _: Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        Ok(ExpiryResult {
            complete: true,
            ..ExpiryResult::default()
        })
    }

    async fn compact(&self, _: Compaction<'_>) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn remove_dsp(
        &self,
        deletion: &DspDeletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        self.remove_all(deletion, stop).await
    }

    async fn remove_deletions_until(&self, floor: UnixMicros) -> Result<(), StoreError> {
        self.respond().await?;
        self.disk().forget_deletions(floor);
        Ok(())
    }

    async fn delete_cursors_before(&self, _: UnixMicros) -> Result<Vec<Arc<str>>, StoreError> {
        Ok(Vec::new())
    }
}
