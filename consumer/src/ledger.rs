//! The ledger: what became of every cookie that this process received.
//!
//! Double entry: a cookie is *received* when its chunk is put into the buffer, and from then on it *waits*: in the
//! buffer, in the batch that is collected, or in one that is written. It stops waiting when its fate is known, and then it
//! has exactly one:
//!
//! ```text
//! received + found = written + superseded + suppressed + stale + failed (malformed, rejected, unreadable, no slot, expired) + left out
//!                    + waiting + set aside
//! ```
//!
//! That is [`metric_defs::equations::LEDGER`], by which a scrape can be checked as well.
//!
//! A cookie that is *set aside* in the retry queue, because the store does not take those of its DSP now, has no fate yet either. It
//! gets one when it is tried again with success, maybe by the next process, which has *found* it.
//!
//! The fates of a batch are all known at once, when it is *durable*: what was superseded or suppressed in a batch that
//! never was has not been replaced by anything. A failed write or commit, and every repetition, changes nothing here. What
//! a process that stops at once had in hand keeps waiting to its end.
//!
//! How many wait is kept by itself, not as a difference: it grows by what a chunk says it holds and shrinks by what its batch
//! says it took, so a cookie that is forgotten or counted twice on the way shows.
//!
//! Every entry is made under one lock, once a chunk and once a batch, and a scrape reads all under the same lock: any
//! scrape adds up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metric_defs::{MetricDef, consumer, equations::LEDGER};
use prometheus::{Result, proto::MetricFamily};
use runtime::metrics::{Registry, family};

use crate::batch::BatchCounts;

/// The ledger of one process; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: Arc<Mutex<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    counts: LedgerCounts,
    /// Whether an error in them was said.
    imbalance_logged: bool,
}

/// The figures at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Cookies received.
    pub received: u64,
    /// Cookies written and durable.
    pub written: u64,
    /// Cookies that repeat what is stored.
    pub suppressed: u64,
    /// Cookies replaced by a newer one of their batch.
    pub superseded: u64,
    /// Cookies that were older than what is stored.
    pub stale: u64,
    /// Cookies that are not what the contract says.
    pub malformed: u64,
    /// Cookies that the store refused forever, which become dead letters.
    pub rejected: u64,
    /// Cookies that a process before this one had set aside.
    pub recovered: u64,
    /// Cookies of DSPs whose slot in the store does not work, in the retry queue.
    pub in_retry_queue: u64,
    /// Cookies that were set aside and could not be read any more.
    pub unreadable: u64,
    /// Cookies of DSPs that have no slot in the store.
    pub no_dsp_slot: u64,
    /// Cookies whose time to live was over when they came.
    pub expired: u64,
    /// Cookies that a drain had no time for.
    pub drain_skipped: u64,
    /// Cookies whose fate is not known yet.
    pub waiting: u64,
}

/// A metric, and how each of its series, by the values of its labels, is read.
type Row = (MetricDef, &'static [Series]);
type Series = (&'static [&'static str], fn(&LedgerCounts) -> u64);

