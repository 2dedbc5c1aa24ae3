//! When a producer is forgotten: its cursor has not moved for as long as the longest time to live of any DSP.

use jiff::Zoned;

use super::MaintenanceTask;
use crate::{clock::unix_micros, store::StoreError, subscription::restarts, ttl::before};

impl MaintenanceTask {
    /// Forgets producers that are gone, in the store and in memory.
    pub(super) async fn delete_cursors_before(&self, now: &Zoned) -> Result<bool, StoreError> {
        let before = before(unix_micros(now.timestamp()), self.schedule.cursors_kept);
        for producer in self.store.delete_cursors_before(before).await? {
            let stood = self.producers.forget(&producer);
            if let Some(stood) = stood.filter(|cursor| !cursor.complete) {
                restarts::report_gone(&self.subscription, &stood);
            }
            tracing::info!(
                producer = &*producer,
                "cursor of a producer that is gone deleted"
            );
        }
        Ok(true)
    }
}
