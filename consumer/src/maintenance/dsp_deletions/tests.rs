//! Tests of jobs and of the removal of old deletion records.

use async_trait::async_trait;
use parking_lot::Mutex;
use proto::{units::DspId, wire::Scope};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::*;
use crate::{
    clock,
    deletions::Deletion,
    store::{Compaction, Expiry, ExpiryResult, StoreError},
};

/// A store in which each job hangs. It reports the floors that it received.
#[derive(Debug)]
struct HangingStore {
    floor: watch::Sender<UnixMicros>,
    failures: Mutex<u32>,
}

#[async_trait]
impl Upkeep for HangingStore {
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn expire(&self, _: Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        Ok(ExpiryResult::default())
    }

    async fn compact(&self, _: Compaction<'_>) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn remove_dsp(
        &self,
        _: &DspDeletion,
        _: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        std::future::pending().await
    }

    async fn remove_deletions_until(&self, floor: UnixMicros) -> Result<(), StoreError> {
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(StoreError::Unavailable("failing".to_owned()));
        }
        self.floor.send_replace(floor);
        Ok(())
    }

    async fn delete_cursors_before(&self, _: UnixMicros) -> Result<Vec<Arc<str>>, StoreError> {
        Ok(Vec::new())
    }
}

fn deletion(user: &str, dsp_id: u32, until: UnixMicros) -> Deletion {
    Deletion {
        scope: Scope::from_ids(user.as_bytes().into(), DspId(dsp_id)),
        until,
    }
}

#[tokio::test(start_paused = true)]
async fn store_removes_deletions_with_the_table_while_a_job_hangs() {
    let (floor, mut floors) = watch::channel(UnixMicros::NONE);
    let store = HangingStore {
        floor,
        failures: Mutex::new(2),
    };
    // The table has one entry.
    let deletions = Deletions::new(0);
    // Too new to be removed because of its age.
    let now = clock::now();
    deletions.begin_jobs(&[deletion("", 1, now)]);
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(run(deletions.clone(), Arc::new(store), stop));
    for at in 1..4 {
        deletions.add(&deletion("u", 1, now.after(at)));
        deletions.add(&deletion("v", 1, now.after(at)));
        let reaches = floors.wait_for(|floor| *floor == deletions.floor());
        // Removal by age has a longer interval.
        let reached = timeout(Duration::from_secs(600), reaches).await;
        assert!(*reached.unwrap().unwrap() > now);
    }
}
