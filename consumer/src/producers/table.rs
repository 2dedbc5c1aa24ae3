//! The table of producers and their addresses, with all its transitions. Does no I/O; the time is an argument.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use tokio::time::Instant;

use proto::{
    limits::CURSORS_MAX,
    units::{Sequence, UnixMicros},
};

use super::producer::{AdvanceResult, DurablePosition, ObservedRange, Producer, ProducerStatus};
use crate::{batch::Cursor, clock_offset::CLOCK_AHEAD_MICROS_MAX};

/// Maximum number of producers in a snapshot. Producers with an address are always included.
pub const PRODUCER_SERIES_MAX: usize = 256;

/// All producers and addresses.
#[derive(Debug, Default)]
pub(super) struct Table {
    producers: BTreeMap<Arc<str>, Producer>,
    addresses: BTreeMap<SocketAddr, Address>,
    /// Whether the cursors of the store are loaded.
    pub(super) is_loaded: bool,
    /// Number of advances, to order them.
    changes: u64,
}

/// A registered address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Address {
    /// The setting that resolves to it.
    pub origin: Arc<str>,
    /// The id of the last producer that responded here.
    pub producer: Option<Arc<str>>,
    /// Whether a stream is open.
    pub is_connected: bool,
    /// Why no stream is open, if an attempt failed.
    pub error: Option<Arc<str>>,
    /// Why confirmations on the open stream fail.
    pub unconfirmed: Option<Arc<str>>,
}

/// A snapshot of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All registered addresses.
    pub addresses: BTreeMap<SocketAddr, Address>,
    /// All producers with an address, and others with a durable cursor, by id, up to [`PRODUCER_SERIES_MAX`].
    pub producers: BTreeMap<Arc<str>, ProducerStatus>,
}

/// Start of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamStart<'a> {
    /// The producer, epoch and sequence number after which the stream starts.
    pub at: &'a Cursor,
    /// The newest sequence number of the producer.
    pub newest: Sequence,
    /// The received position of the previous epoch, if the stream is of a new one.
    pub previous: Option<&'a Cursor>,
}

impl Table {
    /// Loads the cursors of the store.
    pub(super) fn load(&mut self, cursors: Vec<Cursor>) {
        self.is_loaded = true;
        for cursor in cursors {
            self.producer(&cursor.producer.clone()).load(cursor);
        }
    }

    /// Records that these cursors are durable.
    pub(super) fn record_commit(&mut self, cursors: &[Cursor]) {
        for cursor in cursors {
            self.producer(&cursor.producer).record_commit(cursor);
        }
    }

    /// Registers an address.
    pub(super) fn register(&mut self, address: SocketAddr, origin: &str) {
        let new = Address {
            origin: origin.into(),
            ..Address::default()
        };
        self.addresses.insert(address, new);
    }

    /// Removes an address.
    pub(super) fn unregister(&mut self, address: SocketAddr) {
        self.addresses.remove(&address);
        self.remove_unused();
    }

    /// Records why an address has no stream.
    pub(super) fn set_error(&mut self, address: SocketAddr, error: &str) {
        if let Some(address) = self.addresses.get_mut(&address) {
            address.error = Some(error.into());
        }
    }

    /// Records why confirmations to an address fail, or that they succeed. Returns whether they failed before.
    pub(super) fn set_unconfirmed(&mut self, address: SocketAddr, why: Option<&str>) -> bool {
        let address = self.addresses.get_mut(&address);
        let Some(address) = address.filter(|address| address.is_connected) else {
            return why.is_some();
        };
        let unconfirmed = why.map(Arc::from);
        std::mem::replace(&mut address.unconfirmed, unconfirmed).is_some()
    }

    /// Opens a stream. Returns the observed range of the previous epoch if the caller must report it.
    pub(super) fn open_stream(
        &mut self,
        address: SocketAddr,
        start: StreamStart<'_>,
    ) -> Option<ObservedRange> {
        let id = &start.at.producer;
        if let Some(address) = self.addresses.get_mut(&address) {
            address.producer = Some(Arc::clone(id));
            address.is_connected = true;
            address.error = None;
            address.unconfirmed = None;
        }
        let producer = self.producer(id);
        let observed = producer.open_stream(start.at, start.newest, start.previous);
        self.remove_unused();
        observed
    }

    /// Closes a stream.
    pub(super) fn close_stream(&mut self, address: SocketAddr, id: &str, now: Instant) {
        if let Some(address) = self.addresses.get_mut(&address) {
            address.is_connected = false;
            address.unconfirmed = None;
        }
        if let Some(producer) = self.producers.get_mut(id) {
            producer.close_stream(now);
        }
        self.remove_unused();
    }

    /// Advances a stream to `cursor`. `accepted` is the time of a chunk; `had_advanced` is true if the stream has advanced
    /// before.
    pub(super) fn advance(
        &mut self,
        cursor: &Cursor,
        accepted: Option<UnixMicros>,
        had_advanced: bool,
    ) -> AdvanceResult {
        self.changes += 1;
        let change = self.changes;
        let producer = self.producer(&cursor.producer);
        producer.advance(cursor, accepted, change, had_advanced)
    }

    /// Time up to which all accepted cookies are durable; `None` if unknown.
    pub(super) fn complete_until(&self) -> Option<UnixMicros> {
        let addresses = self.addresses.values();
        let times = addresses.map(|address| {
            let producer = self.producers.get(address.producer.as_ref()?);
            producer?.complete_until()
        });
        let read = self.producers.values().filter(|it| it.streams > 0);
        // `None` is less than any time, so one unknown time makes the result unknown.
        times
            .chain(read.map(Producer::complete_until))
            .min()
            .flatten()
    }

