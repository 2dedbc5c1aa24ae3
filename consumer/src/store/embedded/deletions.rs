//! Deletions in the embedded store.
//!
//! They are stored in the same atomic write as the cookies of their batch, which also removes the covered cookies. A
//! deletion of a DSP scans all cookies, in steps of [`STEP_KEYS`] with a pause after each step. A step holds the
//! writers' lock for some milliseconds.

use std::{collections::HashSet, ops::Bound, time::Duration};

use fjall::{OwnedWriteBatch, PersistMode};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    EmbeddedStore, Inner,
    records::{
        CookieKey, DELETION_PREFIX, FLOOR_KEY, be_u64, decode_deletion, deletion_key,
        deletion_value, dsp_of, user_prefix,
    },
};
use crate::{
    batch::Batch,
    deletions::{Deletion, Stored},
    store::StoreError,
};

/// Number of cookies that a step scans.
const STEP_KEYS: usize = 10_000;

/// Pause after a step.
const PAUSE: Duration = Duration::from_millis(20);

impl EmbeddedStore {
    pub(super) async fn remove_all_of_dsp(
        &self,
        deletion: &Deletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        let (mut from, mut removed) = (Bound::Unbounded, 0);
        loop {
            let (now, begin) = (deletion.clone(), from);
            let step = self.run(move |inner| inner.remove_step(&now, begin));
            let (of_step, last) = step.await?;
            removed += of_step;
            let Some(last) = last else { break };
            from = Bound::Excluded(last);
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = sleep(PAUSE) => {}
            }
        }
        let finished = deletion.clone();
        self.run(move |inner| inner.finish(&finished)).await?;
        Ok(Some(removed))
    }
}

impl Inner {
    pub(super) fn load_deletions(&self) -> fjall::Result<Stored> {
        let mut stored = Stored::default();
        if let Some(floor) = self.meta.get(FLOOR_KEY)? {
            stored.floor_unix_micros = be_u64(&floor).unwrap_or_default();
        }
        for pair in self.meta.prefix(DELETION_PREFIX) {
            let (key, value) = pair.into_inner()?;
            if let Some((deletion, is_finished)) = decode_deletion(&key, &value) {
                if !is_finished {
                    stored.unfinished.push(deletion.clone());
                }
                stored.deletions.push(deletion);
            }
        }
        Ok(stored)
    }

    /// Adds the changes of a batch's deletions to `writes`. The caller holds the writers' lock.
    pub(super) fn delete(&self, batch: &Batch, writes: &mut OwnedWriteBatch) -> fjall::Result<()> {
        if batch.deletions().is_empty() {
            return Ok(());
        }
        // One write batch must not both remove and insert a key. An inserted cookie is newer than those that the
        // deletion covers.
        let written: HashSet<Vec<u8>> = batch
            .cookies()
            .map(|cookie| CookieKey::new(&cookie).as_slice().to_vec())
            .collect();
        for deletion in &batch.latest_deletions() {
            self.keep(deletion, writes)?;
            let mut remove = |key: &[u8], value: &[u8]| {
                let is_covered = be_u64(value).is_some_and(|at| at <= deletion.until_unix_micros);
                if is_covered && !written.contains(key) {
                    writes.remove(&self.cookies, key);
                }
            };
            if deletion.is_of_dsp() {
                // A job removes these cookies.
            } else if deletion.dsp_id == 0 {
                for pair in self.cookies.prefix(user_prefix(&deletion.user_id)) {
                    let (key, value) = pair.into_inner()?;
                    remove(&key, &value);
                }
            } else {
                let key = CookieKey::of(&deletion.user_id, deletion.dsp_id);
                if let Some(value) = self.cookies.get(key.as_slice())? {
                    remove(key.as_slice(), &value);
                }
            }
        }
        Ok(())
    }

    /// Stores a deletion, unless a later one of the same scope is stored.
    fn keep(&self, deletion: &Deletion, writes: &mut OwnedWriteBatch) -> fjall::Result<()> {
        let key = deletion_key(deletion);
        let kept = self.meta.get(&key)?;
        let kept = kept.as_deref().and_then(be_u64).unwrap_or_default();
        if deletion.until_unix_micros > kept {
            let is_finished = !deletion.is_of_dsp();
            writes.insert(&self.meta, key, deletion_value(deletion, is_finished));
        }
        Ok(())
    }

    /// Removes what the deletion covers in the next keys. Returns how many cookies it removed, and the last key, or `None` at
    /// the end.
    fn remove_step(
        &self,
        deletion: &Deletion,
        from: Bound<Vec<u8>>,
    ) -> fjall::Result<(u64, Option<Vec<u8>>)> {
        // No newer cookie is written between the read and the removal.
        let _writing = self.recent();
        let mut writes = OwnedWriteBatch::with_capacity(self.database.clone(), 0)
            .durability(Some(PersistMode::Buffer));
        let (mut removed, mut last) = (0, None);
        for (count, pair) in (1..).zip(self.cookies.range((from, Bound::Unbounded))) {
            let (key, value) = pair.into_inner()?;
            let is_covered = be_u64(&value).is_some_and(|at| at <= deletion.until_unix_micros);
            if dsp_of(&key) == Some(deletion.dsp_id) && is_covered {
                writes.remove(&self.cookies, &*key);
                removed += 1;
            }
            if count == STEP_KEYS {
                last = Some(key.to_vec());
                break;
            }
        }
        writes.commit()?;
        Ok((removed, last))
    }

    /// Records that a deletion of a DSP has removed all cookies, in the same durable write as the last removals.
    fn finish(&self, deletion: &Deletion) -> fjall::Result<()> {
        let _writing = self.recent();
        let key = deletion_key(deletion);
        let kept = self.meta.get(&key)?;
        if kept.as_deref().and_then(be_u64) == Some(deletion.until_unix_micros) {
            self.meta.insert(key, deletion_value(deletion, true))?;
        }
        self.database.persist(PersistMode::SyncData)
    }

    pub(super) fn remove_deletions_until(&self, floor: u64) -> fjall::Result<()> {
        let _writing = self.recent();
        let mut writes = OwnedWriteBatch::with_capacity(self.database.clone(), 0);
        writes.insert(&self.meta, FLOOR_KEY, floor.to_be_bytes());
        for pair in self.meta.prefix(DELETION_PREFIX) {
            let (key, value) = pair.into_inner()?;
            if be_u64(&value).is_some_and(|until| until <= floor) {
                writes.remove(&self.meta, &*key);
            }
        }
        writes.commit()
    }
}
