//! Confirmations of nodes: the positions up to which they have stored records. Does no I/O.
//!
//! A node confirms positions, not records. A position covers only records that were sent. It covers neither records in a
//! gap nor records before the start of the stream. Each confirmation is therefore stored with the ranges that the
//! subscriber had lost before it.
//!
//! A subscriber becomes a node with its first confirmation. Before that, receipts count it only while the producer
//! retains the subscriber.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proto::units::Sequence;

use super::account::{Account, LOST_RANGES_MAX, Received};

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

impl Confirmations {
    /// Records a confirmation. Returns whether it raises the confirmed position.
    pub(super) fn confirm(
        &mut self,
        name: &str,
        durable: Sequence,
        applied: Sequence,
        account: &Account,
    ) -> bool {
        if !self.nodes.contains_key(name) {
            self.evict_longest_absent();
        }
        let node = self.nodes.entry(name.to_owned()).or_insert_with(|| Node {
            seen: Instant::now(),
            durable: Sequence(0),
            applied: Sequence(0),
            received: account.received(),
        });
        node.seen = Instant::now();
        node.received.merge(account.received());
        // After a reconnect, a node knows its applied position only once no deletion is in progress. Until then, its previous
        // applied position stays valid, up to the durable position.
        let applied = applied.max(node.applied.min(durable));
        let is_raised = node.durable < durable || node.applied < applied;
        node.durable = durable;
        node.applied = applied;
        is_raised
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

    /// Number of nodes that have stored the records with these sequence numbers durably.
    pub(super) fn count_durable(&self, first: Sequence, last: Sequence) -> usize {
        let has = |node: &&Node| node.durable >= last && node.received.has(first, last);
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
