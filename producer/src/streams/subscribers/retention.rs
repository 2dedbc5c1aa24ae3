//! Retention of disconnected subscribers: for the retention time, or until they are evicted for new subscribers.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use tonic::Status;

use super::{Call, StreamState, Subscriber, SubscriberTable, Subscribers};

/// Maximum number of subscribers per address: this many, or half of all if that is more. Beyond it, a new subscriber can
/// evict only subscribers of its address.
pub(super) const PER_ADDRESS_MIN: usize = 512;

impl Subscribers {
    /// Changes the limits of new subscribers. No stream is ended.
    pub fn set_limits(&self, retention: Duration, subscribers_max: usize) {
        let mut table = self.table();
        table.retention = retention;
        table.subscribers_max = subscribers_max;
    }

    /// Removes subscribers that disconnected longer ago than the retention time, and nodes that are absent for a month.
    pub fn sweep(&self) {
        let (now, mut table) = (Instant::now(), self.table());
        table.remove_expired(now);
        let key = |name: &str| (Call::Subscribe, name.to_owned());
        let is_subscriber = |name: &str| table.by_name.contains_key(&key(name));
        self.confirmations().sweep(now, is_subscriber);
    }
}

impl SubscriberTable {
    pub(super) fn remove_expired(&mut self, now: Instant) {
        self.by_name
            .retain(|_, subscriber| match subscriber.state().stream {
                StreamState::Streaming { .. } => true,
                StreamState::Ended { since } => now - since < self.retention,
            });
    }

    /// Ensures capacity for one more subscriber of `network`, by eviction if necessary.
    ///
    /// # Errors
    /// When all subscribers that could be evicted are connected.
    pub(super) fn ensure_capacity(&mut self, network: IpAddr) -> Result<(), Status> {
        let max = self.subscribers_max;
        let is_own = |subscriber: &Subscriber| subscriber.network == network;
        let own = self
            .by_name
            .values()
            .filter(|subscriber| is_own(subscriber))
            .count();
        if own >= PER_ADDRESS_MIN.max(max / 2) {
            self.evict_longest_disconnected(is_own)
        } else if self.by_name.len() >= max {
            self.evict_longest_disconnected(|_| true)
        } else {
            Ok(())
        }
    }

    /// Evicts the candidate that disconnected first.
    fn evict_longest_disconnected(
        &mut self,
        candidates: impl Fn(&Subscriber) -> bool,
    ) -> Result<(), Status> {
        let first_ended = self
            .by_name
            .iter()
            .filter(|(_, subscriber)| candidates(subscriber))
            .filter_map(|(key, subscriber)| match subscriber.state().stream {
                StreamState::Streaming { .. } => None,
                StreamState::Ended { since } => Some((since, key)),
            })
            .min_by_key(|&(since, _)| since)
            .map(|(_, key)| key.clone());
        let too_many = || Status::resource_exhausted("too many subscribers");
        self.by_name.remove(&first_ended.ok_or_else(too_many)?);
        Ok(())
    }
}
