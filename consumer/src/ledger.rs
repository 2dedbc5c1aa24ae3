//! The ledger: counts the outcome of every cookie that this process received.
//!
//! A cookie is *received* when its chunk enters the buffer. It is *waiting* in the buffer, in the batch being collected, or in
//! a batch being written, until it has exactly one outcome:
//!
//! ```text
//! received + recovered = written + superseded + suppressed + stale + deletions + deleted on arrival
//!                        + failed + skipped at drain + waiting + in the retry queue
//! ```
//!
//! [`metric_defs::equations::LEDGER`] is the same equation for checking a scrape. Failed cookies are malformed,
//! rejected, unreadable, expired, or of a DSP that is not accepted.
//!
//! A cookie in the retry queue has no outcome until a retry succeeds, possibly in the next process, which counts it as
//! *recovered*.
//!
//! All cookies of a batch get their outcome when the batch is *durable*. Failed or repeated writes and commits do not
//! change the counts. If the process is stopped immediately, cookies without an outcome stay waiting.
//!
//! The number of waiting cookies is counted independently: it grows by the count in each chunk's header and shrinks by the
//! count of each batch. So a cookie that is dropped or counted twice violates the equation.
//!
//! Every update and every scrape takes one lock, so the equation holds in every scrape. There is one update per chunk and
//! batch.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use metric_defs::{MetricDef, consumer};
use parking_lot::Mutex;
use prometheus::Result;
use runtime::metrics::{Family, Registry, family};
use tokio::time::Instant;

/// Minimum time between two [arrivals](Entries::arrivals): the maximum error of the age of a cookie.
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of arrivals. Only after 50 s without a durable cookie, later ages have a larger error, and are too high.
const ARRIVALS_MAX: usize = 1_000;

/// The ledger of one process; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: Arc<Mutex<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    counts: LedgerCounts,
    /// Times of waiting cookies, the oldest first: the number of received cookies up to the next time, and the time of the first of
    /// them. Cookies leave in the order of their arrival, except those that are diverted to the retry queue.
    arrivals: VecDeque<(u64, Instant)>,
    /// Whether an imbalance was logged.
    imbalance_logged: bool,
}

/// Counts of the ledger, of a batch, or of a write to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Cookies received.
    pub received: u64,
    /// Cookies written and durable.
    pub written: u64,
    /// Duplicates of stored cookies that were not written.
    pub suppressed: u64,
    /// Cookies replaced by a newer one in their batch.
    pub superseded: u64,
    /// Cookies older than the stored one.
    pub stale: u64,
    /// Deletions carried out.
    pub deletions: u64,
    /// Cookies that were not stored because a deletion covers them.
    pub deleted_on_arrival: u64,
    /// Cookies that violate the protocol.
    pub malformed: u64,
    /// Cookies that the store rejected permanently; they become dead letters.
    pub rejected: u64,
    /// Cookies found in the retry queue at startup.
    pub recovered: u64,
    /// Cookies in the retry queue.
    pub in_retry_queue: u64,
    /// Cookies of the retry queue that could not be read back.
    pub unreadable: u64,
    /// Cookies of DSPs that are not accepted.
    pub no_dsp_slot: u64,
    /// Cookies that had expired when they were received.
    pub expired: u64,
    /// Cookies skipped at the drain deadline.
    pub drain_skipped: u64,
    /// Cookies without an outcome yet.
    pub waiting: u64,
}

/// A metric, and for each of its series the label values and the count.
type Row = (MetricDef, &'static [Series]);
type Series = (&'static [&'static str], fn(&LedgerCounts) -> u64);

const ROWS: &[Row] = &[
    (consumer::RECEIVED, &[(&[], |it| it.received)]),
    (consumer::WRITTEN, &[(&[], |it| it.written)]),
    (consumer::SUPERSEDED, &[(&[], |it| it.superseded)]),
    (consumer::SUPPRESSED, &[(&[], |it| it.suppressed)]),
    (consumer::STALE, &[(&[], |it| it.stale)]),
    (consumer::DELETIONS, &[(&[], |it| it.deletions)]),
    (
        consumer::DELETED_ON_ARRIVAL,
        &[(&[], |it| it.deleted_on_arrival)],
    ),
    (
        consumer::FAILED,
        &[
            (&["malformed"], |it| it.malformed),
            (&["rejected"], |it| it.rejected),
            (&["no_dsp_slot"], |it| it.no_dsp_slot),
            (&["unreadable"], |it| it.unreadable),
            (&["expired"], |it| it.expired),
        ],
    ),
    (consumer::RETRY_QUEUE_RECOVERED, &[(&[], |it| it.recovered)]),
    (
        consumer::RETRY_QUEUE_COOKIES,
        &[(&[], |it| it.in_retry_queue)],
    ),
    (consumer::DRAIN_SKIPPED, &[(&[], |it| it.drain_skipped)]),
    (consumer::WAITING, &[(&[], |it| it.waiting)]),
];

