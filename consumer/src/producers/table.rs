//! The table of producers and of the addresses that lead to them, and each transition that it makes. Pure: time is given.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use proto::limits::CURSORS_MAX;
use tokio::time::Instant;

use super::{
    producer::{AdvanceResult, ObservedRange, Producer, ProducerStatus},
    skew::Arrival,
};
use crate::batch::Cursor;

/// So many producers are shown, if there are, but for those that are read, of which all are.
pub const PRODUCER_SERIES_MAX: usize = 256;

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Table {
    producers: BTreeMap<Arc<str>, Producer>,
    addresses: BTreeMap<SocketAddr, Address>,
    is_loaded: bool,
    /// Counts listings, and what moved a cursor, to tell which is the newest.
    changes: u64,
}

/// An address that is subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Which of its listings this is.
    listing: u64,
    /// The setting that stands for it.
    pub origin: Arc<str>,
    /// The id of the producer that has or had a stream here.
    pub producer: Option<Arc<str>>,
    /// Whether a stream is open.
    pub is_connected: bool,
    /// Why not, if an attempt failed.
    pub why_not: Option<Arc<str>>,
}

/// The table at one moment, for those who show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All that are subscribed to.
    pub addresses: BTreeMap<SocketAddr, Address>,
    /// By id: all that an address reads from, and as many others that have a durable cursor as make up [`PRODUCER_SERIES_MAX`].
    pub producers: BTreeMap<Arc<str>, ProducerStatus>,
}

/// One listing of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) address: SocketAddr,
    listing: u64,
}

/// How a stream begins.
#[derive(Debug, Clone, Copy)]
pub struct StreamStart<'a> {
    /// Whose it is, its epoch, and the sequence that it goes on after.
    pub at: &'a Cursor,
    /// The newest sequence that the producer has.
    pub newest: u64,
    /// How far it was received in the epoch before, if the stream is of another.
    pub before: Option<&'a Cursor>,
}

impl Table {
    /// The store stands at these cursors.
    pub(super) fn loaded(&mut self, cursors: Vec<Cursor>) {
        self.is_loaded = true;
        for cursor in cursors {
            self.producer(&cursor.producer.clone()).loaded(cursor);
        }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// These cursors are durable.
    pub(super) fn committed(&mut self, cursors: &[Cursor]) {
        for cursor in cursors {
            self.producer(&cursor.producer).committed(cursor);
        }
    }

    /// An address is subscribed to, instead of a subscription to the same before.
    pub(super) fn listed(&mut self, address: SocketAddr, origin: &str) -> Key {
        let listing = self.next_change();
        let new = Address {
            listing,
            origin: origin.into(),
            producer: None,
            is_connected: false,
            why_not: None,
        };
        self.addresses.insert(address, new);
        Key { address, listing }
    }

    /// The address is not subscribed to any more.
    pub(super) fn unlisted(&mut self, key: Key) {
        if self.address(key).is_some() {
            self.addresses.remove(&key.address);
        }
        self.sweep();
    }

    /// There is no stream, for this reason.
    pub(super) fn down(&mut self, key: Key, why: &str) {
        if let Some(address) = self.address(key) {
            address.why_not = Some(why.into());
        }
    }

    /// A stream begins. Returns what this process saw of the epoch before, if that is to be reported by who opened it.
    pub(super) fn opened(&mut self, key: Key, start: StreamStart<'_>) -> Option<ObservedRange> {
        let id = &start.at.producer;
        if let Some(address) = self.address(key) {
            address.producer = Some(Arc::clone(id));
            address.is_connected = true;
            address.why_not = None;
        }
        let producer = self.producer(id);
        let seen = producer.opened(start.at, start.newest, start.before);
        self.sweep();
        seen
    }

    /// A stream ended.
    pub(super) fn closed(&mut self, key: Key, id: &str) {
        if let Some(address) = self.address(key) {
            address.is_connected = false;
        }
        if let Some(producer) = self.producers.get_mut(id) {
            producer.closed();
        }
        self.sweep();
    }

    /// A stream came as far as `cursor`, by cookies if there is an arrival; `had_advanced` before.
    pub(super) fn advanced(
        &mut self,
        cursor: &Cursor,
        arrival: Option<Arrival>,
        had_advanced: bool,
        now: Instant,
    ) -> AdvanceResult {
        let change = self.next_change();
        let producer = self.producer(&cursor.producer);
        if let Some(arrival) = arrival {
            producer.arrived(arrival, now);
        }
        producer.advanced(cursor, change, had_advanced)
    }

    /// Cookies of an epoch will not come; returns how many of it by now.
    pub(super) fn lost(&mut self, id: &Arc<str>, epoch: u64, cookies: u64) -> u64 {
        self.producer(id).lost(epoch, cookies)
    }

    /// The store forgot a producer. Returns how far it was received, if it is gone.
    pub(super) fn forget(&mut self, id: &str) -> Option<Cursor> {
        let forgotten = self.producers.get_mut(id)?.forget();
        self.sweep();
        forgotten
    }

    /// All cursors, the most recently moved first, at most as many as a request may carry.
    pub(super) fn cursors(&self) -> Vec<Cursor> {
        let known = self.producers.values();
        let mut known: Vec<_> = known
            .filter_map(|producer| Some((producer.moved(), producer.received()?)))
            .collect();
        known.sort_by_key(|(moved, _)| std::cmp::Reverse(*moved));
        known.truncate(CURSORS_MAX);
        let cursors = known.into_iter().map(|(_, cursor)| cursor.clone());
        cursors.collect()
    }

    pub(super) fn cursor(&self, id: &str) -> Option<Cursor> {
        self.producers.get(id)?.received().cloned()
    }

    pub(super) fn streams(&self, id: &str) -> usize {
        self.producers.get(id).map_or(0, Producer::streams)
    }

    pub(super) fn connected_and_total(&self) -> (usize, usize) {
        let addresses = self.addresses.values();
        let connected = addresses.filter(|address| address.is_connected);
        (connected.count(), self.addresses.len())
    }

    pub(super) fn snapshot(&self, now: Instant) -> Snapshot {
        let read = self.read();
        let is_other = |(id, producer): &(&Arc<str>, &Producer)| {
            producer.is_durable() && !read.contains(&***id)
        };
        let others = self.producers.iter().filter(is_other);
        let others = others.take(PRODUCER_SERIES_MAX.saturating_sub(read.len()));
        let shown = read
            .iter()
            .filter_map(|id| self.producers.get_key_value(id));
        let producers = shown.chain(others).map(|(id, producer)| {
            let status = producer.status(read.contains(&**id), now);
            (Arc::clone(id), status)
        });
        Snapshot {
            addresses: self.addresses.clone(),
            producers: producers.collect(),
        }
    }

    /// The producers that an address reads from, or read from last.
    fn read(&self) -> BTreeSet<Arc<str>> {
        let addresses = self.addresses.values();
        let read = addresses.filter_map(|address| address.producer.clone());
        read.collect()
    }

    /// Lets those go that there is nothing to know of.
    fn sweep(&mut self) {
        let read = self.read();
        let is_kept =
            |id: &Arc<str>, producer: &mut Producer| producer.is_known() || read.contains(&**id);
        self.producers.retain(is_kept);
    }

    fn address(&mut self, key: Key) -> Option<&mut Address> {
        let address = self.addresses.get_mut(&key.address);
        address.filter(|address| address.listing == key.listing)
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
