//! Retention of disconnected subscribers: for the retention time, or until they are evicted for new subscribers.

use std::time::{Duration, Instant};

use super::{Call, CallError, StreamState, Subscriber, SubscriberTable, Subscribers};

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
        self.shared.unverified.lock().sweep(now, table.retention);
    }
}

impl SubscriberTable {
    pub(super) fn remove_expired(&mut self, now: Instant) {
        self.by_name.retain(|_, subscriber| {
            let ended = subscriber.ended();
            ended.is_none_or(|since| now - since < self.retention)
        });
    }

    /// Ensures capacity for one more subscriber: if necessary, evicts the one that disconnected first.
    ///
    /// # Errors
    /// When all subscribers are connected.
    pub(super) fn ensure_capacity(&mut self) -> Result<(), CallError> {
        if self.by_name.len() < self.subscribers_max {
            return Ok(());
        }
        let first_ended = self
            .by_name
            .iter()
            .filter_map(|(key, subscriber)| Some((subscriber.ended()?, key)))
            .min_by_key(|&(since, _)| since)
            .map(|(_, key)| key.clone());
        let first_ended = first_ended.ok_or(CallError::TooManySubscribers)?;
        self.by_name.remove(&first_ended);
        Ok(())
    }
}

impl Subscriber {
    /// When its latest stream ended; `None` while it streams.
    pub(super) fn ended(&self) -> Option<Instant> {
        match self.state.lock().stream {
            StreamState::Streaming { .. } => None,
            StreamState::Ended { since } => Some(since),
        }
    }
}
