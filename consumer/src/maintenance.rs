//! The night: tells the store when it may expire and compact.
//!
//! One task wakes at every change of a window, and at least every ten minutes, so that a store can also see to
//! what appeared meanwhile. What runs is told to stop when its window closes.

use std::{sync::Arc, time::Duration};

use cookiesync::process::unix_micros;
use jiff::{Timestamp, Zoned, tz::TimeZone};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::Metrics,
    store::{Store, StoreError, expired_before},
    subscription::positions::Positions,
    window::Window,
};

/// The longest time between two looks at the windows.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// The shortest time between two compactions: one a night, also when the window is always open.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(20 * 3600);

/// When the store may do what.
#[derive(Debug, Clone)]
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
    fn now(&self) -> Zoned {
        Timestamp::now().to_zoned(self.time_zone.clone())
    }

    /// How long to sleep at `now`: until the next change of any window, [`LOOK_INTERVAL`] at most.
    fn pause(&self, now: &Zoned) -> Duration {
        [self.expiry, self.compaction]
            .into_iter()
            .filter_map(|window| time_until(window.next_change(now).as_ref(), now))
            .fold(LOOK_INTERVAL, Duration::min)
            .max(Duration::from_millis(10))
    }
}

fn time_until(change: Option<&Zoned>, now: &Zoned) -> Option<Duration> {
    Duration::try_from(now.duration_until(change?)).ok()
}

/// Runs the night's work until `stop`.
pub async fn run(
    store: Arc<dyn Store>,
    schedule: Schedule,
    positions: Arc<Positions>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut night = Night {
        store,
        schedule,
        positions,
        metrics,
        stop,
        expiry_was_open: None,
        compacted_at: None,
        failing: false,
    };
    while !night.stop.is_cancelled() {
        night.expire().await;
        night.forget_cursors().await;
        night.compact().await;
        let pause = night.schedule.pause(&night.schedule.now());
        tokio::select! {
            () = night.stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}

struct Night {
    store: Arc<dyn Store>,
    schedule: Schedule,
    positions: Arc<Positions>,
    metrics: Metrics,
    stop: CancellationToken,
    expiry_was_open: Option<bool>,
    compacted_at: Option<Instant>,
    failing: bool,
}

impl Night {
    async fn expire(&mut self) {
        let now = self.schedule.now();
        let window = self.schedule.expiry;
        let open = window.is_open(&now);
        if self.expiry_was_open.replace(open) != Some(open) {
            tracing::info!(open, %window, "expiry window");
        }
        self.metrics.maintenance.expiry_open.set(i64::from(open));
        let until = self.window_stop(window, open, &now);
        let expired = tokio::select! {
            () = self.stop.cancelled() => return,
            expired = self.store.expire(open, unix_micros(), &until.token) => expired,
        };
        match expired {
            Ok(expired) => {
                self.recovered();
                self.metrics.maintenance.expired.inc_by(expired.deleted);
                if expired.deleted > 0 {
                    tracing::info!(deleted = expired.deleted, "expired cookies deleted");
                }
            }
            Err(error) => self.failed("expiry", &error),
        }
    }

    /// Forgets producers that are gone, in the expiry window: in the store, in memory and in the metrics.
    async fn forget_cursors(&mut self) {
        if self.expiry_was_open != Some(true) {
            return;
        }
        let before = expired_before(unix_micros(), self.schedule.cursors_kept);
        let forgotten = tokio::select! {
            () = self.stop.cancelled() => return,
            forgotten = self.store.forget_cursors(before) => forgotten,
        };
        match forgotten {
            Ok(forgotten) => {
                self.recovered();
                for producer in forgotten {
                    self.positions.forget(&producer);
                    self.metrics.sink.forget(&producer);
                    self.metrics.maintenance.forgotten_cursors.inc();
                    tracing::info!(
                        producer = &*producer,
                        "cursor of a producer that is gone deleted"
                    );
                }
            }
            Err(error) => self.failed("deletion of cursors", &error),
        }
    }

    async fn compact(&mut self) {
        let now = self.schedule.now();
        let window = self.schedule.compaction;
        let open = window.is_open(&now);
        self.metrics
            .maintenance
            .compaction_open
            .set(i64::from(open));
        let rests = self
            .compacted_at
            .is_some_and(|at| at.elapsed() < COMPACTION_INTERVAL);
        if !open || rests {
            return;
        }
        tracing::info!(%window, "compaction begins");
        let began = Instant::now();
        let until = self.window_stop(window, open, &now);
        let compacted = tokio::select! {
            () = self.stop.cancelled() => return,
            compacted = self.store.compact(&until.token) => compacted,
        };
        match compacted {
            Ok(compacted) => {
                self.recovered();
                let took = began.elapsed();
                let maintenance = &self.metrics.maintenance;
                maintenance.compaction_seconds.set(took.as_secs_f64());
                let (collections, complete) = (compacted.collections, compacted.complete);
                if complete {
                    self.compacted_at = Some(began);
                    maintenance.compactions.inc();
                }
                tracing::info!(collections, complete, ?took, "compacted");
            }
            Err(error) => self.failed("compaction", &error),
        }
    }

    /// A token that is cancelled when the window closes, and with `stop`.
    fn window_stop(&self, window: Window, open: bool, now: &Zoned) -> WindowStop {
        let token = self.stop.child_token();
        let closes_in = time_until(window.next_change(now).as_ref(), now).filter(|_| open);
        let timer = closes_in.map(|closes_in| {
            let token = token.clone();
            let mut closing = tokio::task::JoinSet::new();
            closing.spawn(async move {
                sleep(closes_in).await;
                token.cancel();
            });
            closing
        });
        WindowStop {
            token,
            _timer: timer,
        }
    }

    fn failed(&mut self, what: &str, error: &StoreError) {
        self.metrics.maintenance.errors.inc();
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(what, %error, "maintenance failed, trying again later");
        }
    }

    fn recovered(&mut self) {
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!("maintenance works again");
        }
    }
}

