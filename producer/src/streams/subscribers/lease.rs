//! A stream's right to its queue, and what it notes there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{Connection, Queue};
use crate::{log::Delivery, streams::pinned};

/// After how long what becomes of a stream is told whose beginning was not.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// The right to stream one queue; dropping it starts the queue's retention.
#[derive(Debug)]
pub struct Lease {
    queue: Arc<Queue>,
    pub(super) superseded: CancellationToken,
    is_announced: bool,
    told_from: Instant,
}

impl Lease {
    /// Of a stream that has just taken `queue`, and is told of from its beginning on where it is announced.
    pub(super) fn new(
        queue: Arc<Queue>,
        superseded: CancellationToken,
        is_announced: bool,
        now: Instant,
    ) -> Self {
        Self {
            queue,
            superseded,
            is_announced,
            told_from: if is_announced { now } else { now + TOLD_AFTER },
        }
    }

    /// Whether the log names this stream: it does not name very many.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// From when on what becomes of this stream is told: short ones could fill the log with what they make up.
    pub(in crate::streams) fn told_from(&self) -> Instant {
        self.told_from
    }

    fn is_told(&self) -> bool {
        Instant::now() >= self.told_from
    }

    /// Cancelled when another stream of the same name has taken the queue.
    #[must_use]
    pub fn supersession(&self) -> &CancellationToken {
        &self.superseded
    }

    /// Where what the queue's streams hold is counted.
    pub(in crate::streams) fn pinned(&self) -> &Arc<pinned::Account> {
        &self.queue.pinned
    }

    /// Notes what was taken out of the log, how many `bytes` it is on the wire, and how far behind the stream was before,
    /// in cookies.
    pub fn record(&self, delivery: &Delivery, bytes: usize, lag: u64) {
        let mut state = self.queue.state();
        state.account.totals.bytes += bytes as u64;
        if self.superseded.is_cancelled() {
            return;
        }
        state.lag.note(lag);
        match delivery {
            Delivery::Chunk { chunk, first } => state.account.deliver(*first, chunk.last()),
            Delivery::Gap {
                first,
                last,
                reason,
            } => state.account.lose(*first, *last, *reason),
            Delivery::Idle { .. } | Delivery::End { .. } => {}
        }
        let news = state.losing.note(delivery, Instant::now);
        drop(state);
        if let Some(news) = news.filter(|_| self.is_told()) {
            news.say(self.queue.pinned.name(), delivery);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if self.superseded.is_cancelled() {
            return;
        }
        state.connection = Connection::Ended {
            since: Instant::now(),
        };
        drop(state);
        if self.is_told() {
            let (subscriber, call) = self.queue.pinned.name();
            tracing::info!(subscriber, call, "subscriber disconnected");
        }
    }
}