const ROWS: &[Row] = &[
    (consumer::RECEIVED, &[(&[], |it| it.received)]),
    (consumer::WRITTEN, &[(&[], |it| it.written)]),
    (consumer::SUPERSEDED, &[(&[], |it| it.superseded)]),
    (consumer::SUPPRESSED, &[(&[], |it| it.suppressed)]),
    (consumer::STALE, &[(&[], |it| it.stale)]),
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
    /// Registers all its metrics.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(&self, registry: &Registry) -> Result<()> {
        let ledger = self.clone();
        let counts = ROWS.iter().map(|(metric, _)| *metric);
        registry.read(counts, move || ledger.counts().families())
    }

    /// So many cookies came; to be called before anybody can take them.
    pub fn received(&self, cookies: u64) {
        let counts = &mut self.entries().counts;
        counts.received += cookies;
        counts.waiting += cookies;
    }

    /// So many that were received are not stored, because a drain has no time for them.
    pub fn drain_skipped(&self, cookies: u64) {
        let mut entries = self.entries();
        entries.counts.drain_skipped += cookies;
        entries.wait_no_more(cookies);
    }

    /// A batch is durable: what became of its cookies while it was collected, and of those that the store was given. Some of
    /// these were [set aside](Self::set_aside) before.
    pub fn settled(&self, batch_counts: &BatchCounts, store_outcomes: &LedgerCounts) {
        let mut entries = self.entries();
        let counts = &mut entries.counts;
        counts.written += store_outcomes.written;
        counts.superseded += batch_counts.superseded;
        counts.suppressed += batch_counts.suppressed;
        counts.stale += batch_counts.stale + store_outcomes.stale;
        counts.malformed += batch_counts.malformed;
        counts.no_dsp_slot += batch_counts.no_dsp_slot;
        counts.expired += batch_counts.expired;
        counts.rejected += store_outcomes.rejected;
        entries.wait_no_more(batch_counts.received - store_outcomes.in_retry_queue);
    }

    /// So many that wait were set aside; to be called before anybody can try them again.
    pub fn in_retry_queue(&self, cookies: u64) {
        let mut entries = self.entries();
        entries.counts.in_retry_queue += cookies;
        entries.wait_no_more(cookies);
    }

    /// So many cookies were set aside before this process began.
    pub fn recovered(&self, cookies: u64) {
        let counts = &mut self.entries().counts;
        counts.recovered += cookies;
        counts.in_retry_queue += cookies;
    }

    /// Cookies that were set aside are so no more, and have these fates.
    pub fn retried(&self, outcomes: &LedgerCounts) {
        let counts = &mut self.entries().counts;
        counts.written += outcomes.written;
        counts.superseded += outcomes.superseded;
        counts.stale += outcomes.stale;
        counts.rejected += outcomes.rejected;
        counts.unreadable += outcomes.unreadable;
        let stored = outcomes.written + outcomes.superseded + outcomes.stale;
        let all = stored + outcomes.rejected + outcomes.unreadable;
        counts.in_retry_queue = counts.in_retry_queue.saturating_sub(all);
    }

    /// All of it.
    #[must_use]
    pub fn counts(&self) -> LedgerCounts {
        self.entries().counts
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerCounts {
    /// Cookies that were received or found, less all that have one fate, or wait, or are set aside: always 0, or there is a
    /// error in this program.
    #[must_use]
    pub fn imbalance(&self) -> i64 {
        let inputs: u64 = LEDGER.inputs.iter().map(|metric| self.of(*metric)).sum();
        let explained: u64 = LEDGER.terms().map(|term| self.of(term.count)).sum();
        inputs.cast_signed().wrapping_sub(explained.cast_signed())
    }

    /// Whether every cookie that was received or found has one fate, or waits, or is set aside.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.imbalance() == 0
    }

    /// One of the ledger's metrics, all labels together.
    fn of(&self, metric: MetricDef) -> u64 {
        let row = ROWS.iter().find(|(of, _)| *of == metric);
        let (_, series) = row.expect("a sum of the ledger has no other terms");
        series.iter().map(|(_, read)| read(self)).sum()
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "Prometheus has only 64-bit floats"
    )]
    fn families(&self) -> Vec<MetricFamily> {
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
    /// Takes cookies from those that wait; never below none.
    fn wait_no_more(&mut self, cookies: u64) {
        let waiting = self.counts.waiting;
        self.counts.waiting = waiting.saturating_sub(cookies);
        if cookies > waiting && !self.imbalance_logged {
            self.imbalance_logged = true;
            tracing::error!(
                waiting,
                cookies,
                "more cookies were settled than were received: the counts are wrong from here on"
            );
        }
        debug_assert!(cookies <= waiting, "{cookies} of {waiting} settled");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn settle(ledger: &Ledger, received: u64, written: u64) {
        let batch_counts = BatchCounts {
            received,
            suppressed: 1,
            stale: 2,
            superseded: 3,
            malformed: 4,
            no_dsp_slot: 1,
            expired: 1,
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
    fn every_cookie_waits_until_it_has_one_fate() {
        let ledger = Ledger::default();
        ledger.received(121);
        assert_eq!(ledger.counts().waiting, 121);
        ledger.in_retry_queue(7);
        settle(&ledger, 100, 70);
        ledger.drain_skipped(20);
        let counts = ledger.counts();
        assert_eq!((counts.written, counts.stale), (70, 7));
        assert_eq!((counts.drain_skipped, counts.waiting), (20, 1));
        assert!(counts.is_balanced(), "{counts:?}");
    }

    #[test]
    fn cookie_that_is_set_retry_queue_gets_its_fate_later() {
        let ledger = Ledger::default();
        ledger.recovered(3);
        ledger.received(100);
        ledger.in_retry_queue(7);
        settle(&ledger, 100, 70);
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
        assert_eq!((counts.written, counts.in_retry_queue), (74, 2));
        assert!(counts.is_balanced(), "{counts:?}");
    }

    #[test]
    fn cookie_that_a_batch_forgets_shows() {
        let ledger = Ledger::default();
        ledger.received(100);
        ledger.in_retry_queue(7);
        settle(&ledger, 100, 69);
        assert!(!ledger.counts().is_balanced());
    }

    #[test]
    #[should_panic(expected = "settled")]
    fn more_settled_than_received_is_a_bug() {
        let ledger = Ledger::default();
        ledger.received(1);
        ledger.drain_skipped(2);
    }

    #[test]
    fn all_families_come_from_one_place_and_are_those_of_the_sum() {
        let registry = Registry::new();
        let ledger = Ledger::default();
        ledger.register(&registry).unwrap();
        ledger.received(3);
        let names: BTreeSet<_> = ROWS.iter().map(|(metric, _)| metric.name).collect();
        let families = registry.gather();
        let told: BTreeSet<_> = families.iter().map(|family| family.name()).collect();
        assert_eq!(told, names);
        let inputs = LEDGER.inputs.iter().map(|metric| metric.name);
        let terms = LEDGER.terms().map(|term| term.count.name);
        assert_eq!(inputs.chain(terms).collect::<BTreeSet<_>>(), names);
        assert!(ledger.register(&registry).is_err());
    }
}
