//! The table of producers and their addresses, with all its transitions. Does no I/O; the time is an argument.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use proto::limits::CURSORS_MAX;

use super::producer::{AdvanceResult, ObservedRange, Producer, ProducerStatus};
use crate::{
    batch::Cursor,
    clock_offset::{CLOCK_AHEAD_MICROS_MAX, ClockOffset},
};

/// Maximum number of producers in a snapshot. Producers with an address are always included.
pub const PRODUCER_SERIES_MAX: usize = 256;

/// All producers and addresses.
#[derive(Debug, Default)]
pub(super) struct Table {
    producers: BTreeMap<Arc<str>, Producer>,
    addresses: BTreeMap<SocketAddr, Address>,
    is_loaded: bool,
    /// Number of registrations and advances, to order them.
    changes: u64,
}

/// A registered address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Change number of its registration.
    registration: u64,
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

/// A registration of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressKey {
    pub(super) address: SocketAddr,
    registration: u64,
}

/// Start of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamStart<'a> {
    /// The producer, epoch and sequence number after which the stream starts.
    pub at: &'a Cursor,
    /// The newest sequence number of the producer.
    pub newest: u64,
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

    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Records that these cursors are durable.
    pub(super) fn record_commit(&mut self, cursors: &[Cursor]) {
        for cursor in cursors {
            self.producer(&cursor.producer).record_commit(cursor);
        }
    }

    /// Registers an address. Replaces an earlier registration.
    pub(super) fn register(&mut self, address: SocketAddr, origin: &str) -> AddressKey {
        let registration = self.next_change();
        let new = Address {
            registration,
            origin: origin.into(),
            producer: None,
            is_connected: false,
            error: None,
            unconfirmed: None,
        };
        self.addresses.insert(address, new);
        AddressKey {
            address,
            registration,
        }
    }

    /// Removes a registration.
    pub(super) fn unregister(&mut self, key: AddressKey) {
        if self.address(key).is_some() {
            self.addresses.remove(&key.address);
        }
        self.remove_unused();
    }

    /// Records why an address has no stream.
    pub(super) fn set_error(&mut self, key: AddressKey, error: &str) {
        if let Some(address) = self.address(key) {
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
        key: AddressKey,
        start: StreamStart<'_>,
    ) -> Option<ObservedRange> {
        let id = &start.at.producer;
        if let Some(address) = self.address(key) {
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
    pub(super) fn close_stream(&mut self, key: AddressKey, id: &str) {
        if let Some(address) = self.address(key) {
            address.is_connected = false;
            address.unconfirmed = None;
        }
        if let Some(producer) = self.producers.get_mut(id) {
            producer.close_stream();
        }
        self.remove_unused();
    }

    /// Advances a stream to `cursor`. `accepted` is the time of a chunk; `had_advanced` is true if the stream has advanced
    /// before.
    pub(super) fn advance(
        &mut self,
        cursor: &Cursor,
        accepted: Option<u64>,
        had_advanced: bool,
    ) -> AdvanceResult {
        let change = self.next_change();
        let producer = self.producer(&cursor.producer);
        let advanced = producer.advance(cursor, change, had_advanced);
        if let Some(accepted) = accepted {
            producer.receive(accepted);
        }
        advanced
    }

    /// Records that all cookies accepted up to this time were received.
    pub(super) fn caught_up(
        &mut self,
        id: &Arc<str>,
        epoch: u64,
        unix_micros: u64,
    ) -> AdvanceResult {
        self.producer(id).caught_up(epoch, unix_micros)
    }

    /// Time up to which all accepted cookies are durable; `None` if unknown.
    pub(super) fn complete_until(&self) -> Option<u64> {
        let addresses = self.addresses.values();
        let times = addresses.map(|address| {
            let producer = self.producers.get(address.producer.as_ref()?);
            producer?.complete_until()
        });
        // `None` is less than any time, so one unknown time makes the result unknown.
        times.min().flatten()
    }

    /// Records a measured difference of a producer's clock.
    pub(super) fn measure(&mut self, id: &str, offset: ClockOffset) {
        if let Some(producer) = self.producers.get_mut(id) {
            producer.measure(offset);
        }
    }

    /// Records that this host's clock is ahead of a producer's by at most `max`.
    pub(super) fn limit_offset(&mut self, id: &str, max: i64) {
        if let Some(producer) = self.producers.get_mut(id) {
            producer.limit_offset(max);
        }
    }

    /// Whether the clocks of all producers are measured.
    pub(super) fn are_measured(&self) -> bool {
        let mut offsets = self.producers.values().map(Producer::offset);
        offsets.all(|offset| offset.is_some())
    }

    /// The measured difference of a producer's clock.
    pub(super) fn offset(&self, id: &str) -> Option<ClockOffset> {
        self.producers.get(id)?.offset()
    }

    /// The latest time that the clock of this host or any producer may have shown when this producer's clock showed
    /// `unix_micros`. A producer without a measured difference has sent nothing since `started`, by this host's clock.
    pub(super) fn latest_anywhere(&self, id: &str, unix_micros: u64, started: u64) -> u64 {
        let Some(own) = self.offset(id) else {
            return unix_micros;
        };
        let here = unix_micros.saturating_add_signed(own.max);
        let others = self.producers.iter().filter(|(other, _)| ***other != *id);
        let latest = others.map(|(_, other)| match other.offset() {
            Some(other) => here.saturating_add_signed(other.min.saturating_neg()),
            None => here.min(started).saturating_add(CLOCK_AHEAD_MICROS_MAX),
        });
        latest.fold(unix_micros.max(here), u64::max)
    }

    /// Adds lost cookies of an epoch; returns the total of the epoch.
    pub(super) fn add_lost(&mut self, id: &Arc<str>, epoch: u64, cookies: u64) -> u64 {
        self.producer(id).add_lost(epoch, cookies)
    }

    /// Removes the durable position of a producer. Returns its received position if that was also removed.
    pub(super) fn forget(&mut self, id: &str) -> Option<Cursor> {
        let removed = self.producers.get_mut(id)?.forget();
        self.remove_unused();
        removed
    }

    /// All cursors, most recently advanced first, up to the maximum of a request.
    pub(super) fn cursors(&self) -> Vec<Cursor> {
        let known = self.producers.values();
        let mut known: Vec<_> = known
            .filter_map(|producer| Some((producer.advanced_at(), producer.received()?)))
            .collect();
        known.sort_by_key(|(advanced_at, _)| std::cmp::Reverse(*advanced_at));
        known.truncate(CURSORS_MAX);
        let cursors = known.into_iter().map(|(_, cursor)| cursor.clone());
        cursors.collect()
    }

    pub(super) fn cursor(&self, id: &str) -> Option<Cursor> {
        self.producers.get(id)?.received().cloned()
    }

    pub(super) fn durable(&self, id: &str) -> Option<(u64, u64)> {
        self.producers.get(id)?.durable()
    }

    pub(super) fn streams(&self, id: &str) -> usize {
        self.producers.get(id).map_or(0, Producer::streams)
    }

    pub(super) fn connected_and_total(&self) -> (usize, usize) {
        let addresses = self.addresses.values();
        let connected = addresses.filter(|address| address.is_connected);
        (connected.count(), self.addresses.len())
    }

    /// A snapshot. The clock of this host was set ahead by `set_ahead` microseconds since the start.
    pub(super) fn snapshot(&self, set_ahead: i64) -> Snapshot {
        let with_address = self.with_address();
        let is_other = |(id, producer): &(&Arc<str>, &Producer)| {
            producer.is_durable() && !with_address.contains(&***id)
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

    /// The last producer that responded at each address.
    fn with_address(&self) -> BTreeSet<Arc<str>> {
        let addresses = self.addresses.values();
        let ids = addresses.filter_map(|address| address.producer.clone());
        ids.collect()
    }

    /// Removes producers without state.
    fn remove_unused(&mut self) {
        let with_address = self.with_address();
        let is_kept = |id: &Arc<str>, producer: &mut Producer| {
            producer.is_known() || with_address.contains(&**id)
        };
        self.producers.retain(is_kept);
    }

    fn address(&mut self, key: AddressKey) -> Option<&mut Address> {
        let address = self.addresses.get_mut(&key.address);
        address.filter(|address| address.registration == key.registration)
    }

    fn producer(&mut self, id: &Arc<str>) -> &mut Producer {
        self.producers.entry(Arc::clone(id)).or_default()
    }

    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

#[cfg(test)]
mod tests;
