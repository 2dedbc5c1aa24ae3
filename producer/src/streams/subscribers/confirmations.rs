//! What nodes have confirmed. Pure.
//!
//! A node confirms positions, not records. A position covers a record only if the record was sent: not if it lies in a gap,
//! and not if the stream began after it. So each confirmation is kept with the ranges that the queue lost until then.

use std::collections::BTreeMap;

use super::account::{Account, LOST_RANGES_MAX, Received};
use crate::log::Sequence;

/// Whether a node has carried out deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
    /// It has.
    Yes,
    /// Its queue still holds them, or it has not said so yet.
    NotYet,
    /// It joined after them, without a position before them.
    NotConcerned,
    /// It may never have received them, or has not been heard of since.
    Unknown,
}

/// Most nodes; beyond them the one that confirmed least recently is dropped.
const NODES_MAX: usize = 4096;

/// Most lost ranges that are kept of a node.
const RANGES_MAX: usize = 2 * LOST_RANGES_MAX;

/// The confirmations of all nodes.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    nodes: BTreeMap<String, Node>,
    count: u64,
}

#[derive(Debug)]
struct Node {
    /// The number of its newest confirmation.
    number: u64,
    has_confirmed: bool,
    durable: Sequence,
    applied: Sequence,
    queue: Received,
}

impl Received {
    /// Adds what another queue of the same node says, which may begin later: what an earlier one lost stays lost.
    fn merge(&mut self, mut newer: Self) {
        if newer.joined > self.joined {
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
    /// Notes a confirmation. Returns whether it is news.
    pub(super) fn confirm(
        &mut self,
        name: &str,
        durable: Sequence,
        applied: Sequence,
        account: &Account,
    ) -> bool {
        let node = self.node(name, account);
        let is_news = node.durable < durable || node.applied < applied;
        node.has_confirmed = true;
        node.durable = durable;
        node.applied = applied;
        is_news
    }

    /// Notes a stream, so that a node is known before its first confirmation.
    pub(super) fn joined(&mut self, name: &str, account: &Account) {
        self.node(name, account);
    }

    fn node(&mut self, name: &str, account: &Account) -> &mut Node {
        self.count += 1;
        if !self.nodes.contains_key(name) {
            self.make_room();
        }
        let queue = account.received();
        let node = self.nodes.entry(name.to_owned()).or_insert_with(|| Node {
            number: 0,
            has_confirmed: false,
            durable: 0,
            applied: 0,
            queue: queue.clone(),
        });
        node.number = self.count;
        node.queue.merge(queue);
        node
    }

    fn make_room(&mut self) {
        if self.nodes.len() >= NODES_MAX {
            let oldest = self.nodes.iter().min_by_key(|(_, node)| node.number);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                self.nodes.remove(&name);
            }
        }
    }

    /// How far a node is durable, if it has confirmed anything.
    pub(super) fn durable(&self, name: &str) -> Option<Sequence> {
        let node = self.nodes.get(name).filter(|node| node.has_confirmed);
        node.map(|node| node.durable)
    }

    /// How many nodes have these sequences durable.
    pub(super) fn count_durable(&self, first: Sequence, last: Sequence) -> usize {
        let has = |node: &&Node| node.durable >= last && node.queue.has(first, last);
        self.nodes.values().filter(has).count()
    }

    /// Whether each node has carried out the deletions with these sequences. `queues` are those that are kept now.
    pub(super) fn states<'a>(
        &self,
        queues: impl Iterator<Item = (&'a str, Received)>,
        first: Sequence,
        last: Sequence,
    ) -> Vec<(String, Confirmed)> {
        let mut states: BTreeMap<String, Confirmed> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let state = if node.queue.joined > last {
                Confirmed::NotConcerned
            } else if node.applied >= last && node.queue.has(first, last) {
                Confirmed::Yes
            } else {
                Confirmed::Unknown
            };
            states.insert(name.clone(), state);
        }
        for (name, queue) in queues {
            let state = states.entry(name.to_owned()).or_insert(Confirmed::Unknown);
            if *state == Confirmed::Yes {
                continue;
            }
            *state = if queue.joined > last && *state != Confirmed::Unknown {
                Confirmed::NotConcerned
            } else if queue.has(first, last) {
                Confirmed::NotYet
            } else {
                Confirmed::Unknown
            };
        }
        states.into_iter().collect()
    }
}
