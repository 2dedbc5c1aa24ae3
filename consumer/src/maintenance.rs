//! Runs expiry and compaction of the store in their windows.
//!
//! Each window has its own loop, because a compaction may take hours and expiry must end on time. A loop runs when its
//! window opens or closes, every ten minutes to handle new collections, and every minute while work remains. Running work is
//! stopped when its window closes.

pub mod dsp_deletions;
mod old_cursors;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{Zoned, tz::TimeZone};
use proto::units::UnixMicros;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock, unix_micros},
    deletions::Deletions,
    maintenance_window::Window,
    metrics::{self, Metrics},
    producers::Producers,
    store::{Compaction, Expiry, StoreError, SweepProgress, Upkeep},
    ttl::before,
};

/// Maximum time between two runs.
const POLL_INTERVAL: Duration = Duration::from_secs(600);

/// Time until the next run when work remains.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum time between two compactions or sweeps of a collection while the window is always open. A little less than a
/// day, so that each day has one.
const REPEAT_INTERVAL: Duration = Duration::from_secs(20 * 3600);

/// How long to wait for running work to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Maintenance windows, and the TTL of cursors.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// When expired cookies are deleted.
    pub expiry: Window,
    /// When the store is compacted.
    pub compaction: Window,
    /// The time zone of both windows.
    pub time_zone: TimeZone,
    /// How long to keep the cursor of a producer that sends nothing.
    pub cursor_ttl: Duration,
}

impl Schedule {
    /// Work completed after this time is not repeated at `now`: when the window opened, or 20 hours ago.
    fn done_since(window: Window, now: &Zoned) -> UnixMicros {
        match window.opened(now) {
            Some(opened) => unix_micros(opened.timestamp()),
            None => before(unix_micros(now.timestamp()), REPEAT_INTERVAL),
        }
    }
}

/// Runs maintenance until `stop` is cancelled. A change of the schedule stops and restarts it.
pub async fn run(
    upkeep: Arc<dyn Upkeep>,
    mut schedule: watch::Receiver<Schedule>,
    clock: Clock,
    producers: Producers,
    deletions: Deletions,
    metrics: Metrics,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let task = MaintenanceTask {
            upkeep: Arc::clone(&upkeep),
            schedule: schedule.borrow_and_update().clone(),
            clock: clock.clone(),
            producers: producers.clone(),
            deletions: deletions.clone(),
            metrics: metrics.maintenance.clone(),
            subscription: metrics.subscription.clone(),
            stop: stop.child_token(),
        };
        let loops = async { tokio::join!(task.run_expiry(), task.run_compaction()) };
        let mut loops = std::pin::pin!(loops);
        tokio::select! {
            _ = loops.as_mut() => return,
            () = stop.cancelled() => {}
            // An error means that the sender was dropped, so the schedule changes no more.
            Ok(()) = schedule.changed() => {}
        }
        task.stop.cancel();
        if timeout(STOP_TIMEOUT, loops).await.is_err() {
            tracing::debug!("maintenance did not stop in time; no longer waiting for it");
        }
    }
}

struct MaintenanceTask {
    upkeep: Arc<dyn Upkeep>,
    schedule: Schedule,
    clock: Clock,
    producers: Producers,
    deletions: Deletions,
    metrics: metrics::Maintenance,
    subscription: metrics::Subscription,
    stop: CancellationToken,
}

impl MaintenanceTask {
    async fn run_expiry(&self) {
        let window = self.schedule.expiry;
        let (mut was_open, mut failing) = (None, BTreeSet::new());
        let mut other_owner = None;
        while !self.stop.is_cancelled() {
            let now = self.now();
            let open = window.is_open(&now);
            if was_open.replace(open) != Some(open) {
                tracing::info!(open, %window, "expiry window changed");
            }
            self.metrics.expiry_open.set(i64::from(open));
            let expired = match self.upkeep.maintenance_owner().await {
                Ok(owner) => {
                    self.note_owner(&mut other_owner, &owner);
                    match owner {
                        Some(_) => Ok(true),
                        None => self.expire(open, &now).await,
                    }
                }
                Err(error) => Err(error),
            };
            let mut done = self.note_result("expiry", &mut failing, expired);
            if open || window == Window::Never {
                let deleted = self.delete_old_cursors(&now).await;
                done &= self.note_result("deletion of cursors", &mut failing, deleted);
            }
            self.pause(window, &now, done).await;
        }
    }

    /// Logs a change of the maintenance owner. `known` is the previous one, `None` if it is this consumer.
    fn note_owner(&self, known: &mut Option<String>, owner: &Option<String>) {
        self.metrics.owner.set(i64::from(owner.is_none()));
        if known == owner {
            return;
        }
        match owner {
            Some(owner) => {
                tracing::info!(owner, "expiry and compaction run on another consumer");
                self.metrics.set_overdue(&BTreeMap::new());
                self.metrics.sweep_remaining.set(0);
            }
            None => tracing::info!("expiry and compaction now run on this consumer"),
        }
        known.clone_from(owner);
    }

