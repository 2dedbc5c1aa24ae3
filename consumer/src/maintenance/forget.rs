//! When a producer is forgotten: its cursor has not moved for as long as the longest time to live of any DSP.

use jiff::Zoned;

use super::Night;
use crate::{
    batch::Cursor, clock::unix_micros, store::StoreError, subscription::restarts, ttl::before,
};

impl Night {
    /// Forgets producers that are gone, in the store and in memory. `None` when the process stops.
    pub(super) async fn forget_cursors(&self, now: &Zoned) -> Option<Result<bool, StoreError>> {
        let before = before(unix_micros(now.timestamp()), self.schedule.cursors_kept);
        let forgotten = tokio::select! {
            () = self.stop.cancelled() => return None,
            forgotten = self.store.forget_cursors(before) => forgotten,
        };
        let forgotten = match forgotten {
            Ok(forgotten) => forgotten,
            Err(error) => return Some(Err(error)),
        };
        for producer in forgotten {
            let stood = self.producers.forget(&producer);
            if let Some(stood) = stood.filter(|cursor| !cursor.complete) {
                self.report_gone(&stood).await;
            }
            tracing::info!(
                producer = &*producer,
                "cursor of a producer that is gone deleted"
            );
        }
        Some(Ok(true))
    }

    /// Reports that what this producer had after its cursor is unknown. It waits for room in the buffer, which is closed when
    /// the process ends: then the log alone has it.
    async fn report_gone(&self, stood: &Cursor) {
        let loss = restarts::report_gone(&self.subscription, stood);
        if self.losses.report(loss).await.is_err() {
            tracing::debug!("the process ends: a loss is not on record");
        }
    }
}
