//! Deletes cursors that have not advanced for the longest TTL of any DSP.

use jiff::Zoned;

use super::MaintenanceTask;
use crate::{clock::unix_micros, store::StoreError, subscription::restarts, ttl::before};

impl MaintenanceTask {
    /// Deletes the cursors of producers that no longer exist, in the store and in memory.
    pub(super) async fn delete_old_cursors(&self, now: &Zoned) -> Result<bool, StoreError> {
        let before = before(unix_micros(now.timestamp()), self.schedule.cursor_ttl);
        for producer in self.upkeep.delete_cursors_before(before).await? {
            let cursor = self.producers.forget(&producer);
            if let Some(cursor) = cursor.filter(|cursor| !cursor.complete) {
                restarts::report_gone(&self.subscription, &cursor);
            }
            tracing::info!(
                producer = &*producer,
                "deleted the cursor of a producer that no longer exists"
            );
        }
        Ok(true)
    }
}