    /// Whether the clocks of all producers are measured.
    pub(super) fn are_measured(&self) -> bool {
        self.producers.values().all(|it| it.offset.is_some())
    }

    /// The latest time that the clock of this host or any producer may have shown when this producer's clock showed
    /// `time`. A producer without a measured difference has sent nothing since `started`, by this host's clock.
    pub(super) fn latest_anywhere(
        &self,
        id: &str,
        time: UnixMicros,
        started: UnixMicros,
    ) -> UnixMicros {
        let Some(own) = self.get(id).and_then(|it| it.offset) else {
            return time;
        };
        let here = time.offset_by(own.max);
        let others = self.producers.iter().filter(|(other, _)| ***other != *id);
        let latest = others.map(|(_, other)| match other.offset {
            Some(other) => here.offset_by(other.min.saturating_neg()),
            None => here.min(started).after(CLOCK_AHEAD_MICROS_MAX),
        });
        latest.fold(time.max(here), UnixMicros::max)
    }

    /// Removes the durable position of a producer. Returns its received position if that was also removed.
    pub(super) fn forget(&mut self, id: &str) -> Option<Cursor> {
        let removed = self.producers.get_mut(id)?.forget();
        self.remove_unused();
        removed
    }

    /// All cursors, most recently advanced first, up to the maximum of a request.
    pub(super) fn cursors(&self) -> Vec<Cursor> {
        self.cursors_of(|_| true)
    }

    /// The cursors of producers without a stream and without `Goodbye`, whose last stream closed at a time for which `is_old` is true.
    pub(super) fn absent(&self, is_old: impl Fn(Instant) -> bool) -> Vec<Cursor> {
        let mut absent = self.cursors_of(|it| it.streams == 0 && it.closed.is_none_or(&is_old));
        absent.retain(|cursor| !cursor.complete);
        absent
    }

    /// Advances the received position `before` of a producer without a stream.
    pub(super) fn advance_absent(&mut self, before: &Cursor, after: &Cursor) -> bool {
        let is_at = |it: &Producer| it.streams == 0 && it.received.as_ref() == Some(before);
        let is_absent = self.get(&before.producer).is_some_and(is_at);
        if is_absent {
            self.advance(after, None, false);
        }
        is_absent
    }

    fn cursors_of(&self, is_included: impl Fn(&Producer) -> bool) -> Vec<Cursor> {
        let known = self.producers.values().filter(|it| is_included(it));
        let mut known: Vec<_> = known
            .filter_map(|producer| Some((producer.advanced_at, producer.received.as_ref()?)))
            .collect();
        known.sort_by_key(|(advanced_at, _)| std::cmp::Reverse(*advanced_at));
        known.truncate(CURSORS_MAX);
        let cursors = known.into_iter().map(|(_, cursor)| cursor.clone());
        cursors.collect()
    }

    /// The durable positions, most recently advanced first, up to the maximum of a report.
    pub(super) fn durable_positions(&self) -> Vec<DurablePosition> {
        let mut known: Vec<_> = self.producers.iter().collect();
        known.sort_by_key(|(_, producer)| std::cmp::Reverse(producer.advanced_at));
        let durable = known
            .into_iter()
            .filter_map(|(id, it)| it.durable_position(id));
        durable.take(CURSORS_MAX).collect()
    }

    /// A snapshot. The clock of this host was set ahead by `set_ahead` microseconds since the start.
    pub(super) fn snapshot(&self, set_ahead: i64) -> Snapshot {
        let with_address = self.with_address();
        let is_other = |(id, producer): &(&Arc<str>, &Producer)| {
            producer.durable.is_some() && !with_address.contains(&***id)
        };
        let others = self.producers.iter().filter(is_other);
        let others = others.take(PRODUCER_SERIES_MAX.saturating_sub(with_address.len()));
        let included = with_address
            .iter()
            .filter_map(|id| self.producers.get_key_value(id));
        let producers = included.chain(others).map(|(id, producer)| {
            let status = producer.status(with_address.contains(&**id), set_ahead);
            (Arc::clone(id), status)
        });
        Snapshot {
            addresses: self.addresses.clone(),
            producers: producers.collect(),
        }
    }

    /// The last producer that responded at each address, and those that are read from an archive.
    fn with_address(&self) -> BTreeSet<Arc<str>> {
        let addresses = self.addresses.values();
        let ids = addresses.filter_map(|address| address.producer.clone());
        let read = self.producers.iter().filter(|(_, it)| it.streams > 0);
        ids.chain(read.map(|(id, _)| Arc::clone(id))).collect()
    }

    /// Removes producers without state.
    fn remove_unused(&mut self) {
        let with_address = self.with_address();
        let is_kept = |id: &Arc<str>, producer: &mut Producer| {
            producer.is_known() || with_address.contains(&**id)
        };
        self.producers.retain(is_kept);
    }

    pub(super) fn get(&self, id: &str) -> Option<&Producer> {
        self.producers.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Producer> {
        self.producers.get_mut(id)
    }

    /// The producer, which is added if it is unknown.
    pub(super) fn producer(&mut self, id: &Arc<str>) -> &mut Producer {
        self.producers.entry(Arc::clone(id)).or_default()
    }
}

#[cfg(test)]
mod tests;
