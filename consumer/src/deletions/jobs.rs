//! Work on deletions that takes long: removing all cookies of a DSP, one DSP after the other, and forgetting old deletions.

use std::{sync::Arc, time::Duration};

use runtime::unix_micros;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Deletion, Deletions};
use crate::{backoff::Backoff, store::Store};

/// How often old deletions are forgotten.
const FORGET_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs until `stop`; what is not finished then continues after the next start.
pub async fn run(deletions: Deletions, store: Arc<dyn Store>, stop: CancellationToken) {
    let mut forget_at = Instant::now();
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    while !stop.is_cancelled() {
        if forget_at <= Instant::now() {
            forget_at = Instant::now() + FORGET_INTERVAL;
            forget_old(&deletions, &*store).await;
        }
        match deletions.next_job() {
            Some(job) => remove_dsp(&deletions, &*store, &job, &mut backoff, &stop).await,
            None => tokio::select! {
                () = stop.cancelled() => {}
                () = deletions.jobs_changed() => {}
                () = sleep_until(forget_at) => {}
            },
        }
    }
}

async fn forget_old(deletions: &Deletions, store: &dyn Store) {
    deletions.forget_old(unix_micros());
    let floor = deletions.floor();
    if floor > 0
        && let Err(error) = store.forget_deletions(floor).await
    {
        tracing::warn!(%error, "failed to forget old deletions; retrying in an hour");
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
    tracing::info!(dsp_id, "deletion of a DSP begins");
    match store.remove_dsp(job, stop).await {
        Ok(Some(removed)) => {
            deletions.finish_job(job);
            backoff.reset();
            tracing::info!(dsp_id, removed, "deletion of a DSP is finished");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(dsp_id, %error, "deletion of a DSP failed, retrying");
            stop.run_until_cancelled(sleep(backoff.delay())).await;
        }
    }
}
