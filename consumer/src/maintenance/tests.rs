//! Tests of maintenance with a store that records its calls and a manual clock.

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use proto::units::{Epoch, Sequence};
use runtime::metrics::Registry;
use tokio::time::timeout;

use super::*;
use crate::{
    batch::Cursor, clock::ManualClock, deletions::DspDeletion, metrics::register_producers,
    store::ExpiryResult, ttl::Ttls,
};

/// Calls of a store, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Expire(bool),
    Compact { since: UnixMicros },
    Stopped,
}

/// A store with one old cursor, whose compaction is complete after three calls.
#[derive(Debug, Default)]
struct FakeStore {
    calls: Mutex<Vec<Call>>,
    /// Whether a compaction runs until it is stopped.
    endless_compaction: bool,
}

impl FakeStore {
    fn record(&self, call: Call) {
        self.calls.lock().push(call);
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    fn count(&self, matches: impl Fn(Call) -> bool) -> usize {
        self.calls()
            .into_iter()
            .filter(|call| matches(*call))
            .count()
    }

    fn compactions(&self) -> usize {
        self.count(|call| matches!(call, Call::Compact { .. }))
    }
}

#[async_trait]
impl Upkeep for FakeStore {
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    async fn expire(&self, expiry: Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        self.record(Call::Expire(expiry.open));
        (expiry.report)(&SweepProgress {
            deleted: 2,
            ..SweepProgress::default()
        });
        Ok(ExpiryResult {
            complete: true,
            ..ExpiryResult::default()
        })
    }

    async fn compact(&self, compaction: Compaction<'_>) -> Result<bool, StoreError> {
        let since = compaction.since;
        self.record(Call::Compact { since });
        if self.endless_compaction {
            compaction.stop.cancelled().await;
            self.record(Call::Stopped);
            return Ok(false);
        }
        (compaction.report)(Duration::from_secs(1), 100);
        Ok(self.compactions().is_multiple_of(3))
    }

    async fn remove_dsp(
        &self,
        _: &DspDeletion,
        _: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        Ok(Some(0))
    }

    async fn remove_deletions_until(&self, _: UnixMicros) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete_cursors_before(&self, _: UnixMicros) -> Result<Vec<Arc<str>>, StoreError> {
        let is_first = self.count(|call| call == Call::Expire(true)) == 1;
        Ok(is_first.then(|| "gone".into()).into_iter().collect())
    }
}

/// A store under maintenance, its clock and its metrics.
struct Setup {
    store: Arc<FakeStore>,
    clock: ManualClock,
    metrics: Metrics,
    registry: Registry,
    producers: Producers,
}

fn at(time: &str) -> Timestamp {
    format!("2026-03-{time}:00Z").parse().unwrap()
}

/// The old cursor of the store.
fn old_cursor() -> Cursor {
    Cursor {
        producer: "gone".into(),
        epoch: Epoch(1),
        sequence: Sequence(1),
        complete: false,
    }
}

impl Setup {
    fn new(store: FakeStore, now: &str) -> Self {
        let (registry, producers) = (Registry::new(), Producers::default());
        producers.load(vec![old_cursor()]);
        let ttls = Ttls::new(Duration::from_secs(3600), [].into());
        register_producers(&registry, producers.clone(), ttls).unwrap();
        let metrics = Metrics::register(&registry).unwrap();
        Self {
            store: Arc::new(store),
            clock: ManualClock::new(at(now)),
            metrics,
            registry,
            producers,
        }
    }

    /// Runs maintenance in the expiry and compaction windows while `script` sets the clock.
    async fn run(&self, windows: [&str; 2], script: impl Future<Output = ()>) {
        let [expiry, compaction] = windows.map(|window| window.parse().unwrap());
        let schedule = Schedule {
            expiry,
            compaction,
            time_zone: TimeZone::UTC,
            cursor_ttl: Duration::from_secs(3600),
        };
        let stop = CancellationToken::new();
        let maintenance = run(
            Arc::clone(&self.store) as _,
            watch::channel(schedule).1,
            Clock::Manual(self.clock.clone()),
            self.producers.clone(),
            Deletions::default(),
            self.metrics.clone(),
            stop.clone(),
        );
        let script = async {
            script.await;
            stop.cancel();
        };
        let both = async { tokio::join!(maintenance, script) };
        timeout(Duration::from_secs(60), both).await.unwrap();
    }