impl Ledger {
    /// Registers the metrics of the ledger.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(&self, registry: &Registry) -> Result<()> {
        let ledger = self.clone();
        registry.read(move || ledger.counts().families())
    }

    /// Counts received cookies. Must be called before the reader can pop them.
    pub fn received(&self, cookies: u64) {
        let (mut entries, now) = (self.entries.lock(), Instant::now());
        let entries = &mut *entries;
        entries.counts.received += cookies;
        entries.counts.waiting += cookies;
        let (end, is_full) = (
            entries.counts.received,
            entries.arrivals.len() == ARRIVALS_MAX,
        );
        match entries.arrivals.back_mut() {
            Some((last, at)) if is_full || now - *at < ARRIVAL_INTERVAL => *last = end,
            _ => entries.arrivals.push_back((end, now)),
        }
    }

    /// Age of the oldest waiting cookie, up to 50 ms too high.
    pub fn oldest_waiting(&self) -> Duration {
        let entries = self.entries.lock();
        let oldest = entries.arrivals.front();
        oldest.map_or(Duration::ZERO, |(_, at)| at.elapsed())
    }

    /// Counts waiting cookies as skipped by the drain.
    pub fn drain_skipped(&self, cookies: u64) {
        let mut entries = self.entries.lock();
        entries.counts.drain_skipped += cookies;
        entries.remove_waiting(cookies);
    }

    /// Counts the outcomes of a durable batch: those of its collection, and those of the store. Its cookies in the retry queue
    /// were [counted](Self::enqueued) before.
    pub fn settled(&self, batch_counts: &LedgerCounts, store_outcomes: &LedgerCounts) {
        let mut entries = self.entries.lock();
        entries.counts.add_outcomes(batch_counts);
        entries.counts.add_outcomes(store_outcomes);
        entries.remove_waiting(batch_counts.received - store_outcomes.in_retry_queue);
    }

    /// Moves waiting cookies to the retry queue. Must be called before they can be retried.
    pub fn enqueued(&self, cookies: u64) {
        let mut entries = self.entries.lock();
        entries.counts.in_retry_queue += cookies;
        entries.remove_waiting(cookies);
    }

    /// Counts cookies found in the retry queue at startup.
    pub fn recovered(&self, cookies: u64) {
        let counts = &mut self.entries.lock().counts;
        counts.recovered += cookies;
        counts.in_retry_queue += cookies;
    }

    /// Counts the outcomes of cookies that leave the retry queue.
    pub fn retried(&self, outcomes: &LedgerCounts) {
        let counts = &mut self.entries.lock().counts;
        counts.add_outcomes(outcomes);
        let stored = outcomes.written + outcomes.superseded + outcomes.stale;
        let all = stored + outcomes.rejected + outcomes.unreadable + outcomes.deleted_on_arrival;
        counts.in_retry_queue = counts.in_retry_queue.saturating_sub(all);
    }

    /// A snapshot.
    pub fn counts(&self) -> LedgerCounts {
        self.entries.lock().counts
    }
}

impl LedgerCounts {
    /// Adds the final outcomes of other cookies.
    fn add_outcomes(&mut self, other: &Self) {
        self.written += other.written;
        self.suppressed += other.suppressed;
        self.superseded += other.superseded;
        self.stale += other.stale;
        self.deletions += other.deletions;
        self.deleted_on_arrival += other.deleted_on_arrival;
        self.malformed += other.malformed;
        self.rejected += other.rejected;
        self.unreadable += other.unreadable;
        self.no_dsp_slot += other.no_dsp_slot;
        self.expired += other.expired;
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "Prometheus has only 64-bit floats"
    )]
    fn families(&self) -> Vec<Family> {
        let families = ROWS.iter().map(|(metric, series)| {
            let samples = series
                .iter()
                .map(|(labels, read)| (labels, read(self) as f64));
            family(*metric, samples)
        });
        families.collect()
    }
}