    /// Runs one expiry; returns whether it is complete.
    async fn expire(&self, open: bool, now: &Zoned) -> Result<bool, StoreError> {
        let micros = unix_micros(now.timestamp());
        let window = self.schedule.expiry;
        let since = Schedule::done_since(window, now);
        let closes = window.next_change(now);
        let time_left = closes.map(|closes| closes.duration_since(now).unsigned_abs());
        let report = |progress: &SweepProgress| self.metrics.add_sweep(progress);
        let expired = self.run_in_window(window, now, async |stop| {
            let expiry = Expiry {
                open,
                now: micros,
                since,
                time_left,
                stop,
                deletions: &self.deletions,
                report: &report,
            };
            self.upkeep.expire(expiry).await
        });
        let expired = expired.await?;
        let overdue = match window {
            // Cookies that are never deleted are not overdue.
            Window::Never => BTreeMap::new(),
            Window::Always | Window::Daily { .. } => expired.overdue,
        };
        self.metrics.set_overdue(&overdue);
        if let Some(error) = expired.failed {
            return Err(error);
        }
        if open {
            self.metrics.expiry_ended.set(self.clock.now().as_second());
        }
        Ok(expired.complete)
    }

    async fn run_compaction(&self) {
        let window = self.schedule.compaction;
        let (mut completed, mut failing) = (None, BTreeSet::new());
        while !self.stop.is_cancelled() {
            let now = self.now();
            let open = window.is_open(&now);
            self.metrics.compaction_open.set(i64::from(open));
            let since = Schedule::done_since(window, &now);
            let mut done = true;
            if open && completed.is_none_or(|completed| completed < since) {
                let compacted = match self.upkeep.maintenance_owner().await {
                    // Incomplete, so that this consumer takes over soon after the owner's lease expires.
                    Ok(Some(_)) => Ok(false),
                    Ok(None) => self.compact(since, &now).await,
                    Err(error) => Err(error),
                };
                done = self.note_result("compaction", &mut failing, compacted);
                if done {
                    completed = Some(unix_micros(now.timestamp()));
                }
            }
            self.pause(window, &now, done).await;
        }
    }

    /// Runs one compaction; returns whether it is complete.
    async fn compact(&self, since: UnixMicros, now: &Zoned) -> Result<bool, StoreError> {
        let window = self.schedule.compaction;
        tracing::info!(%window, "compaction started");
        let began = Instant::now();
        let report = |took: Duration, freed_bytes| {
            self.metrics.compaction_seconds.observe(took.as_secs_f64());
            self.metrics.compaction_freed_bytes.inc_by(freed_bytes);
        };
        let compacted = self.run_in_window(window, now, async |stop| {
            let compaction = Compaction {
                since,
                clock: &self.clock,
                stop,
                report: &report,
            };
            self.upkeep.compact(compaction).await
        });
        let complete = compacted.await?;
        self.metrics.compactions.inc_by(u64::from(complete));
        let took = began.elapsed();
        self.metrics
            .compaction_ended
            .set(self.clock.now().as_second());
        tracing::info!(complete, ?took, "compaction ended");
        Ok(complete)
    }

    fn now(&self) -> Zoned {
        self.clock.now().to_zoned(self.schedule.time_zone.clone())
    }

    /// Waits for the next change of `window` after `now`, for the next run, or for the stop signal.
    async fn pause(&self, window: Window, now: &Zoned, done: bool) {
        let interval = if done { POLL_INTERVAL } else { RETRY_INTERVAL };
        let next_run = now.timestamp() + interval;
        let change = window.next_change(now).map(|change| change.timestamp());
        let until = change.map_or(next_run, |change| change.min(next_run));
        let mut seen = now.timestamp();
        while seen == now.timestamp() || (seen > now.timestamp() && seen < until) {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.clock.wait(seen, until) => {}
            }
            seen = self.clock.now();
        }
    }

    /// Runs `work` with a token that is cancelled when `window` opens or closes after `now`, or on stop.
    async fn run_in_window<T>(
        &self,
        window: Window,
        now: &Zoned,
        work: impl AsyncFnOnce(&CancellationToken) -> T,
    ) -> T {
        let stop = self.stop.child_token();
        let changed = async {
            self.window_changed(window, now).await;
            stop.cancel();
            std::future::pending().await
        };
        tokio::select! {
            biased;
            done = work(&stop) => done,
            done = changed => done,
        }
    }

    /// Returns when `window` opens or closes after `now`.
    async fn window_changed(&self, window: Window, now: &Zoned) {
        let was_open = window.is_open(now);
        let mut now = now.clone();
        while window.is_open(&now) == was_open {
            match window.next_change(&now) {
                Some(change) => self.clock.wait(now.timestamp(), change.timestamp()).await,
                None => std::future::pending().await,
            }
            now = self.now();
        }
    }

    /// Counts errors and logs the first one and the recovery; returns whether the work is complete.
    fn note_result(
        &self,
        what: &'static str,
        failing: &mut BTreeSet<&'static str>,
        done: Result<bool, StoreError>,
    ) -> bool {
        match &done {
            Ok(_) if failing.remove(what) => tracing::info!(what, "maintenance works again"),
            Ok(_) => {}
            Err(error) => {
                self.metrics.errors.inc();
                if failing.insert(what) {
                    tracing::warn!(what, %error, "maintenance failed, retrying");
                }
            }
        }
        done.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests;
