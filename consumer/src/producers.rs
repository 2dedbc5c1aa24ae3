//! What this process knows of its producers: one table. Subscriptions, the sink and maintenance tell it what happened; metrics,
//! readiness and the status page read [snapshots](Snapshot) of it.
//!
//! A producer is known while it has a cursor, here or in the store, and while an address reads from it, or did last. All that
//! moves it are the transitions of the table (`producers/table.rs`), which are pure. What they lack is added here: the lock, the
//! clock, and news for those who wait.
//!
//! Two addresses may lead to one producer, which lets only the newest stream of a name live. Which one that is, the producer
//! alone knows; the subscription whose stream it ended sees here that a sibling has another, and stands by instead of taking it
//! back. For a moment both may push: repeats change nothing.
//!
//! # Cost
//!
//! One lock for each chunk, which is held over no await, and which besides only commits, scrapes and pages take.

mod producer;
mod skew;
mod table;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, time::Instant};

use self::table::{Key, Table};
pub use self::{
    producer::{AdvanceResult, ObservedRange, ProducerStatus},
    skew::Arrival,
    table::{Address, PRODUCER_SERIES_MAX, Snapshot, StreamStart},
};
use crate::batch::Cursor;

/// All producers of one process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Producers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// Told when a stream begins or ends.
    streams_changed: Notify,
}

/// An address that is subscribed to, until this is dropped.
#[derive(Debug)]
pub struct AddressGuard {
    producers: Producers,
    key: Key,
}

/// An open stream of one epoch of a producer, until this is dropped.
#[derive(Debug)]
pub struct Stream {
    producers: Producers,
    key: Key,
    producer: Arc<str>,
    epoch: u64,
    has_advanced: bool,
}

impl Producers {
    /// Begins where the store stands.
    pub fn loaded(&self, cursors: Vec<Cursor>) {
        self.table().loaded(cursors);
    }

    /// Whether it is known where the store stands.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.table().is_loaded()
    }

    /// How far all producers were received, the most recently moved first, at most as many as a request may carry.
    #[must_use]
    pub fn cursors(&self) -> Vec<Cursor> {
        self.table().cursors()
    }

    /// How far a producer was received.
    #[must_use]
    pub fn cursor(&self, producer: &str) -> Option<Cursor> {
        self.table().cursor(producer)
    }

    /// How many streams of a producer are open.
    #[must_use]
    pub fn streams(&self, producer: &str) -> usize {
        self.table().streams(producer)
    }

    /// Returns when no stream of this producer is open.
    pub async fn wait_released(&self, producer: &str) {
        self.wait_streams(producer, |streams| streams == 0).await;
    }

    /// Notes an address to be subscribed to, which `origin` stands for.
    #[must_use]
    pub fn listed(&self, address: SocketAddr, origin: &str) -> AddressGuard {
        AddressGuard {
            producers: self.clone(),
            key: self.table().listed(address, origin),
        }
    }

    /// How many addresses have a stream, and how many are subscribed to.
    #[must_use]
    pub fn connected_and_total(&self) -> (usize, usize) {
        self.table().connected_and_total()
    }

    /// Notes what one commit made durable.
    pub fn committed(&self, cursors: &[Cursor]) {
        self.table().committed(cursors);
    }

    /// Forgets a producer whose cursor the store no longer keeps; only that cursor while a stream of it is open. Returns how
    /// far it was received.
    pub fn forget(&self, producer: &str) -> Option<Cursor> {
        self.table().forget(producer)
    }

    /// All of it, as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.table().snapshot(Instant::now())
    }

    async fn wait_streams(&self, producer: &str, enough: fn(usize) -> bool) {
        loop {
            let changed = self.0.streams_changed.notified();
            if enough(self.streams(producer)) {
                return;
            }
            changed.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        let table = self.0.table.lock();
        table.unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressGuard {
    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.key.address
    }

    /// Notes why there is no stream.
    pub fn down(&self, why: &str) {
        self.producers.table().down(self.key, why);
    }

    /// Notes a stream that a producer opened here. If it is of another epoch than before, also returns what this process saw of
    /// that one; so that its end is reported once, only to one of the streams that come upon the new epoch.
    #[must_use]
    pub fn opened(&self, start: StreamStart<'_>) -> (Stream, Option<ObservedRange>) {
        let Cursor {
            producer, epoch, ..
        } = start.at;
        let seen = self.producers.table().opened(self.key, start);
        self.producers.0.streams_changed.notify_waiters();
        let stream = Stream {
            producers: self.producers.clone(),
            key: self.key,
            producer: Arc::clone(producer),
            epoch: *epoch,
            has_advanced: false,
        };
        (stream, seen)
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        self.producers.table().unlisted(self.key);
    }
}

impl Stream {
    /// Notes what was pushed, and when it came if it was cookies. To be called after the push: a stream that begins meanwhile
    /// then repeats what is on its way, and misses nothing.
    pub fn advance(&mut self, cursor: &Cursor, arrival: Option<Arrival>) -> AdvanceResult {
        let had_advanced = std::mem::replace(&mut self.has_advanced, true);
        let now = Instant::now();
        let mut table = self.producers.table();
        table.advanced(cursor, arrival, had_advanced, now)
    }

    /// Notes cookies that will not come; returns how many there are of the epoch by now.
    pub fn lost(&self, cookies: u64) -> u64 {
        let mut table = self.producers.table();
        table.lost(&self.producer, self.epoch, cookies)
    }

    /// Returns when there is another stream of the same producer.
    pub async fn wait_sibling(&self) {
        let producers = &self.producers;
        producers
            .wait_streams(&self.producer, |streams| streams > 1)
            .await;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.producers.table().closed(self.key, &self.producer);
        self.producers.0.streams_changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_streams_open_and_close() {
        let producers = Producers::default();
        let at = |port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            producers.listed(address, "http://here")
        };
        let (one, other) = (at(1), at(2));
        let cursor = Cursor {
            producer: "p".into(),
            epoch: 1,
            sequence: 0,
            complete: false,
        };
        let start = || StreamStart {
            at: &cursor,
            newest: 0,
            before: None,
        };
        let (first, _) = one.opened(start());
        let open = async { other.opened(start()).0 };
        let ((), second) = tokio::join!(first.wait_sibling(), open);
        let close = async { drop((first, second)) };
        tokio::join!(producers.wait_released("p"), close);
        assert_eq!(producers.streams("p"), 0);
    }
}