/// Tells the work of one window to stop; its timer ends with it.
struct WindowStop {
    token: CancellationToken,
    _timer: Option<tokio::task::JoinSet<()>>,
}

impl Drop for WindowStop {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::FutureExt;
    use prometheus::Registry;

    use super::*;
    use crate::{
        batch::{Batch, Cursor},
        store::{Answer, BuyerUids, Compacted, Expired, Written},
    };

    /// Needs three calls for a compaction, and has one cursor to forget.
    #[derive(Debug, Default)]
    struct FakeStore {
        compactions: AtomicU64,
        forgets: AtomicU64,
    }

    fn done<T: Send + 'static>(value: T) -> Answer<'static, T> {
        std::future::ready(Ok(value)).boxed()
    }

    impl Store for FakeStore {
        fn load_cursors(&self) -> Answer<'_, Vec<Cursor>> {
            done(Vec::new())
        }

        fn write(&self, _: Arc<Batch>) -> Answer<'_, Written> {
            done(Written::default())
        }

        fn lookup<'a>(&'a self, _: &'a str) -> Answer<'a, BuyerUids> {
            done(BuyerUids::new())
        }

        fn ping(&self) -> Answer<'_, ()> {
            done(())
        }

        fn expire<'a>(&'a self, _: bool, _: u64, _: &'a CancellationToken) -> Answer<'a, Expired> {
            done(Expired { deleted: 2 })
        }

        fn forget_cursors(&self, _: u64) -> Answer<'_, Vec<Arc<str>>> {
            let is_first = self.forgets.fetch_add(1, Ordering::Relaxed) == 0;
            done(is_first.then(|| "gone".into()).into_iter().collect())
        }

        fn compact<'a>(&'a self, _: &'a CancellationToken) -> Answer<'a, Compacted> {
            let calls = self.compactions.fetch_add(1, Ordering::Relaxed) + 1;
            done(Compacted {
                collections: 1,
                complete: calls.is_multiple_of(3),
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn compaction_goes_on_until_it_is_complete_and_then_rests() {
        let store = Arc::new(FakeStore::default());
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let gone = metrics.sink.cursor_sequence.with_label_values(&["gone"]);
        gone.set(1);
        let cursor = Cursor {
            producer: "gone".into(),
            epoch: 1,
            sequence: 1,
            complete: false,
        };
        let positions = Arc::new(Positions::new(vec![cursor]));
        let schedule = Schedule {
            expiry: Window::Always,
            compaction: Window::Always,
            time_zone: TimeZone::UTC,
            cursors_kept: Duration::from_secs(3600),
        };
        let stop = CancellationToken::new();
        let night = run(
            Arc::clone(&store) as Arc<dyn Store>,
            schedule,
            Arc::clone(&positions),
            metrics.clone(),
            stop.clone(),
        );
        let hours = async {
            sleep(Duration::from_secs(5 * 3600)).await;
            stop.cancel();
        };
        tokio::join!(night, hours);
        assert_eq!(store.compactions.load(Ordering::Relaxed), 3);
        assert_eq!(metrics.maintenance.compactions.get(), 1);
        assert!(metrics.maintenance.expired.get() >= 2 * 29);
        assert_eq!(metrics.maintenance.forgotten_cursors.get(), 1);
        assert!(positions.cursors().is_empty());
        let renewed = metrics.sink.cursor_sequence.with_label_values(&["gone"]);
        assert_eq!(renewed.get(), 0, "the series was dropped");
    }

    #[track_caller]
    fn check(now: &str, pause: Duration) {
        let schedule = Schedule {
            expiry: "01:00-03:00".parse().unwrap(),
            compaction: "03:00-06:00".parse().unwrap(),
            time_zone: TimeZone::UTC,
            cursors_kept: Duration::from_secs(3600),
        };
        assert_eq!(schedule.pause(&now.parse().unwrap()), pause);
    }

    #[test]
    fn wakes_at_the_next_change_of_any_window_and_every_ten_minutes() {
        check("2026-03-10T00:59:00[UTC]", Duration::from_secs(60));
        check("2026-03-10T02:59:59.5[UTC]", Duration::from_millis(500));
        check("2026-03-10T03:00:00[UTC]", LOOK_INTERVAL);
        check("2026-03-10T12:00:00[UTC]", LOOK_INTERVAL);
    }
}
