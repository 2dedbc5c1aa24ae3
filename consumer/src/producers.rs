//! The table of producers. Subscriptions, the sink and maintenance update it; metrics, readiness and the status page read
//! [snapshots](Snapshot) of it.
//!
//! A producer stays in the table while it has a cursor (in memory or in the store) or is the last producer of an
//! address. All state changes are in `producers/table.rs`, which does no I/O. This module adds the lock, the clock and
//! notifications.
//!
//! Two addresses may lead to one producer, which keeps only the newest stream of a subscriber name and closes the
//! other. The subscription of the closed stream finds in this table that another address has the stream, and stands by
//! instead of reconnecting. For a moment, both subscriptions may push the same cookies; duplicates change nothing.
//!
//! Each chunk takes this lock three times, but never across an await. Commits, scrapes and pages also take this lock.

mod completeness;
mod producer;
mod table;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use proto::{
    cursor::Position,
    units::{Epoch, Sequence, UnixMicros},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use self::table::Table;
pub use self::{
    producer::{AdvanceResult, DurablePosition, ObservedRange, ProducerStatus},
    table::{Address, PRODUCER_SERIES_MAX, Snapshot, StreamStart},
};
use crate::{
    batch::Cursor,
    clock::{self, extrapolate},
    clock_offset::ClockOffset,
};

/// Time after the start in which producers should have connected. Those that no longer exist delay the others until then.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(3);

/// All producers of one process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Producers(Arc<SharedTable>);

#[derive(Debug)]
struct SharedTable {
    table: Mutex<Table>,
    /// Start of this process.
    started: (UnixMicros, Instant),
    /// Notified when a stream opens or closes, or a clock is measured.
    streams_changed: Notify,
}

impl Default for SharedTable {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            started: (clock::now(), Instant::now()),
            streams_changed: Notify::new(),
        }
    }
}

/// Registration of an address, until it is dropped.
#[derive(Debug)]
pub struct AddressGuard {
    producers: Producers,
    address: SocketAddr,
}

/// An open stream of one epoch of a producer, until it is dropped.
#[derive(Debug)]
pub struct StreamGuard {
    producers: Producers,
    address: SocketAddr,
    producer: Arc<str>,
    epoch: Epoch,
    has_advanced: bool,
}

impl Producers {
    /// Loads the cursors of the store.
    pub fn load(&self, cursors: Vec<Cursor>) {
        self.table().load(cursors);
    }

    /// Whether the cursors of the store are loaded.
    pub fn is_loaded(&self) -> bool {
        self.table().is_loaded
    }

    /// Received positions of all producers, most recently advanced first, up to the maximum of a request.
    pub fn cursors(&self) -> Vec<Cursor> {
        self.table().cursors()
    }

    /// Received position of a producer.
    pub fn cursor(&self, producer: &str) -> Option<Cursor> {
        self.table().get(producer)?.received.clone()
    }

    /// Position up to which a producer's cookies are durable.
    pub fn durable(&self, producer: &str) -> Option<Position> {
        self.table().get(producer)?.durable
    }

    /// Durable positions of all producers, most recently advanced first, up to the maximum of a report. Those of epochs that this process
    /// has not observed are omitted.
    pub fn durable_positions(&self) -> Vec<DurablePosition> {
        self.table().durable_positions()
    }

    /// Number of open streams of a producer.
    pub fn streams(&self, producer: &str) -> usize {
        let table = self.table();
        table.get(producer).map_or(0, |it| it.streams)
    }

    /// Received positions of producers that have had no stream for this time, most recently advanced first. Epochs that were received
    /// completely are omitted.
    pub fn absent(&self, time: Duration) -> Vec<Cursor> {
        let now = Instant::now();
        if now.duration_since(self.0.started.1) < time {
            return Vec::new();
        }
        self.table()
            .absent(|closed| now.duration_since(closed) >= time)
    }

    /// Advances an absent producer whose received position is `before`; returns whether it did.
    pub fn advance_absent(&self, before: &Cursor, after: &Cursor) -> bool {
        self.table().advance_absent(before, after)
    }

    /// Subtracts cookies of gaps that were recovered from the lost ones of this epoch.
    pub fn add_recovered(&self, producer: &str, epoch: Epoch, cookies: u64) {
        if let Some(producer) = self.table().get_mut(producer) {
            producer.add_recovered(epoch, cookies);
        }
    }

