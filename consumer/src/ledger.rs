//! The ledger: what became of every cookie that this process received.
//!
//! Double entry: a cookie is *received* when its chunk is put into the buffer, and from then on it *waits*: in the
//! buffer, in the batch that is collected, or in one that is written. It stops waiting when its fate is known, and then it
//! has exactly one:
//!
//! ```text
//! received = written + superseded + suppressed + stale + failed (malformed, rejected) + left out + waiting
//! ```
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

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use cookiesync::process::metrics::Registry;
use prometheus::{
    IntCounter, IntCounterVec, IntGauge, Opts, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::{batch::Counts, metrics::gauge_value};

/// The ledger of one process; clones share it.
#[derive(Debug, Clone)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Held while entries are made or read.
    entries: Mutex<()>,
    received: IntCounter,
    written: IntCounter,
    superseded: IntCounter,
    suppressed: IntCounter,
    stale: IntCounter,
    failed: IntCounterVec,
    malformed: IntCounter,
    rejected: IntCounter,
    left_out: IntCounter,
    waiting: IntGauge,
    /// Whether a mistake in it was said.
    said_wrong: AtomicBool,
}

/// What became of a batch that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What became of its cookies while it was collected.
    pub counts: Counts,
    /// Cookies that are in the store now.
    pub written: u64,
    /// Cookies that were older than what the store has.
    pub stale: u64,
    /// Cookies that the store refused for ever.
    pub rejected: u64,
}

/// The figures at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Cookies received.
    pub received: u64,
    /// Cookies written and durable.
    pub written: u64,
    /// Cookies replaced by a newer one of their batch.
    pub superseded: u64,
    /// Cookies that repeat what is stored.
    pub suppressed: u64,
    /// Cookies that were older than what is stored.
    pub stale: u64,
    /// Cookies that are not what the contract says.
    pub malformed: u64,
    /// Cookies that the store refused for ever.
    pub rejected: u64,
    /// Cookies that a drain had no time for.
    pub left_out: u64,
    /// Cookies whose fate is not known yet.
    pub waiting: u64,
}

impl Ledger {
    /// An empty ledger, not registered anywhere.
    ///
    /// # Errors
    /// Never with these names.
    pub fn new() -> Result<Self> {
        let counter = |name, help| IntCounter::with_opts(Opts::new(name, help));
        let failed = IntCounterVec::new(
            Opts::new(
                "consumer_failed_total",
                "Cookies that cannot be stored, by reason.",
            ),
            &["reason"],
        )?;
        Ok(Self {
            shared: Arc::new(Shared {
                entries: Mutex::new(()),
                received: counter(
                    "consumer_received_total",
                    "Cookies received: the sum of written, superseded, suppressed, stale, failed, left out and waiting.",
                )?,
                written: counter(
                    "consumer_written_total",
                    "Cookies written to the store and durable.",
                )?,
                superseded: counter(
                    "consumer_superseded_total",
                    "Cookies replaced by a newer one of the same user and DSP before they were written.",
                )?,
                suppressed: counter(
                    "consumer_suppressed_total",
                    "Cookies not written because they repeat the buyer uid stored within the refresh interval.",
                )?,
                stale: counter(
                    "consumer_stale_total",
                    "Cookies not written because the store has a newer one.",
                )?,
                malformed: failed.with_label_values(&["malformed"]),
                rejected: failed.with_label_values(&["rejected"]),
                failed,
                left_out: counter(
                    "consumer_left_out_total",
                    "Cookies received that a drain had no time to store: they come again if the producers still have them.",
                )?,
                waiting: IntGauge::with_opts(Opts::new(
                    "consumer_waiting_cookies",
                    "Cookies received whose fate is not durable yet.",
                ))?,
                said_wrong: AtomicBool::new(false),
            }),
        })
    }

