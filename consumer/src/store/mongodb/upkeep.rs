//! Maintenance in MongoDB: expiry, compaction, and the removal of DSPs, of old deletions and of old cursors.

mod compaction;
mod expiry;
mod owner;
mod sweep;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use mongodb::bson::doc;
use proto::units::UnixMicros;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    CURSORS, MongodbStore,
    cookies::{decode_cursor, deletions::COLLECTION as DELETIONS},
    date, deleted_before,
    documents::{DELETES_PER_COMMAND_MAX, Documents, delete, expired},
    int,
};
use crate::{
    batch::Cursor,
    clock,
    deletions::{Deletion, DspDeletion},
    store::{Compaction, Expiry, ExpiryResult, StoreError, Upkeep},
    ttl,
};

/// Age at which cursors of other consumers are deleted: these consumers were renamed or removed.
const GONE_AFTER: Duration = Duration::from_secs(90 * 86_400);

/// Number of documents that the removal of a DSP reads at a time.
const PAGE: usize = 5_000;

#[async_trait]
impl Upkeep for MongodbStore {
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError> {
        self.other_owner().await
    }

    async fn expire(&self, expiry: Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        self.run_expiry(&expiry).await
    }

    async fn compact(&self, compaction: Compaction<'_>) -> Result<bool, StoreError> {
        self.compact_all(compaction).await
    }

    async fn remove_dsp(
        &self,
        deletion: &DspDeletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        self.breakers.may_try(deletion.dsp_id)?;
        let connection = self.connection().await?;
        let database = self.database(connection, deletion.dsp_id);
        let before = deleted_before(deletion.until);
        let mut removed = 0;
        if self.has_cookies(&database).await? {
            let mut documents = Documents::begin(connection, database.clone()).await?;
            while !documents.is_at_end() {
                let began = Instant::now();
                let found = documents.next(PAGE).await?;
                for part in expired(found, |_| before).chunks(DELETES_PER_COMMAND_MAX) {
                    removed += delete(connection, &database, part).await?;
                }
                // The scan runs for less than half of the time.
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = sleep(began.elapsed()) => {}
                }
            }
        }
        self.put_deletions(&[(*deletion).into()], "done", &connection.journaled())
            .await?;
        Ok(Some(removed))
    }

    async fn remove_deletions_until(&self, floor: UnixMicros) -> Result<(), StoreError> {
        let concern = self.connection().await?.journaled();
        self.put_deletions(&[Deletion::floor(floor)], "t", &concern)
            .await?;
        let is_finished = doc! { "$expr": { "$gte": ["$done", "$t"] } };
        let old = doc! {
            "t": { "$lt": int(floor.0) },
            "$or": [{ "_id.u": { "$ne": "" } }, is_finished],
        };
        self.delete_own(DELETIONS, old).await
    }

    async fn delete_cursors_before(&self, before: UnixMicros) -> Result<Vec<Arc<str>>, StoreError> {
        let mut old = self.own_ids("p");
        old.insert("at", doc! { "$lt": date(before) });
        let found = self.find_own(CURSORS, old.clone()).await?;
        // First, so that no commit considers deleted cursors as lost. A cursor committed in between is no longer old.
        let is_kept = |it: &Cursor| !found.iter().filter_map(decode_cursor).any(|of| of == *it);
        self.committed.lock().retain(is_kept);
        // Also deletes the state of consumers that no longer exist.
        let gone = ttl::before(clock::now(), GONE_AFTER);
        let gone = gone.min(before);
        self.delete_abandoned_retries(gone).await?;
        let gone = doc! { "at": { "$lt": date(gone) } };
        self.delete_own(CURSORS, gone).await?;
        if !found.is_empty() {
            self.delete_own(CURSORS, old).await?;
        }
        let producers = found.iter().filter_map(decode_cursor);
        Ok(producers.map(|cursor| cursor.producer).collect())
    }
}