    /// Waits until no stream of this producer is open.
    pub async fn wait_released(&self, producer: &str) {
        self.wait_streams(producer, |streams| streams == 0).await;
    }

    /// Registers an address of the setting `origin`.
    pub fn register(&self, address: SocketAddr, origin: &str) -> AddressGuard {
        self.table().register(address, origin);
        AddressGuard {
            producers: self.clone(),
            address,
        }
    }

    /// Records an opened stream. The first stream of a new epoch also returns the observed range of the previous epoch, so
    /// that a loss is reported once. A producer that is read from an archive has no registered address.
    pub fn open_stream(
        &self,
        address: SocketAddr,
        start: StreamStart<'_>,
    ) -> (StreamGuard, Option<ObservedRange>) {
        let Cursor {
            producer, epoch, ..
        } = start.at;
        let observed = self.table().open_stream(address, start);
        self.0.streams_changed.notify_waiters();
        let stream = StreamGuard {
            producers: self.clone(),
            address,
            producer: Arc::clone(producer),
            epoch: *epoch,
            has_advanced: false,
        };
        (stream, observed)
    }

    /// Records why the confirmations to an address fail, or that they succeed. Returns whether they failed before.
    pub fn set_unconfirmed(&self, address: SocketAddr, why: Option<&str>) -> bool {
        self.table().set_unconfirmed(address, why)
    }

    /// Records the cursors of a commit.
    pub fn record_commit(&self, cursors: &[Cursor]) {
        self.table().record_commit(cursors);
    }

    /// Removes a producer whose cursor the store has deleted. While a stream is open, removes only the durable position.
    /// Returns the received position if it was removed.
    pub fn forget(&self, producer: &str) -> Option<Cursor> {
        self.table().forget(producer)
    }

    /// Time up to which all cookies that the producers accepted are durable here: on the producers' clocks. `None` if it is
    /// unknown, for instance because an address has no stream.
    pub fn complete_until(&self) -> Option<UnixMicros> {
        self.table().complete_until()
    }

    /// The time of this host since the start of this process: a clock that is set changes nothing.
    pub fn steady_now(&self) -> UnixMicros {
        extrapolate(self.0.started, Instant::now())
    }

    /// Records that a producer's clock showed `time` between the [time](Self::steady_now) `sent` and now. 0 if the
    /// producer did not report it.
    pub fn measure_clock(&self, producer: &str, sent: UnixMicros, time: UnixMicros) {
        if time == UnixMicros::NONE {
            return;
        }
        let offset = ClockOffset::measured(sent, time, self.steady_now());
        if let Some(producer) = self.table().get_mut(producer) {
            producer.offset = Some(offset);
        }
        self.0.streams_changed.notify_waiters();
    }

    /// Waits until the clocks of all known producers are measured, but not longer than `MEASURE_TIMEOUT` after the start: a
    /// deletion that arrives earlier covers more cookies than it must.
    pub async fn wait_measured(&self) {
        let are_measured = async {
            loop {
                let changed = self.0.streams_changed.notified();
                if self.table().are_measured() {
                    return;
                }
                changed.await;
            }
        };
        let end = self.0.started.1 + MEASURE_TIMEOUT;
        drop(timeout_at(end, are_measured).await);
    }

    /// Records that a chunk of this time arrived now. Must be called before the push, so that later deletions cover its
    /// cookies.
    pub fn limit_clock(&self, producer: &str, accepted: UnixMicros) {
        let ahead = self.steady_now().ahead_of(accepted);
        if let Some(producer) = self.table().get_mut(producer) {
            producer.offset = producer.offset.map(|known| known.after_arrival(ahead));
        }
    }

    /// Like [`limit_clock`](Self::limit_clock), for a producer whose clock is never measured.
    pub fn estimate_clock(&self, producer: &str, accepted: UnixMicros) {
        let ahead = self.steady_now().ahead_of(accepted);
        if let Some(producer) = self.table().get_mut(producer) {
            let max = producer.offset.map_or(ahead, |known| ahead.min(known.max));
            producer.offset = Some(ClockOffset::arrived(max));
        }
    }

    /// The measured difference of a producer's clock, if known.
    pub fn clock_offset(&self, producer: &str) -> Option<ClockOffset> {
        self.table().get(producer)?.offset
    }

    /// The latest time that the clock of this host or any producer may have shown when that of `producer` showed
    /// `time`.
    pub fn latest_anywhere(&self, producer: &str, time: UnixMicros) -> UnixMicros {
        let table = self.table();
        table.latest_anywhere(producer, time, self.0.started.0)
    }

