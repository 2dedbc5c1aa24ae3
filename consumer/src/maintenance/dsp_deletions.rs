//! Background jobs that remove all cookies of deleted DSPs, one DSP after another, and old deletion records.

use std::{sync::Arc, time::Duration};

use proto::units::UnixMicros;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::Backoff,
    clock,
    deletions::{Deletions, DspDeletion},
    store::Upkeep,
};

/// How often old deletions are removed.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs until `stop`. An unfinished job continues after the next start.
pub async fn run(deletions: Deletions, upkeep: Arc<dyn Upkeep>, stop: CancellationToken) {
    tokio::join!(
        run_jobs(&deletions, &*upkeep, &stop),
        remove_old(&deletions, &*upkeep, &stop),
    );
}

/// Delays after failures.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60))
}

async fn run_jobs(deletions: &Deletions, upkeep: &dyn Upkeep, stop: &CancellationToken) {
    let mut changes = deletions.changes();
    let mut backoff = backoff();
    while !stop.is_cancelled() {
        changes.mark_unchanged();
        let mut has_failed = false;
        // A DSP whose database fails does not block the others.
        for job in deletions.due_jobs() {
            has_failed |= !remove_dsp(deletions, upkeep, &job, stop).await;
        }
        if has_failed {
            stop.run_until_cancelled(sleep(backoff.delay())).await;
            continue;
        }
        backoff.reset();
        tokio::select! {
            () = stop.cancelled() => {}
            Ok(()) = changes.changed() => {}
        }
    }
}

/// Removes old deletions from the table, and from the store whenever the table has removed some.
async fn remove_old(deletions: &Deletions, upkeep: &dyn Upkeep, stop: &CancellationToken) {
    let mut changes = deletions.changes();
    let mut hourly = interval(REMOVAL_INTERVAL);
    let mut backoff = backoff();
    let mut stored_floor = UnixMicros::NONE;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = hourly.tick() => deletions.remove_old(clock::now()),
            Ok(()) = changes.changed() => {}
        }
        let floor = deletions.floor();
        if floor == stored_floor {
            continue;
        }
        if let Err(error) = upkeep.remove_deletions_until(floor).await {
            tracing::warn!(%error, "failed to remove old deletion records, retrying");
            stop.run_until_cancelled(sleep(backoff.delay())).await;
            changes.mark_changed();
        } else {
            backoff.reset();
            stored_floor = floor;
        }
    }
}

/// Returns false if it failed.
async fn remove_dsp(
    deletions: &Deletions,
    upkeep: &dyn Upkeep,
    job: &DspDeletion,
    stop: &CancellationToken,
) -> bool {
    let dsp_id = job.dsp_id;
    tracing::info!(dsp_id = dsp_id.0, "deleting all cookies of a DSP");
    match upkeep.remove_dsp(job, stop).await {
        Ok(Some(removed)) => {
            deletions.finish_job(job);
            tracing::info!(dsp_id = dsp_id.0, removed, "deleted all cookies of a DSP");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(dsp_id = dsp_id.0, %error, "failed to delete the cookies of a DSP, retrying");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