    /// Registers all its metrics.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(&self, registry: &Registry) -> Result<()> {
        registry.register(Box::new(self.clone()))
    }

    /// So many cookies came; to be called before anybody can take them.
    pub fn received(&self, cookies: u64) {
        let _entry = self.shared.entry();
        self.shared.received.inc_by(cookies);
        self.shared.waiting.add(gauge_value(cookies));
    }

    /// So many that were received are not stored, because a drain has no time for them.
    pub fn left_out(&self, cookies: u64) {
        let _entry = self.shared.entry();
        self.shared.left_out.inc_by(cookies);
        self.shared.wait_no_more(cookies);
    }

    /// A batch is durable.
    pub fn settled(&self, batch: &Settled) {
        let Settled {
            counts,
            written,
            stale,
            rejected,
        } = *batch;
        let shared = &*self.shared;
        let _entry = shared.entry();
        shared.written.inc_by(written);
        shared.superseded.inc_by(counts.superseded);
        shared.suppressed.inc_by(counts.suppressed);
        shared.stale.inc_by(counts.stale + stale);
        shared.malformed.inc_by(counts.malformed);
        shared.rejected.inc_by(rejected);
        shared.wait_no_more(counts.received);
    }

    /// All of it.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let shared = &*self.shared;
        let _entry = shared.entry();
        Figures {
            received: shared.received.get(),
            written: shared.written.get(),
            superseded: shared.superseded.get(),
            suppressed: shared.suppressed.get(),
            stale: shared.stale.get(),
            malformed: shared.malformed.get(),
            rejected: shared.rejected.get(),
            left_out: shared.left_out.get(),
            waiting: u64::try_from(shared.waiting.get()).unwrap_or(0),
        }
    }
}

impl Figures {
    /// Cookies whose fate is known.
    #[must_use]
    pub fn settled(&self) -> u64 {
        let failed = self.malformed + self.rejected;
        self.written + self.superseded + self.suppressed + self.stale + failed + self.left_out
    }

    /// Whether every cookie that was received has one fate, or waits.
    #[must_use]
    pub fn add_up(&self) -> bool {
        self.received == self.settled() + self.waiting
    }
}

impl Shared {
    fn entry(&self) -> MutexGuard<'_, ()> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes cookies from those that wait; never below none.
    fn wait_no_more(&self, cookies: u64) {
        let (waiting, cookies) = (self.waiting.get(), gauge_value(cookies));
        self.waiting.sub(cookies.min(waiting));
        if cookies > waiting && !self.said_wrong.swap(true, Ordering::Relaxed) {
            tracing::error!(
                waiting,
                cookies,
                "more cookies were settled than were received: the counts are wrong from here on"
            );
        }
        debug_assert!(cookies <= waiting, "{cookies} of {waiting} settled");
    }

    fn families(&self) -> [&dyn Collector; 8] {
        [
            &self.received,
            &self.written,
            &self.superseded,
            &self.suppressed,
            &self.stale,
            &self.failed,
            &self.left_out,
            &self.waiting,
        ]
    }
}

impl Collector for Ledger {
    fn desc(&self) -> Vec<&Desc> {
        let families = self.shared.families();
        families.iter().flat_map(|family| family.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _entry = self.shared.entry();
        let families = self.shared.families();
        families
            .iter()
            .flat_map(|family| family.collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(received: u64, written: u64) -> Settled {
        let counts = Counts {
            received,
            suppressed: 1,
            stale: 2,
            superseded: 3,
            malformed: 4,
        };
        Settled {
            counts,
            written,
            stale: 5,
            rejected: 6,
        }
    }

    #[test]
    fn every_cookie_waits_until_it_has_one_fate() {
        let ledger = Ledger::new().unwrap();
        ledger.received(121);
        assert_eq!(ledger.figures().waiting, 121);
        ledger.settled(&settled(100, 79));
        ledger.left_out(20);
        let figures = ledger.figures();
        assert_eq!((figures.written, figures.stale), (79, 7));
        assert_eq!((figures.left_out, figures.waiting), (20, 1));
        assert!(figures.add_up(), "{figures:?}");
    }

    #[test]
    fn cookie_that_a_batch_forgets_shows() {
        let ledger = Ledger::new().unwrap();
        ledger.received(100);
        ledger.settled(&settled(100, 78));
        assert!(!ledger.figures().add_up());
    }

    #[test]
    #[should_panic(expected = "settled")]
    fn more_settled_than_received_is_a_bug() {
        let ledger = Ledger::new().unwrap();
        ledger.received(1);
        ledger.left_out(2);
    }

    #[test]
    fn all_families_come_from_one_place() {
        let registry = Registry::new();
        let ledger = Ledger::new().unwrap();
        ledger.register(&registry).unwrap();
        ledger.received(3);
        let families = registry.gather();
        assert_eq!(families.len(), 8);
        assert!(ledger.register(&registry).is_err());
    }
}
