//! When names are forgotten: a queue whose stream has ended is kept for the retention time, or until another subscriber
//! needs its room.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Connection, Queue, Queues, Subscribers, TooManySubscribers};

/// How many queues one address may have: this many, or half of all if that is more. Beyond that it makes room at the
/// cost of its own queues alone.
pub(super) const PER_ADDRESS_MIN: usize = 512;

impl Subscribers {
    /// Changes how many there may be and how long each is remembered, from now on. No stream is ended by this.
    pub fn set_limits(&self, retention: Duration, subscribers_max: usize) {
        let mut queues = self.queues();
        queues.retention = retention;
        queues.subscribers_max = subscribers_max;
    }

    /// Forgets the queues whose streams ended longer ago than the retention time.
    pub fn sweep(&self) {
        self.queues().forget_expired(Instant::now());
    }
}

impl Queues {
    pub(super) fn forget_expired(&mut self, now: Instant) {
        self.by_name
            .retain(|_, queue| match queue.state().connection {
                Connection::Streaming { .. } => true,
                Connection::Ended { since } => now - since < self.retention,
            });
    }

    /// Makes room for one more queue of `network`.
    ///
    /// # Errors
    /// When there is none, since all queues that could make room have a stream.
    pub(super) fn make_room(&mut self, network: IpAddr) -> Result<(), TooManySubscribers> {
        let most = self.subscribers_max;
        let is_own = |queue: &Queue| queue.network == network;
        let own = self.by_name.values().filter(|queue| is_own(queue)).count();
        if own >= PER_ADDRESS_MIN.max(most / 2) {
            self.forget_longest_ended(is_own)
        } else if self.by_name.len() >= most {
            self.forget_longest_ended(|_| true)
        } else {
            Ok(())
        }
    }

    /// Forgets the queue among `candidates` whose stream ended first.
    fn forget_longest_ended(
        &mut self,
        candidates: impl Fn(&Queue) -> bool,
    ) -> Result<(), TooManySubscribers> {
        let longest_ended = self
            .by_name
            .iter()
            .filter(|(_, queue)| candidates(queue))
            .filter_map(|(key, queue)| match queue.state().connection {
                Connection::Streaming { .. } => None,
                Connection::Ended { since } => Some((since, key)),
            })
            .min_by_key(|&(since, _)| since)
            .map(|(_, key)| key.clone());
        self.by_name
            .remove(&longest_ended.ok_or(TooManySubscribers)?);
        Ok(())
    }
}
