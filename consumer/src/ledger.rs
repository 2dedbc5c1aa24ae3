//! The ledger: what became of every cookie that this process received.
//!
//! Double entry: a cookie is *received* when its chunk is put into the buffer, and from then on it *waits*: in the
//! buffer, in the batch that is collected, or in one that is written. It stops waiting when its fate is known, and then it
//! has exactly one:
//!
//! ```text
//! received + found = written + superseded + suppressed + stale + failed (malformed, rejected, unreadable, no place) + left out
//!                    + waiting + set aside
//! ```
//!
//! A cookie that is *set aside* on disk, because the store does not take those of its DSP now, has no fate yet either. It
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

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use prometheus::{
    IntCounter, IntCounterVec, IntGauge, Opts, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use runtime::metrics::Registry;

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
    unreadable: IntCounter,
    refused: IntCounter,
    found: IntCounter,
    set_aside: IntGauge,
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
    /// Cookies that were [set aside](Ledger::set_aside) meanwhile.
    pub set_aside: u64,
}

/// What became of cookies that were set aside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retried {
    /// Cookies that are in the store now.
    pub written: u64,
    /// Cookies that were replaced by a newer one that was set aside.
    pub superseded: u64,
    /// Cookies that were older than what the store has.
    pub stale: u64,
    /// Cookies that the store refused for ever.
    pub rejected: u64,
    /// Cookies that could not be read any more.
    pub unreadable: u64,
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
    /// Cookies that were set aside and could not be read any more.
    pub unreadable: u64,
    /// Cookies of DSPs that have no place in the store.
    pub refused: u64,
    /// Cookies that a process before this one had set aside.
    pub found: u64,
    /// Cookies of DSPs whose place in the store does not work, on disk.
    pub set_aside: u64,
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
                    "Cookies received: with those found, the sum of written, superseded, suppressed, stale, failed, left out, waiting and set aside.",
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
                refused: failed.with_label_values(&["no_place"]),
                unreadable: failed.with_label_values(&["unreadable"]),
                failed,
                found: counter(
                    "consumer_aside_found_total",
                    "Cookies found at the start that were set aside before.",
                )?,
                set_aside: IntGauge::with_opts(Opts::new(
                    "consumer_aside_cookies",
                    "Cookies set aside on disk, because the store does not take those of their DSP now.",
                ))?,
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
            set_aside,
        } = *batch;
        let shared = &*self.shared;
        let _entry = shared.entry();
        shared.written.inc_by(written);
        shared.superseded.inc_by(counts.superseded);
        shared.suppressed.inc_by(counts.suppressed);
        shared.stale.inc_by(counts.stale + stale);
        shared.malformed.inc_by(counts.malformed);
        shared.refused.inc_by(counts.refused);
        shared.rejected.inc_by(rejected);
        shared.wait_no_more(counts.received - set_aside);
    }

    /// So many that wait were set aside; to be called before anybody can try them again.
    pub fn set_aside(&self, cookies: u64) {
        let _entry = self.shared.entry();
        self.shared.set_aside.add(gauge_value(cookies));
        self.shared.wait_no_more(cookies);
    }

    /// So many cookies were set aside before this process began.
    pub fn found(&self, cookies: u64) {
        let _entry = self.shared.entry();
        self.shared.found.inc_by(cookies);
        self.shared.set_aside.add(gauge_value(cookies));
    }

    /// Cookies that were set aside are so no more.
    pub fn retried(&self, cookies: &Retried) {
        let Retried {
            written,
            superseded,
            stale,
            rejected,
            unreadable,
        } = *cookies;
        let shared = &*self.shared;
        let _entry = shared.entry();
        shared.written.inc_by(written);
        shared.superseded.inc_by(superseded);
        shared.stale.inc_by(stale);
        shared.rejected.inc_by(rejected);
        shared.unreadable.inc_by(unreadable);
        let all = written + superseded + stale + rejected + unreadable;
        shared.set_aside.sub(gauge_value(all));
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
            unreadable: shared.unreadable.get(),
            refused: shared.refused.get(),
            found: shared.found.get(),
            set_aside: u64::try_from(shared.set_aside.get()).unwrap_or(0),
            left_out: shared.left_out.get(),
            waiting: u64::try_from(shared.waiting.get()).unwrap_or(0),
        }
    }
}

impl Figures {
    /// Cookies whose fate is known.
    #[must_use]
    pub fn settled(&self) -> u64 {
        let failed = self.malformed + self.rejected + self.unreadable + self.refused;
        self.written + self.superseded + self.suppressed + self.stale + failed + self.left_out
    }

    /// Cookies that this process has, or had, to do with and whose fate is known, or will be.
    #[must_use]
    pub fn explained(&self) -> u64 {
        self.settled() + self.waiting + self.set_aside
    }

    /// Whether every cookie that was received or found has one fate, or waits, or is set aside.
    #[must_use]
    pub fn add_up(&self) -> bool {
        self.received + self.found == self.explained()
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

    fn families(&self) -> [&dyn Collector; 10] {
        [
            &self.received,
            &self.written,
            &self.superseded,
            &self.suppressed,
            &self.stale,
            &self.failed,
            &self.found,
            &self.set_aside,
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
            refused: 1,
        };
        Settled {
            counts,
            written,
            stale: 5,
            rejected: 6,
            set_aside: 7,
        }
    }

    #[test]
    fn every_cookie_waits_until_it_has_one_fate() {
        let ledger = Ledger::new().unwrap();
        ledger.received(121);
        assert_eq!(ledger.figures().waiting, 121);
        ledger.set_aside(7);
        ledger.settled(&settled(100, 71));
        ledger.left_out(20);
        let figures = ledger.figures();
        assert_eq!((figures.written, figures.stale), (71, 7));
        assert_eq!((figures.left_out, figures.waiting), (20, 1));
        assert!(figures.add_up(), "{figures:?}");
    }

    #[test]
    fn cookie_that_is_set_aside_gets_its_fate_later() {
        let ledger = Ledger::new().unwrap();
        ledger.found(3);
        ledger.received(100);
        ledger.set_aside(7);
        ledger.settled(&settled(100, 71));
        assert_eq!(ledger.figures().set_aside, 10);
        ledger.retried(&Retried {
            written: 4,
            superseded: 1,
            stale: 1,
            rejected: 1,
            unreadable: 1,
        });
        let figures = ledger.figures();
        assert_eq!((figures.written, figures.set_aside), (75, 2));
        assert!(figures.add_up(), "{figures:?}");
    }

    #[test]
    fn cookie_that_a_batch_forgets_shows() {
        let ledger = Ledger::new().unwrap();
        ledger.received(100);
        ledger.set_aside(7);
        ledger.settled(&settled(100, 70));
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
        assert_eq!(families.len(), 10);
        assert!(ledger.register(&registry).is_err());
    }
}
