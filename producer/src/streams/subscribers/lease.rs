//! A stream's exclusive right to its queue, through which it records what it delivers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{Connection, Queue};
use crate::{log::Delivery, streams::in_flight::QueueInFlight};

/// A stream whose beginning was not logged must last this long before its events are logged.
const LOGGED_AFTER: Duration = Duration::from_secs(10);

/// The right to stream one queue; dropping it starts the queue's retention.
#[derive(Debug)]
pub struct Lease {
    queue: Arc<Queue>,
    pub(super) superseded: CancellationToken,
    is_logged: bool,
    logged_from: Instant,
}

impl Lease {
    /// The lease of a stream that has just taken `queue`. A stream whose beginning `is_logged` is logged all along.
    pub(super) fn new(
        queue: Arc<Queue>,
        superseded: CancellationToken,
        is_logged: bool,
        now: Instant,
    ) -> Self {
        Self {
            queue,
            superseded,
            is_logged,
            logged_from: if is_logged { now } else { now + LOGGED_AFTER },
        }
    }

    /// Whether the log names this stream when it opens: see `log_limit.rs`.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// From when on the log names this stream: a client could fill the log with short streams under made-up names.
    pub(in crate::streams) fn logged_from(&self) -> Instant {
        self.logged_from
    }

    fn may_log(&self) -> bool {
        Instant::now() >= self.logged_from
    }

    /// Cancelled when another stream of the same name has taken the queue.
    #[must_use]
    pub fn supersession(&self) -> &CancellationToken {
        &self.superseded
    }

    /// Counts the in-flight bytes of the queue's streams.
    pub(in crate::streams) fn in_flight(&self) -> &Arc<QueueInFlight> {
        &self.queue.in_flight
    }

    /// Records what was taken out of the log, its size on the wire in `bytes`, and how far behind the stream was
    /// before, in cookies.
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
        let change = state.loss_log.note(delivery, Instant::now);
        drop(state);
        if let Some(change) = change.filter(|_| self.may_log()) {
            change.log(self.queue.in_flight.name(), delivery);
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
        if self.may_log() {
            let (subscriber, call) = self.queue.in_flight.name();
            tracing::info!(subscriber, call, "subscriber disconnected");
        }
    }
}