    /// Waits until `is_true` returns true for the store.
    async fn until(&self, is_true: impl Fn(&FakeStore) -> bool) {
        while !is_true(&self.store) {
            tokio::task::yield_now().await;
        }
    }
}

fn last_expiry_was(store: &FakeStore, open: bool) -> bool {
    let calls = store.calls();
    let mut expiries = calls.iter().filter(|call| matches!(call, Call::Expire(_)));
    expiries.next_back() == Some(&Call::Expire(open))
}

#[tokio::test]
async fn expiry_and_compaction_run_within_their_windows() {
    let setup = Setup::new(FakeStore::default(), "10T00:30");
    let metrics = &setup.metrics.maintenance;
    let has_cursor_series = || {
        let families = setup.registry.gather();
        families
            .iter()
            .any(|family| family.name() == "consumer_cursor_sequence")
    };
    assert!(has_cursor_series());
    let script = async {
        setup.until(|store| last_expiry_was(store, false)).await;
        setup.clock.set(at("10T01:00"));
        setup.until(|store| last_expiry_was(store, true)).await;
        setup.clock.set(at("10T02:59"));
        setup
            .until(|store| store.count(|call| call == Call::Expire(true)) == 2)
            .await;
        assert_eq!(setup.store.compactions(), 0);
        setup.clock.set(at("10T03:00"));
        setup.until(|store| last_expiry_was(store, false)).await;
        // The compaction is repeated every minute until it is complete.
        for call in 1..=3 {
            setup.until(|store| store.compactions() == call).await;
            setup.clock.advance(RETRY_INTERVAL);
        }
        for minutes in (10..180).step_by(10) {
            let calls = setup.store.calls().len();
            setup
                .clock
                .set(at("10T03:00") + Duration::from_secs(minutes * 60));
            setup.until(|store| store.calls().len() > calls).await;
        }
        setup.clock.set(at("11T03:00"));
        setup.until(|store| store.compactions() == 4).await;
    };
    setup.run(["01:00-03:00", "03:00-06:00"], script).await;
    let opened = |day: &str| unix_micros(at(day));
    let compactions = setup
        .store
        .calls()
        .into_iter()
        .filter_map(|call| match call {
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
    assert!(setup.producers.cursors().is_empty());
    assert!(!has_cursor_series(), "the cursor was deleted");
    for last_run in ["expiry", "compaction"] {
        let name = format!("consumer_{last_run}_last_run_unix_seconds");
        let families = setup.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let ended = family.unwrap().get_metric()[0].get_gauge().get_value();
        assert!(ended > 0.0, "{name}");
    }
    assert_eq!(setup.metrics.subscription.uncertain_restarts.get(), 1);
}

#[tokio::test]
async fn closing_window_stops_a_compaction_that_does_not_block_expiry() {
    let endless = FakeStore {
        endless_compaction: true,
        ..FakeStore::default()
    };
    let setup = Setup::new(endless, "10T23:50");
    let script = async {
        setup.until(|store| store.compactions() == 1).await;
        setup.until(|store| last_expiry_was(store, false)).await;
        setup.clock.set(at("11T00:00"));
        setup.until(|store| last_expiry_was(store, true)).await;
        assert_eq!(setup.store.count(|call| call == Call::Stopped), 0);
        setup.clock.set(at("11T01:00"));
        setup
            .until(|store| store.count(|call| call == Call::Stopped) == 1)
            .await;
        setup.clock.set(at("11T12:00"));
        setup.until(|store| last_expiry_was(store, false)).await;
        assert_eq!(
            setup.store.compactions(),
            1,
            "no compaction starts outside the window"
        );
        setup.clock.set(at("11T23:30"));
        setup.until(|store| store.compactions() == 2).await;
    };
    setup.run(["00:00-02:00", "23:30-01:00"], script).await;
    assert_eq!(
        setup.store.count(|call| call == Call::Stopped),
        2,
        "the stop signal also stops it"
    );
}

#[tokio::test]
async fn window_that_is_always_open_compacts_once_a_day() {
    let setup = Setup::new(FakeStore::default(), "10T12:00");
    let script = async {
        for call in 1..=3 {
            setup.until(|store| store.compactions() == call).await;
            setup.clock.advance(RETRY_INTERVAL);
        }
        for _ in 0..19 * 6 {
            let calls = setup.store.calls().len();
            setup.clock.advance(POLL_INTERVAL);
            setup.until(|store| store.calls().len() > calls).await;
        }
        assert_eq!(setup.store.compactions(), 3);
        setup.clock.advance(2 * REPEAT_INTERVAL);
        setup.until(|store| store.compactions() == 4).await;
    };
    setup.run(["never", "always"], script).await;
    assert_eq!(setup.store.count(|call| call == Call::Expire(true)), 0);
}
