//! The night: tells the store when it may expire and compact.
//!
//! Two loops, one for each window, so that neither keeps the other from its hours: a compaction may take hours, and
//! expiry has to be switched off in time. Each wakes when its window opens or closes, and at least every ten
//! minutes, so that a store can also handle what appeared meanwhile; sooner, when something was left to be done.
//! What runs is told to stop when its window closes.

mod old_cursors;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{Zoned, tz::TimeZone};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock, unix_micros},
    maintenance_window::Window,
    metrics::{self, Metrics},
    producers::Producers,
    store::{Compaction, Expiry, Store, StoreError, SweepProgress},
    ttl::before,
};

/// The longest time between two looks at what the store has.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// The same when something was left to be done.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest time between two compactions, or sweeps, of the same while the window is always open: a little less than a day, so
/// that each day has one.
const TURN_INTERVAL: Duration = Duration::from_secs(20 * 3600);

/// How long the night's work has to be ended when the process stops; then it is left to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// When the store may do what.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// When expired cookies are deleted.
    pub expiry: Window,
    /// When the store is compacted.
    pub compaction: Window,
    /// Where these hours are.
    pub time_zone: TimeZone,
    /// How long the cursor of a producer is kept that sends nothing.
    pub cursors_kept: Duration,
}

impl Schedule {
    /// What was done since then, in microseconds since the Unix epoch, has had its turn at `now`: since the window
    /// opened, or for 20 hours.
    fn had_turn_since(window: Window, now: &Zoned) -> u64 {
        match window.opened(now) {
            Some(opened) => unix_micros(opened.timestamp()),
            None => before(unix_micros(now.timestamp()), TURN_INTERVAL),
        }
    }
}

/// Runs the night's work until `stop`. When its hours change, what runs is told to stop, and the night begins anew.
pub async fn run(
    store: Arc<dyn Store>,
    mut schedule: watch::Receiver<Schedule>,
    clock: Clock,
    producers: Producers,
    metrics: Metrics,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let night = MaintenanceTask {
            store: Arc::clone(&store),
            schedule: schedule.borrow_and_update().clone(),
            clock: clock.clone(),
            producers: producers.clone(),
            metrics: metrics.maintenance.clone(),
            subscription: metrics.subscription.clone(),
            stop: stop.child_token(),
        };
        let works = async { tokio::join!(night.expiries(), night.compactions()) };
        let mut works = std::pin::pin!(works);
        tokio::select! {
            _ = works.as_mut() => return,
            () = stop.cancelled() => {}
            // Without anybody to change them, they hold.
            Ok(()) = schedule.changed() => {}
        }
        night.stop.cancel();
        if timeout(STOP_TIMEOUT, works).await.is_err() {
            tracing::debug!("maintenance was left to end by itself");
        }
    }
}

struct MaintenanceTask {
    store: Arc<dyn Store>,
    schedule: Schedule,
    clock: Clock,
    producers: Producers,
    metrics: metrics::Maintenance,
    subscription: metrics::Subscription,
    stop: CancellationToken,
}

impl MaintenanceTask {
    async fn expiries(&self) {
        let window = self.schedule.expiry;
        let (mut was_open, mut failing) = (None, BTreeSet::new());
        let mut other = None;
        while !self.stop.is_cancelled() {
            let now = self.now();
            let open = window.is_open(&now);
            if was_open.replace(open) != Some(open) {
                tracing::info!(open, %window, "expiry window");
            }
            self.metrics.expiry_open.set(i64::from(open));
            let expired = match self.store.maintenance_owner().await {
                Ok(owner) => {
                    self.tell_owner(&mut other, &owner);
                    match owner {
                        Some(_) => Ok(true),
                        None => self.expire(open, &now).await,
                    }
                }
                Err(error) => Err(error),
            };
            let mut done = self.outcome("expiry", &mut failing, expired);
            if open || window == Window::Never {
                let forgotten = self.delete_cursors_before(&now).await;
                done &= self.outcome("deletion of cursors", &mut failing, forgotten);
            }
            self.pause(window, &now, done).await;
        }
    }

    /// Tells who maintains the store when that is another than before, who is `other`.
    fn tell_owner(&self, other: &mut Option<String>, owner: &Option<String>) {
        self.metrics.owner.set(i64::from(owner.is_none()));
        if other == owner {
            return;
        }
        match owner {
            Some(owner) => {
                tracing::info!(owner, "another consumer owns maintenance of this store");
                self.metrics.show_overdue(&BTreeMap::new());
                self.metrics.sweep_remaining.set(0);
            }
            None => tracing::info!("this consumer owns maintenance of this store now"),
        }
        other.clone_from(owner);
    }

