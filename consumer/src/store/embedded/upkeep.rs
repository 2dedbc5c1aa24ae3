//! Maintenance of the embedded store, and its deletions.
//!
//! One atomic write stores the deletions of a batch and removes the covered cookies, before the cookies of their batch
//! are written. A deletion of a DSP scans all cookies, in steps of [`STEP_KEYS`] with a pause after each step. A step
//! holds the writers' lock for some milliseconds.

use std::{ops::Bound, sync::Arc, time::Duration};

use async_trait::async_trait;
use fjall::{OwnedWriteBatch, PersistMode};
use proto::{units::UnixMicros, wire::Scope};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    EmbeddedStore, Inner,
    records::{
        DELETION_PREFIX, decode_deletion, deletion_key, deletion_value, dsp_of, stored_cookie,
        time, user_prefix,
    },
};
use crate::{
    deletions::{Deletion, Deletions, DspDeletion},
    store::{Compaction, Expiry, ExpiryResult, StoreError, SweepProgress, Upkeep},
};

/// Number of cookies that a step scans.
const STEP_KEYS: usize = 10_000;

/// Pause after a step.
const PAUSE: Duration = Duration::from_millis(20);

#[async_trait]
impl Upkeep for EmbeddedStore {
    /// The directory is locked, so no other consumer uses it.
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn expire(&self, expiry: Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        if expiry.open {
            self.inner.expiry.set_now(expiry.now);
        }
        let deleted = self.inner.expiry.take_removed();
        (expiry.report)(&SweepProgress {
            deleted,
            ..SweepProgress::default()
        });
        Ok(ExpiryResult {
            complete: true,
            ..ExpiryResult::default()
        })
    }

    /// fjall compacts while it writes.
    async fn compact(&self, _: Compaction<'_>) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn remove_dsp(
        &self,
        deletion: &DspDeletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        let (mut from, mut removed) = (Bound::Unbounded, 0);
        loop {
            let (now, begin) = (*deletion, from);
            let step = self.run(move |inner| inner.remove_step(&now, begin));
            let (of_step, last) = step.await?;
            removed += of_step;
            let Some(last) = last else {
                return Ok(Some(removed));
            };
            from = Bound::Excluded(last);
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = sleep(PAUSE) => {}
            }
        }
    }

    async fn remove_deletions_until(&self, floor: UnixMicros) -> Result<(), StoreError> {
        self.run(move |inner| inner.remove_deletions_until(floor))
            .await
    }

    async fn delete_cursors_before(&self, before: UnixMicros) -> Result<Vec<Arc<str>>, StoreError> {
        self.run(move |inner| inner.delete_cursors_before(before))
            .await
    }
}

impl Inner {
    pub(super) fn load_deletions(&self, deletions: &Deletions) -> fjall::Result<()> {
        for pair in self.meta.prefix(DELETION_PREFIX) {
            let (key, value) = pair.into_inner()?;
            deletions.load(decode_deletion(&key, &value));
        }
        Ok(())
    }

    /// Stores deletions, and removes the cookies that deletions of users cover. The caller holds the writers' lock.
    pub(super) fn delete(&self, deletions: &[Deletion]) -> fjall::Result<()> {
        let mut writes = self.synced_writes(deletions.len());
        for deletion in deletions {
            if self.kept(deletion)? < Some(deletion.until) {
                let value = deletion_value(deletion, false);
                writes.insert(&self.meta, deletion_key(deletion), value);
            }
            let (Scope::Match(user_id, _) | Scope::User(user_id)) = &deletion.scope else {
                // The job of the DSP removes these cookies.
                continue;
            };
            for pair in self.cookies.prefix(user_prefix(user_id)) {
                let (key, value) = pair.into_inner()?;
                let is_concerned = dsp_of(&key).is_some_and(|dsp_id| deletion.removes_from(dsp_id));
                if is_concerned && is_covered(&value, deletion.until) {
                    writes.remove(&self.cookies, &*key);
                }
            }
        }
        writes.commit()?;
        for deletion in deletions {
            if let Scope::Match(user_id, _) | Scope::User(user_id) = &deletion.scope {
                self.users.remove(user_id);
            }
        }
        Ok(())
    }

    /// The time of the stored deletion of this scope.
    fn kept(&self, deletion: &Deletion) -> fjall::Result<Option<UnixMicros>> {
        let kept = self.meta.get(deletion_key(deletion))?;
        Ok(kept.as_deref().and_then(time))
    }

    /// Removes covered cookies among the next keys. Returns the number of removed cookies, and the last key. At the end,
    /// returns `None` as the last key and records that the deletion is finished.
    fn remove_step(
        &self,
        deletion: &DspDeletion,
        from: Bound<Vec<u8>>,
    ) -> fjall::Result<(u64, Option<Vec<u8>>)> {
        // No newer cookie is written between the read and the removal.
        let _writing = self.recent.lock();
        let mut writes = OwnedWriteBatch::with_capacity(self.database.clone(), 0);
        let (mut removed, mut last) = (Vec::new(), None);
        for (count, pair) in (1..).zip(self.cookies.range((from, Bound::Unbounded))) {
            let (key, value) = pair.into_inner()?;
            if dsp_of(&key) == Some(deletion.dsp_id) && is_covered(&value, deletion.until) {
                writes.remove(&self.cookies, &*key);
                let cookie = stored_cookie(&key, &value);
                removed.extend(cookie.map(|it| it.user_id.to_vec()));
            }
            if count == STEP_KEYS {
                last = Some(key.to_vec());
                break;
            }
        }
        let is_end = last.is_none();
        let deletion = Deletion::from(*deletion);
        if is_end && self.kept(&deletion)? == Some(deletion.until) {
            let value = deletion_value(&deletion, true);
            writes.insert(&self.meta, deletion_key(&deletion), value);
        }
        writes.commit()?;
        for user_id in &removed {
            self.users.remove(user_id);
        }
        if is_end {
            // Compactions have removed expired cookies from the tree, but not from the cache.
            self.users.clear();
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok((removed.len() as u64, last))
    }

    pub(super) fn remove_deletions_until(&self, floor: UnixMicros) -> fjall::Result<()> {
        let _writing = self.recent.lock();
        self.delete(&[Deletion::floor(floor)])?;
        for pair in self.meta.prefix(DELETION_PREFIX) {
            let (key, value) = pair.into_inner()?;
            if decode_deletion(&key, &value).is_some_and(|it| !it.is_needed(floor)) {
                self.meta.remove(key)?;
            }
        }
        Ok(())
    }
}

/// Whether a deletion of its user or DSP up to this time covers a cookie with this value.
fn is_covered(value: &[u8], until: UnixMicros) -> bool {
    time(value).is_some_and(|at| at <= until)
}
