//! Confirmations of nodes: the positions up to which they have stored records. Does no I/O.
//!
//! A node confirms positions, not records. A position covers only records that were sent. It covers neither records in a
//! gap nor records before the start of the stream. Each confirmation is therefore stored with the ranges that the
//! subscriber had lost before it.
//!
//! A node that reads an archive has no stream. Its [reports](super::Report) state which records it has lost, and also show that it
//! is alive. They take the place of confirmations.
//!
//! A subscriber becomes a node with its first confirmation. Before that, receipts count it only while the producer
//! retains the subscriber.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proto::units::{Sequence, UnixMicros};

use super::{
    account::{Account, LOST_RANGES_MAX, Received},
    reports::Report,
};

/// Whether a node has carried out deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    /// The node has carried them out.
    Yes,
    /// The node has not received them yet, or has not confirmed them yet.
    NotYet,
    /// The node joined after the deletions, without a position before them.
    NotConcerned,
    /// The node may never have received them, or has not confirmed anything since.
    Unknown,
}

/// Maximum number of nodes. Beyond it, the one that was absent for the longest time is evicted.
const NODES_MAX: usize = 4096;

/// How long a node counts while disconnected: longer than the usual time to live of its cookies.
const RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// Maximum number of lost ranges stored per node.
const RANGES_MAX: usize = 2 * LOST_RANGES_MAX;

/// The confirmations of all nodes.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    nodes: BTreeMap<String, Node>,
    /// Number of nodes that were evicted before the end of their retention, so their state is unknown.
    pub(super) evicted: u64,
}

#[derive(Debug)]
struct Node {
    /// When it was last known to be a subscriber.
    seen: Instant,
    durable: Sequence,
    applied: Sequence,
    received: Received,
    report: LastReport,
}

/// The last report of a node.
#[derive(Debug, Default)]
struct LastReport {
    /// Its time by the node's clock, to recognize older ones.
    time: UnixMicros,
    /// When it was sent; `None` if that is longer ago than this host runs.
    at: Option<Instant>,
    /// Whether the node has confirmed nothing on a stream since.
    is_current: bool,
}

impl Received {
    /// Merges a later state of the same node, perhaps of a subscriber that joined later. Earlier ranges stay lost, and so do the
    /// records between the last confirmation of one subscriber and the first stream of the next.
    fn merge(&mut self, mut newer: Self) {
        if newer.joined > self.joined {
            self.lost.retain(|(begin, _)| *begin < newer.joined);
            if self.next < newer.joined {
                self.lost.push((self.next, newer.joined - 1));
                self.next = newer.joined;
            }
            newer.lost.splice(0..0, self.lost.drain(..));
            newer.joined = self.joined;
        }
        newer.certain_from = newer.certain_from.max(self.certain_from);
        while newer.lost.len() > RANGES_MAX {
            let (_, end) = newer.lost.remove(0);
            newer.certain_from = newer.certain_from.max(end + 1);
        }
        *self = newer;
    }

    fn has(&self, first: Sequence, last: Sequence) -> bool {
        let from = self.joined.max(self.certain_from);
        let is_lost = |&(begin, end): &(Sequence, Sequence)| begin <= last && first <= end;
        from <= first && !self.lost.iter().any(is_lost)
    }
}

impl Node {
    /// Records positions. Returns whether they are higher.
    fn confirm(&mut self, durable: Sequence, applied: Sequence, received: Received) -> bool {
        self.received.merge(received);
        // After a reconnect, a node knows its applied position only once no deletion is in progress. Until then, its previous
        // applied position stays valid, up to the durable position.
        let applied = applied.max(self.applied.min(durable));
        let is_raised = self.durable < durable || self.applied < applied;
        self.durable = durable;
        self.applied = applied;
        is_raised
    }
}

impl Confirmations {
    /// Records a confirmation. Returns whether it raises the confirmed position.
    pub(super) fn confirm(
        &mut self,
        name: &str,
        durable: Sequence,
        applied: Sequence,
        account: &Account,
    ) -> bool {
        let node = self.node(name, account.received());
        node.seen = Instant::now();
        node.report.is_current = false;
        node.confirm(durable, applied, account.received())
    }

    /// Records a report. Returns false if the node has sent a newer one.
    pub(super) fn report(&mut self, report: &Report, now: Instant) -> bool {
        let known = self.nodes.get(&report.name).map(|node| node.report.time);
        if known >= Some(report.time) {
            // The last report is read again after a reconnect.
            return known == Some(report.time);
        }
        // Nothing shows that the node is new. So it counts for all records of the epoch.
        let nothing = Received {
            joined: Sequence::FIRST,
            next: Sequence::FIRST,
            certain_from: Sequence(0),
            lost: Vec::new(),
        };
        let at = now.checked_sub(report.age);
        let node = self.node(&report.name, nothing);
        node.seen = at.unwrap_or(node.seen);
        node.report = LastReport {
            time: report.time,
            at,
            is_current: true,
        };
        if let Some(position) = &report.position {
            let received = Received {
                joined: position.first,
                next: position.durable.next(),
                certain_from: position.lost_until.next(),
                lost: Vec::new(),
            };
            node.confirm(position.durable, position.applied, received);
        }
        true
    }

