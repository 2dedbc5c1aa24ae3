//! The night over a store that notes what it is told, by a clock that is set.

use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use jiff::Timestamp;
use runtime::metrics::Registry;
use tokio::time::timeout;

use super::*;
use crate::{
    batch::{Batch, Cursor},
    clock::ManualClock,
    metrics::register_producers,
    store::{Answer, Expired, LookupResult, StoredState, WriteOutcome},
};

/// Calls of a store, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Expire(bool),
    Compact { since: u64 },
    Stopped,
}

/// Needs three calls for a compaction, and has one cursor to forget.
#[derive(Debug, Default)]
struct FakeStore {
    told: Mutex<Vec<Call>>,
    /// Whether a compaction takes until it is stopped.
    compacts_for_ever: bool,
}

fn done<T: Send + 'static>(value: T) -> Answer<'static, T> {
    std::future::ready(Ok(value)).boxed()
}

impl FakeStore {
    fn note(&self, told: Call) {
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(told);
    }

    fn told(&self) -> Vec<Call> {
        self.told.lock().unwrap().clone()
    }

    fn count(&self, is_wanted: impl Fn(Call) -> bool) -> usize {
        self.told()
            .into_iter()
            .filter(|told| is_wanted(*told))
            .count()
    }

    fn compactions(&self) -> usize {
        self.count(|told| matches!(told, Call::Compact { .. }))
    }
}

impl Store for FakeStore {
    fn load(&self) -> Answer<'_, StoredState> {
        done(StoredState::default())
    }

    fn write(&self, _: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        done(WriteOutcome::default())
    }

    fn lookup<'a>(&'a self, _: &'a str) -> Answer<'a, LookupResult> {
        done(LookupResult::default())
    }

    fn ping(&self) -> Answer<'_, ()> {
        done(())
    }

    fn expire<'a>(&'a self, expiry: Expiry<'a>) -> Answer<'a, Expired> {
        self.note(Call::Expire(expiry.open));
        done(Expired {
            deleted: 2,
            complete: true,
            ..Expired::default()
        })
    }

    fn delete_cursors_before(&self, _: u64) -> Answer<'_, Vec<Arc<str>>> {
        let is_first = self.count(|told| told == Call::Expire(true)) == 1;
        done(is_first.then(|| "gone".into()).into_iter().collect())
    }

    fn compact<'a>(&'a self, compaction: Compaction<'a>) -> Answer<'a, bool> {
        let since = compaction.since;
        self.note(Call::Compact { since });
        async move {
            if self.compacts_for_ever {
                compaction.stop.cancelled().await;
                self.note(Call::Stopped);
                return Ok(false);
            }
            (compaction.report)(Duration::from_secs(1), 100);
            Ok(self.compactions().is_multiple_of(3))
        }
        .boxed()
    }
}

/// A store, the clock it is kept by, and what is counted.
struct Setting {
    store: Arc<FakeStore>,
    clock: ManualClock,
    metrics: Metrics,
    registry: Registry,
    producers: Producers,
}

fn at(time: &str) -> Timestamp {
    format!("2026-03-{time}:00Z").parse().unwrap()
}

/// Where a producer stands that is to be forgotten.
fn gone() -> Cursor {
    Cursor {
        producer: "gone".into(),
        epoch: 1,
        sequence: 1,
        complete: false,
    }
}

impl Setting {
    fn new(store: FakeStore, now: &str) -> Self {
        let (registry, producers) = (Registry::new(), Producers::default());
        producers.loaded(vec![gone()]);
        register_producers(&registry, producers.clone()).unwrap();
        let metrics = Metrics::register(&registry).unwrap();
        Self {
            store: Arc::new(store),
            clock: ManualClock::new(at(now)),
            metrics,
            registry,
            producers,
        }
    }

    /// Runs the night of these windows while `day` sets the clock.
    async fn run(&self, windows: [&str; 2], day: impl Future<Output = ()>) {
        let [expiry, compaction] = windows.map(|window| window.parse().unwrap());
        let schedule = Schedule {
            expiry,
            compaction,
            time_zone: TimeZone::UTC,
            cursors_kept: Duration::from_secs(3600),
        };
        let stop = CancellationToken::new();
        let night = run(
            Arc::clone(&self.store) as Arc<dyn Store>,
            watch::channel(schedule).1,
            Clock::Manual(self.clock.clone()),
            self.producers.clone(),
            self.metrics.clone(),
            stop.clone(),
        );
        let day = async {
            day.await;
            stop.cancel();
        };
        let both = async { tokio::join!(night, day) };
        timeout(Duration::from_secs(60), both).await.unwrap();
    }

    /// Waits until the store was told something.
    async fn until(&self, is_true: impl Fn(&FakeStore) -> bool) {
        while !is_true(&self.store) {
            tokio::task::yield_now().await;
        }
    }
}

