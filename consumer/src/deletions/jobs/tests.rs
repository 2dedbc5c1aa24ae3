//! Tests of jobs and of the removal of old deletion records.

use std::sync::Mutex;

use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::*;
use crate::{
    batch::Batch,
    store::{
        Expiry, ExpiryResult, LookupResult, StoreError, StoreFuture, StoredState, WriteOutcome,
    },
};

/// A store in which each job hangs. It reports the floors that it received.
#[derive(Debug)]
struct HangingStore {
    floor: watch::Sender<u64>,
    failures: Mutex<u32>,
}

fn ready<T: Send + 'static>(result: Result<T, StoreError>) -> StoreFuture<'static, T> {
    Box::pin(std::future::ready(result))
}

impl Store for HangingStore {
    fn load(&self) -> StoreFuture<'_, StoredState> {
        ready(Ok(StoredState::default()))
    }

    fn write(&self, _: Arc<Batch>) -> StoreFuture<'_, WriteOutcome> {
        ready(Ok(WriteOutcome::default()))
    }

    fn lookup<'a>(&'a self, _: &'a str, _: &'a Deletions) -> StoreFuture<'a, LookupResult> {
        ready(Ok(LookupResult::default()))
    }

    fn remove_dsp<'a>(
        &'a self,
        _: &'a Deletion,
        _: &'a CancellationToken,
    ) -> StoreFuture<'a, Option<u64>> {
        Box::pin(std::future::pending())
    }

    fn remove_deletions_until(&self, floor: u64) -> StoreFuture<'_, ()> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return ready(Err(StoreError::Unavailable("failing".to_owned())));
        }
        self.floor.send_replace(floor);
        ready(Ok(()))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready(Ok(()))
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> StoreFuture<'a, ExpiryResult> {
        ready(Ok(ExpiryResult::default()))
    }

    fn delete_cursors_before(&self, _: u64) -> StoreFuture<'_, Vec<Arc<str>>> {
        ready(Ok(Vec::new()))
    }
}

fn deletion(user: &str, dsp_id: u32, until_unix_micros: u64) -> Deletion {
    Deletion {
        user_id: user.as_bytes().into(),
        dsp_id,
        until_unix_micros,
    }
}

#[tokio::test(start_paused = true)]
async fn store_removes_deletions_with_the_table_while_a_job_hangs() {
    let (floor, mut floors) = watch::channel(0);
    let store = HangingStore {
        floor,
        failures: Mutex::new(2),
    };
    // The table has one entry.
    let deletions = Deletions::new(0);
    // Too new to be removed because of its age.
    let now = unix_micros();
    deletions.begin_jobs(&[deletion("", 1, now)]);
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(run(deletions.clone(), Arc::new(store), stop));
    for at in 1..4 {
        deletions.add(&deletion("u", 1, now + at));
        deletions.add(&deletion("v", 1, now + at));
        let reaches = floors.wait_for(|floor| *floor == deletions.floor());
        // Removal by age has a longer interval.
        let reached = timeout(Duration::from_secs(600), reaches).await;
        assert!(*reached.unwrap().unwrap() > now);
    }
}
