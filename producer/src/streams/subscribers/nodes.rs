//! The nodes of a producer as its operator sees them, and their removal.

use std::{collections::BTreeMap, time::Instant};

use serde_json::{Value, json};

use super::{Call, Subscribers};
use crate::log::Log;

/// Maximum number of nodes in a list: all whose confirmations are kept, and as many that have confirmed nothing.
const LISTED_MAX: usize = 8_192;

/// What became of a node that is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// It was known, and is not any more.
    Known,
    /// It was not known.
    Unknown,
    /// It is alive, and stays known.
    Alive,
}

impl Subscribers {
    /// The subscribers with `Subscribe` streams, and the nodes that had some, by name and up to 8,192: for the JSON of the
    /// status. Without a retained stream, a node has no lag.
    pub fn nodes(&self, log: &Log) -> Vec<Value> {
        let (now, snapshots, next) = (Instant::now(), self.snapshot(), log.span().next);
        let ages = log.ages(snapshots.iter().map(|it| it.position));
        let mut nodes = BTreeMap::new();
        let confirmations = self.confirmations();
        let confirmed: Vec<_> = confirmations.nodes(now).collect();
        let durable_ages = log.ages(confirmed.iter().map(|(_, _, durable)| durable.next()));
        for ((name, absent, durable), age) in confirmed.into_iter().zip(durable_ages) {
            let node = json!({
                "node": name, "connected": false, "absent_seconds": absent.as_secs(),
                "not_durable_cookies": next.since(durable.next()), "not_durable_seconds": age.as_secs(),
            });
            nodes.insert(name.to_owned(), node);
        }
        drop(confirmations);
        let nodes_with_state = snapshots.into_iter().zip(ages);
        for (it, age) in nodes_with_state.filter(|(it, _)| it.call == Call::Subscribe) {
            let node = nodes.entry(it.name.clone()).or_insert_with(|| json!({}));
            node["node"] = it.name.into();
            node["connected"] = it.connected.into();
            node["lag_cookies"] = next.since(it.position).into();
            node["lag_seconds"] = age.as_secs().into();
            node["lost_cookies"] = it.totals.lost().into();
        }
        nodes.into_values().take(LISTED_MAX).collect()
    }

    /// Cookies that subscribers will not receive. Those of removed subscribers do not count.
    pub fn lost(&self) -> u64 {
        let snapshots = self.snapshot();
        snapshots.iter().map(|it| it.totals.lost()).sum()
    }

    /// Removes a node that is not alive, with the retained position of its stream. Receipts no longer wait for it.
    pub fn forget(&self, name: &str) -> Forgotten {
        let mut table = self.table();
        let key = (Call::Subscribe, name.to_owned());
        let subscriber = table.by_name.get(&key);
        let has_stream = subscriber.is_some_and(|it| it.ended().is_none());
        let mut confirmations = self.confirmations();
        let mut reporting = confirmations.reporting(Instant::now(), table.retention);
        if has_stream || reporting.any(|(it, _)| it == name) {
            return Forgotten::Alive;
        }
        drop(reporting);
        let was_subscriber = table.by_name.remove(&key).is_some();
        match confirmations.forget(name) || was_subscriber {
            true => Forgotten::Known,
            false => Forgotten::Unknown,
        }
    }
}