fn told_last(store: &FakeStore, open: bool) -> bool {
    let told = store.told();
    let mut expiries = told.iter().filter(|told| matches!(told, Call::Expire(_)));
    expiries.next_back() == Some(&Call::Expire(open))
}

#[tokio::test]
async fn clock_walks_through_a_night() {
    let night = Setting::new(FakeStore::default(), "10T00:30");
    let metrics = &night.metrics.maintenance;
    let is_shown = || {
        let families = night.registry.gather();
        families
            .iter()
            .any(|family| family.name() == "consumer_cursor_sequence")
    };
    assert!(is_shown());
    let day = async {
        night.until(|store| told_last(store, false)).await;
        night.clock.set(at("10T01:00"));
        night.until(|store| told_last(store, true)).await;
        night.clock.set(at("10T02:59"));
        night
            .until(|store| store.count(|told| told == Call::Expire(true)) == 2)
            .await;
        assert_eq!(night.store.compactions(), 0);
        night.clock.set(at("10T03:00"));
        night.until(|store| told_last(store, false)).await;
        // Unfinished, it is called again soon, and rests when it is complete.
        for call in 1..=3 {
            night.until(|store| store.compactions() == call).await;
            night.clock.advance(RETRY_INTERVAL);
        }
        for minutes in (10..180).step_by(10) {
            let looks = night.store.told().len();
            night
                .clock
                .set(at("10T03:00") + Duration::from_secs(minutes * 60));
            night.until(|store| store.told().len() > looks).await;
        }
        night.clock.set(at("11T03:00"));
        night.until(|store| store.compactions() == 4).await;
    };
    night.run(["01:00-03:00", "03:00-06:00"], day).await;
    let opened = |day: &str| unix_micros(at(day));
    let compactions = night
        .store
        .told()
        .into_iter()
        .filter_map(|told| match told {
            Call::Compact { since } => Some(since),
            _ => None,
        });
    let [first, next] = ["10T03:00", "11T03:00"].map(opened);
    assert_eq!(compactions.collect::<Vec<_>>(), [first, first, first, next]);
    assert_eq!(metrics.compactions.get(), 1);
    assert_eq!(metrics.compaction_seconds.get_sample_count(), 4);
    assert_eq!(metrics.compaction_freed_bytes.get(), 400);
    assert_eq!(metrics.errors.get(), 0);
    assert!(metrics.expired.get() >= 10);
    assert!(night.producers.cursors().is_empty());
    assert!(!is_shown(), "the series was dropped");
    for last_run in ["expiry", "compaction"] {
        let name = format!("consumer_{last_run}_last_run_unix_seconds");
        let families = night.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let ended = family.unwrap().get_metric()[0].get_gauge().get_value();
        assert!(ended > 0.0, "{name}");
    }
    assert_eq!(night.metrics.subscription.uncertain_restarts.get(), 1);
}

#[tokio::test]
async fn compaction_is_stopped_when_its_window_closes_and_keeps_expiry_from_nothing() {
    let endless = FakeStore {
        compacts_for_ever: true,
        ..FakeStore::default()
    };
    let night = Setting::new(endless, "10T23:50");
    let day = async {
        night.until(|store| store.compactions() == 1).await;
        night.until(|store| told_last(store, false)).await;
        night.clock.set(at("11T00:00"));
        night.until(|store| told_last(store, true)).await;
        assert_eq!(night.store.count(|told| told == Call::Stopped), 0);
        night.clock.set(at("11T01:00"));
        night
            .until(|store| store.count(|told| told == Call::Stopped) == 1)
            .await;
        night.clock.set(at("11T12:00"));
        night.until(|store| told_last(store, false)).await;
        assert_eq!(night.store.compactions(), 1, "none is begun by day");
        night.clock.set(at("11T23:30"));
        night.until(|store| store.compactions() == 2).await;
    };
    night.run(["00:00-02:00", "23:30-01:00"], day).await;
    assert_eq!(
        night.store.count(|told| told == Call::Stopped),
        2,
        "also when the process stops"
    );
}

#[tokio::test]
async fn window_that_is_always_open_compacts_once_a_day() {
    let night = Setting::new(FakeStore::default(), "10T12:00");
    let day = async {
        for call in 1..=3 {
            night.until(|store| store.compactions() == call).await;
            night.clock.advance(RETRY_INTERVAL);
        }
        for _ in 0..19 * 6 {
            let looks = night.store.told().len();
            night.clock.advance(LOOK_INTERVAL);
            night.until(|store| store.told().len() > looks).await;
        }
        assert_eq!(night.store.compactions(), 3);
        night.clock.advance(2 * TURN_INTERVAL);
        night.until(|store| store.compactions() == 4).await;
    };
    night.run(["never", "always"], day).await;
    assert_eq!(night.store.count(|told| told == Call::Expire(true)), 0);
}