    /// The nodes whose last report is younger than `retention`, by name.
    pub(super) fn reporting(
        &self,
        now: Instant,
        retention: Duration,
    ) -> impl Iterator<Item = (&str, Received)> {
        let is_young = move |at: Instant| now.saturating_duration_since(at) < retention;
        let nodes = self.nodes.iter().filter(move |(_, node)| {
            node.report.is_current && node.report.at.is_some_and(is_young)
        });
        nodes.map(|(name, node)| (name.as_str(), node.received.clone()))
    }

    /// All nodes: name, time since it was last seen, and last durable position.
    pub(super) fn nodes(&self, now: Instant) -> impl Iterator<Item = (&str, Duration, Sequence)> {
        let absent = move |node: &Node| now.saturating_duration_since(node.seen);
        let nodes = self.nodes.iter();
        nodes.map(move |(name, node)| (name.as_str(), absent(node), node.durable))
    }

    /// Removes a node; returns whether it was known.
    pub(super) fn forget(&mut self, name: &str) -> bool {
        self.nodes.remove(name).is_some()
    }

    /// The node with this name. A new node has `received` these records.
    fn node(&mut self, name: &str, received: Received) -> &mut Node {
        if !self.nodes.contains_key(name) {
            self.evict_longest_absent();
        }
        self.nodes.entry(name.to_owned()).or_insert_with(|| Node {
            seen: Instant::now(),
            durable: Sequence(0),
            applied: Sequence(0),
            received,
            report: LastReport::default(),
        })
    }

    /// Records a new stream, from which nothing was sent yet. Records that it sends again must be confirmed again: the node may have lost its store.
    pub(super) fn joined(&mut self, name: &str, account: &Account) {
        if let Some(node) = self.nodes.get_mut(name) {
            let before = account.position - 1;
            node.durable = node.durable.min(before);
            node.applied = node.applied.min(before);
            node.received.merge(account.received());
        }
    }

    /// Removes nodes that have not been subscribers for [`RETENTION`].
    pub(super) fn sweep(&mut self, now: Instant, is_subscriber: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, node| {
            if is_subscriber(name) {
                node.seen = now;
            }
            now - node.seen < RETENTION
        });
    }

    fn evict_longest_absent(&mut self) {
        if self.nodes.len() >= NODES_MAX {
            let absent = self.nodes.iter().min_by_key(|(_, node)| node.seen);
            if let Some(name) = absent.map(|(name, _)| name.clone()) {
                self.nodes.remove(&name);
                self.evicted += 1;
            }
        }
    }

    /// The last positions that a node has confirmed as durable and as applied, if any.
    pub(super) fn positions(&self, name: &str) -> Option<[Sequence; 2]> {
        let node = self.nodes.get(name);
        node.map(|node| [node.durable, node.applied])
    }

    /// Number of nodes with streams that have stored the records with these sequence numbers durably.
    pub(super) fn count_durable(&self, first: Sequence, last: Sequence) -> usize {
        let has = |node: &&Node| {
            !node.report.is_current && node.durable >= last && node.received.has(first, last)
        };
        self.nodes.values().filter(has).count()
    }

    /// Whether each node and each of the current `subscribers`, by name, has carried out the deletions with these numbers.
    pub(super) fn states<'a>(
        &self,
        subscribers: impl Iterator<Item = (&'a str, Received)>,
        first: Sequence,
        last: Sequence,
    ) -> BTreeMap<String, Confirmed> {
        let mut states: BTreeMap<String, Confirmed> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let state = if node.received.joined > last {
                Confirmed::NotConcerned
            } else if node.applied >= last && node.received.has(first, last) {
                Confirmed::Yes
            } else {
                Confirmed::Unknown
            };
            states.insert(name.clone(), state);
        }
        for (name, received) in subscribers {
            let state = states.entry(name.to_owned());
            let state = state.or_insert(Confirmed::NotConcerned);
            if *state == Confirmed::Yes {
                continue;
            }
            *state = if received.joined > last && *state != Confirmed::Unknown {
                Confirmed::NotConcerned
            } else if received.has(first, last) {
                Confirmed::NotYet
            } else {
                Confirmed::Unknown
            };
        }
        states
    }
}

#[cfg(test)]
mod tests;