    /// Whether all was done.
    async fn expire(&self, open: bool, now: &Zoned) -> Result<bool, StoreError> {
        let micros = unix_micros(now.timestamp());
        let window = self.schedule.expiry;
        let since = Schedule::had_turn_since(window, now);
        let closes = window.next_change(now);
        let left = closes.map(|closes| closes.duration_since(now).unsigned_abs());
        let report = |swept: &SweepProgress| self.metrics.swept(swept);
        let expired = self.within(window, now, async |until| {
            let expiry = Expiry {
                open,
                now: micros,
                since,
                left,
                stop: until,
                report: &report,
            };
            self.store.expire(expiry).await
        });
        let expired = expired.await?;
        self.metrics.expired.inc_by(expired.deleted);
        let overdue = match window {
            // What never is to be deleted is not late.
            Window::Never => BTreeMap::new(),
            Window::Always | Window::Daily { .. } => expired.overdue,
        };
        self.metrics.show_overdue(&overdue);
        if expired.deleted > 0 {
            tracing::info!(deleted = expired.deleted, "expired cookies deleted");
        }
        if let Some(error) = expired.failed {
            return Err(error);
        }
        if open {
            self.metrics.expiry_ended.set(self.clock.now().as_second());
        }
        Ok(expired.complete)
    }

    async fn compactions(&self) {
        let window = self.schedule.compaction;
        let (mut completed, mut failing) = (None, BTreeSet::new());
        while !self.stop.is_cancelled() {
            let now = self.now();
            let open = window.is_open(&now);
            self.metrics.compaction_open.set(i64::from(open));
            let since = Schedule::had_turn_since(window, &now);
            let mut done = true;
            if open && completed.is_none_or(|completed| completed < since) {
                let compacted = match self.store.maintenance_owner().await {
                    // Should the other end, its lease does in time.
                    Ok(Some(_)) => Ok(false),
                    Ok(None) => self.compact(since, &now).await,
                    Err(error) => Err(error),
                };
                done = self.outcome("compaction", &mut failing, compacted);
                if done {
                    completed = Some(unix_micros(now.timestamp()));
                }
            }
            self.pause(window, &now, done).await;
        }
    }

    /// Whether all was done.
    async fn compact(&self, since: u64, now: &Zoned) -> Result<bool, StoreError> {
        let window = self.schedule.compaction;
        tracing::info!(%window, "compaction begins");
        let began = Instant::now();
        let report = |took: Duration, freed_bytes| {
            self.metrics.compaction_seconds.observe(took.as_secs_f64());
            self.metrics.compaction_freed_bytes.inc_by(freed_bytes);
        };
        let compacted = self.within(window, now, async |until| {
            let compaction = Compaction {
                since,
                clock: &self.clock,
                stop: until,
                report: &report,
            };
            self.store.compact(compaction).await
        });
        let complete = compacted.await?;
        self.metrics.compactions.inc_by(u64::from(complete));
        let took = began.elapsed();
        self.metrics
            .compaction_ended
            .set(self.clock.now().as_second());
        tracing::info!(complete, ?took, "compaction ends");
        Ok(complete)
    }

    fn now(&self) -> Zoned {
        self.clock.now().to_zoned(self.schedule.time_zone.clone())
    }

    /// Waits until the next change of `window` after `now`, or the next look, or `stop`.
    async fn pause(&self, window: Window, now: &Zoned, done: bool) {
        let longest = if done { LOOK_INTERVAL } else { RETRY_INTERVAL };
        let look = now.timestamp() + longest;
        let change = window.next_change(now).map(|change| change.timestamp());
        let until = change.map_or(look, |change| change.min(look));
        let mut seen = now.timestamp();
        while seen == now.timestamp() || (seen > now.timestamp() && seen < until) {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.clock.wait(seen, until) => {}
            }
            seen = self.clock.now();
        }
    }

    /// Does `work`, whose token is cancelled when `window` is no longer what it was at `now`, and with `stop`.
    async fn within<T>(
        &self,
        window: Window,
        now: &Zoned,
        work: impl AsyncFnOnce(&CancellationToken) -> T,
    ) -> T {
        let until = self.stop.child_token();
        let changed = async {
            self.changed(window, now).await;
            until.cancel();
            std::future::pending().await
        };
        tokio::select! {
            biased;
            done = work(&until) => done,
            done = changed => done,
        }
    }

    async fn changed(&self, window: Window, now: &Zoned) {
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

    /// Whether everything was done; counts when it was not, and tells what changed.
    fn outcome(
        &self,
        what: &'static str,
        failing: &mut BTreeSet<&'static str>,
        done: Result<bool, StoreError>,
    ) -> bool {
        match &done {
            Ok(_) if failing.remove(what) => tracing::info!(what, "maintenance available again"),
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
