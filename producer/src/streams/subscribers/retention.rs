//! When names are forgotten: a queue whose stream has ended is kept for the retention time, or until another subscriber
//! needs its room.

use std::{
    net::IpAddr,
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::{Connection, Queue, Queues, Subscribers, TooManySubscribers};

/// How many queues one address may have: this many, or half of all if that is more. Beyond that it makes room at the
/// cost of its own queues alone.
pub(super) const PER_ADDRESS_MIN: usize = 512;

/// How long queues are remembered, and how many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) retention: Duration,
    pub(super) subscribers_max: usize,
}

impl Subscribers {
    /// Changes how many there may be and how long each is remembered, from now on. No stream is ended by this.
    pub fn set_limits(&self, retention: Duration, subscribers_max: usize) {
        let limits = self.shared.limits.lock();
        *limits.unwrap_or_else(PoisonError::into_inner) = Limits {
            retention,
            subscribers_max,
        };
    }

    fn limits(&self) -> Limits {
        let limits = self.shared.limits.lock();
        *limits.unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the queues whose streams ended longer ago than the retention time.
    pub fn sweep(&self) {
        self.forget_expired(&mut self.queues(), Instant::now());
    }

    pub(super) fn forget_expired(&self, queues: &mut Queues, now: Instant) {
        let retention = self.limits().retention;
        queues.retain(|_, queue| match queue.state().connection {
            Connection::Streaming { .. } => true,
            Connection::Ended { since } => now - since < retention,
        });
    }

    /// Makes room for one more queue of `network`.
    ///
    /// # Errors
    /// When there is none, since all queues that could make room have a stream.
    pub(super) fn make_room(
        &self,
        queues: &mut Queues,
        network: IpAddr,
    ) -> Result<(), TooManySubscribers> {
        let most = self.limits().subscribers_max;
        let is_own = |queue: &Queue| queue.network == network;
        let own = queues.values().filter(|queue| is_own(queue)).count();
        if own >= PER_ADDRESS_MIN.max(most / 2) {
            forget_longest_ended(queues, is_own)
        } else if queues.len() >= most {
            forget_longest_ended(queues, |_| true)
        } else {
            Ok(())
        }
    }
}

/// Forgets the queue among `candidates` whose stream ended first.
fn forget_longest_ended(
    queues: &mut Queues,
    candidates: impl Fn(&Queue) -> bool,
) -> Result<(), TooManySubscribers> {
    let longest_ended = queues
        .iter()
        .filter(|(_, queue)| candidates(queue))
        .filter_map(|(key, queue)| match queue.state().connection {
            Connection::Streaming { .. } => None,
            Connection::Ended { since } => Some((since, key)),
        })
        .min_by_key(|&(since, _)| since)
        .map(|(_, key)| key.clone());
    queues.remove(&longest_ended.ok_or(TooManySubscribers)?);
    Ok(())
}