impl Entries {
    /// Subtracts cookies from the waiting ones, but not below zero.
    fn remove_waiting(&mut self, cookies: u64) {
        let waiting = self.counts.waiting;
        self.counts.waiting = waiting.saturating_sub(cookies);
        if cookies > waiting && !self.imbalance_logged {
            self.imbalance_logged = true;
            tracing::error!(
                waiting,
                cookies,
                "more cookies have an outcome than were received; ledger metrics are wrong until a restart"
            );
        }
        debug_assert!(cookies <= waiting, "{cookies} of {waiting} settled");
        let left = self.counts.received - self.counts.waiting;
        while self.arrivals.front().is_some_and(|(end, _)| *end <= left) {
            self.arrivals.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metric_defs::equations::LEDGER;

    use super::*;

    impl LedgerCounts {
        /// Whether the equation holds.
        pub(crate) fn is_balanced(&self) -> bool {
            let inputs: u64 = LEDGER.inputs.iter().map(|metric| self.of(*metric)).sum();
            let accounted: u64 = LEDGER.terms.iter().map(|term| self.of(term.count)).sum();
            inputs == accounted
        }

        /// A metric of the ledger, summed over its labels.
        fn of(&self, metric: MetricDef) -> u64 {
            let row = ROWS.iter().find(|(of, _)| *of == metric);
            let (_, series) = row.expect("the equation has only metrics of the ledger");
            series.iter().map(|(_, read)| read(self)).sum()
        }
    }

    fn settle(ledger: &Ledger, received: u64, written: u64) {
        let batch_counts = LedgerCounts {
            received,
            suppressed: 1,
            stale: 2,
            superseded: 3,
            malformed: 4,
            no_dsp_slot: 1,
            expired: 1,
            deletions: 1,
            deleted_on_arrival: 1,
            ..LedgerCounts::default()
        };
        let store_outcomes = LedgerCounts {
            written,
            stale: 5,
            rejected: 6,
            in_retry_queue: 7,
            ..LedgerCounts::default()
        };
        ledger.settled(&batch_counts, &store_outcomes);
    }

    #[test]
    fn every_cookie_waits_until_it_has_an_outcome() {
        let ledger = Ledger::default();
        ledger.received(121);
        assert_eq!(ledger.counts().waiting, 121);
        ledger.enqueued(7);
        settle(&ledger, 100, 68);
        ledger.drain_skipped(20);
        let counts = ledger.counts();
        assert_eq!((counts.written, counts.stale), (68, 7));
        assert_eq!((counts.drain_skipped, counts.waiting), (20, 1));
        assert!(counts.is_balanced(), "{counts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_cookie_ages_until_all_of_its_time_are_durable() {
        let (ledger, second) = (Ledger::default(), Duration::from_secs(1));
        let written = |cookies| {
            let counts = |received, written| LedgerCounts {
                received,
                written,
                ..LedgerCounts::default()
            };
            ledger.settled(&counts(cookies, 0), &counts(0, cookies));
        };
        for _ in 0..3 {
            ledger.received(10);
            tokio::time::advance(second).await;
        }
        for (cookies, age) in [(0, 3), (9, 3), (1, 2), (15, 1), (5, 0)] {
            written(cookies);
            assert_eq!(ledger.oldest_waiting(), age * second, "after {cookies}");
        }
        // A store that hangs for hours.
        for _ in 0..2 * ARRIVALS_MAX {
            ledger.received(1);
            tokio::time::advance(second).await;
        }
        assert_eq!(ledger.entries.lock().arrivals.len(), ARRIVALS_MAX);
        written(2 * ARRIVALS_MAX as u64);
        assert_eq!(ledger.oldest_waiting(), Duration::ZERO);
    }

    #[test]
    fn cookie_in_the_retry_queue_gets_its_outcome_later() {
        let ledger = Ledger::default();
        ledger.recovered(3);
        ledger.received(100);
        ledger.enqueued(7);
        settle(&ledger, 100, 68);
        assert_eq!(ledger.counts().in_retry_queue, 10);
        let outcomes = LedgerCounts {
            written: 4,
            superseded: 1,
            stale: 1,
            rejected: 1,
            unreadable: 1,
            ..LedgerCounts::default()
        };
        ledger.retried(&outcomes);
        let counts = ledger.counts();
        assert_eq!((counts.written, counts.in_retry_queue), (72, 2));
        assert!(counts.is_balanced(), "{counts:?}");
    }

    #[test]
    fn cookie_dropped_by_a_batch_violates_the_equation() {
        let ledger = Ledger::default();
        ledger.received(100);
        ledger.enqueued(7);
        settle(&ledger, 100, 67);
        assert!(!ledger.counts().is_balanced());
    }

    #[test]
    #[should_panic(expected = "settled")]
    fn settling_more_cookies_than_received_panics() {
        let ledger = Ledger::default();
        ledger.received(1);
        ledger.drain_skipped(2);
    }

    #[test]
    fn registered_families_are_the_terms_of_the_equation() {
        let registry = Registry::new();
        let ledger = Ledger::default();
        ledger.register(&registry).unwrap();
        ledger.received(3);
        let names: BTreeSet<_> = ROWS.iter().map(|(metric, _)| metric.name).collect();
        let families = registry.gather();
        let registered: BTreeSet<_> = families.iter().map(|family| family.name()).collect();
        assert_eq!(registered, names);
        let inputs = LEDGER.inputs.iter().map(|metric| metric.name);
        let terms = LEDGER.terms.iter().map(|term| term.count.name);
        assert_eq!(inputs.chain(terms).collect::<BTreeSet<_>>(), names);
        assert!(ledger.register(&registry).is_err());
    }
}