    /// A snapshot.
    pub fn snapshot(&self) -> Snapshot {
        // The skew refers to the present time of this host.
        let set_ahead = clock::now().ahead_of(self.steady_now());
        self.table().snapshot(set_ahead)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock()
    }

    async fn wait_streams(&self, producer: &str, is_reached: fn(usize) -> bool) {
        loop {
            let changed = self.0.streams_changed.notified();
            if is_reached(self.streams(producer)) {
                return;
            }
            changed.await;
        }
    }
}

impl AddressGuard {
    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Records why there is no stream.
    pub fn set_error(&self, error: &str) {
        self.producers.table().set_error(self.address, error);
    }

    /// Records an opened stream, see [`Producers::open_stream`].
    pub fn open_stream(&self, start: StreamStart<'_>) -> (StreamGuard, Option<ObservedRange>) {
        self.producers.open_stream(self.address, start)
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        self.producers.table().unregister(self.address);
    }
}

impl StreamGuard {
    /// Records pushed items, and the time of a chunk. Must be called after the push: a stream that starts in between then receives
    /// items again instead of missing them.
    pub fn advance(&mut self, cursor: &Cursor, accepted: Option<UnixMicros>) -> AdvanceResult {
        let had_advanced = std::mem::replace(&mut self.has_advanced, true);
        let mut table = self.producers.table();
        table.advance(cursor, accepted, had_advanced)
    }

    /// Records that all cookies that the producer accepted up to `until` were received.
    pub fn caught_up(&self, until: UnixMicros) -> AdvanceResult {
        let mut table = self.producers.table();
        let producer = table.producer(&self.producer);
        producer.caught_up(self.epoch, until)
    }

    /// Adds cookies lost in a gap up to `last`; returns the total of this epoch.
    pub fn add_lost(&self, cookies: u64, last: Sequence) -> u64 {
        let mut table = self.producers.table();
        let producer = table.producer(&self.producer);
        producer.add_lost(self.epoch, cookies, last)
    }

    /// Waits until another stream of the same producer is open.
    pub async fn wait_sibling(&self) {
        let producers = &self.producers;
        producers
            .wait_streams(&self.producer, |streams| streams > 1)
            .await;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let mut table = self.producers.table();
        table.close_stream(self.address, &self.producer, Instant::now());
        drop(table);
        self.producers.0.streams_changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletion_covers_cookies_of_a_clock_that_records_show_to_be_ahead() {
        let producers = Producers::default();
        let cursor = |producer: &str| Cursor {
            producer: producer.into(),
            epoch: Epoch(1),
            sequence: Sequence(0),
            complete: false,
        };
        producers.load(vec![cursor("p"), cursor("ahead")]);
        let (now, second) = (producers.steady_now(), 1_000_000);
        let latest = || producers.latest_anywhere("p", now).ahead_of(now);
        producers.estimate_clock("p", now.before(600 * second));
        producers.estimate_clock("p", now);
        producers.estimate_clock("ahead", now.before(600 * second));
        let unknown = latest();
        assert!(unknown >= 300 * second.cast_signed(), "{unknown}");
        producers.estimate_clock("ahead", now.after(3 * second));
        // The usual delay, and that of this test.
        let known = latest();
        assert!(
            (3 * second..5 * second).contains(&known.cast_unsigned()),
            "{known}"
        );
        producers.estimate_clock("ahead", now.before(9 * second));
        assert!(latest() >= 3 * second.cast_signed());
    }

    #[tokio::test]
    async fn waiters_wake_when_streams_open_and_close() {
        let producers = Producers::default();
        let at = |port| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            producers.register(address, "http://here")
        };
        let (one, other) = (at(1), at(2));
        let cursor = Cursor {
            producer: "p".into(),
            epoch: Epoch(1),
            sequence: Sequence(0),
            complete: false,
        };
        let start = || StreamStart {
            at: &cursor,
            newest: Sequence(0),
            previous: None,
        };
        let (first, _) = one.open_stream(start());
        let open = async { other.open_stream(start()).0 };
        let ((), second) = tokio::join!(first.wait_sibling(), open);
        let close = async { drop((first, second)) };
        tokio::join!(producers.wait_released("p"), close);
        assert_eq!(producers.streams("p"), 0);
    }
}
