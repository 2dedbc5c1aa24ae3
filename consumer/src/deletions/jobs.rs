//! Long-running work of deletions: removes all cookies of a DSP, one DSP after the other, and removes old deletions.

use std::{sync::Arc, time::Duration};

use runtime::unix_micros;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Deletion, Deletions};
use crate::{backoff::Backoff, store::Store};

/// How often old deletions are removed.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs until `stop`. An unfinished job continues after the next start.
pub async fn run(deletions: Deletions, store: Arc<dyn Store>, stop: CancellationToken) {
    let mut remove_at = Instant::now();
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    while !stop.is_cancelled() {
        if remove_at <= Instant::now() {
            remove_at = Instant::now() + REMOVAL_INTERVAL;
            remove_old(&deletions, &*store).await;
        }
        match deletions.next_job() {
            Some(job) => remove_dsp(&deletions, &*store, &job, &mut backoff, &stop).await,
            None => tokio::select! {
                () = stop.cancelled() => {}
                () = deletions.jobs_changed() => {}
                () = sleep_until(remove_at) => {}
            },
        }
    }
}

async fn remove_old(deletions: &Deletions, store: &dyn Store) {
    deletions.remove_old(unix_micros());
    let floor = deletions.floor();
    if floor > 0
        && let Err(error) = store.remove_deletions_until(floor).await
    {
        tracing::warn!(%error, "failed to remove old deletions; retrying in an hour");
    }
}

async fn remove_dsp(
    deletions: &Deletions,
    store: &dyn Store,
    job: &Deletion,
    backoff: &mut Backoff,
    stop: &CancellationToken,
) {
    let dsp_id = job.dsp_id;
    tracing::info!(dsp_id, "deleting all cookies of a DSP");
    match store.remove_dsp(job, stop).await {
        Ok(Some(removed)) => {
            deletions.finish_job(job);
            backoff.reset();
            tracing::info!(dsp_id, removed, "deleted all cookies of a DSP");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(dsp_id, %error, "failed to delete the cookies of a DSP, retrying");
            stop.run_until_cancelled(sleep(backoff.delay())).await;
        }
    }
}
