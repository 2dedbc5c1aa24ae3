//! A stream's exclusive right to its queue, through which it records what it delivers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::{Connection, Queue};
use crate::{log::Delivery, log_gate::LogGate, streams::in_flight::QueueInFlight};

/// The right to stream one queue; dropping it starts the queue's retention.
#[derive(Debug)]
pub struct Lease {
    pub(super) queue: Arc<Queue>,
    /// Cancelled when another stream of the same name has taken the queue.
    pub(in crate::streams) superseded: CancellationToken,
    pub(super) log_gate: Arc<Mutex<LogGate>>,
}

impl Lease {
    /// Whether one more line about a subscriber may be logged; says how many could not be before.
    pub(in crate::streams) fn may_log(&self) -> bool {
        let mut gate = self.log_gate.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = gate.admit(Instant::now());
        if let Some(lines) = admitted.filter(|left_out| *left_out > 0) {
            tracing::info!(lines, "lines about subscribers were left out");
        }
        admitted.is_some()
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
        match *delivery {
            Delivery::Chunk { ref chunk, first } => state.account.deliver(first, chunk.last()),
            Delivery::Gap {
                first,
                last,
                reason,
            } => {
                state.account.lose(first, last, reason);
                let left_out = state.loss_log.admit(Instant::now());
                drop(state);
                if let Some(more_gaps) = left_out.filter(|_| self.may_log()) {
                    let (subscriber, call) = self.queue.in_flight.name();
                    tracing::warn!(
                        subscriber,
                        call,
                        first,
                        last,
                        ?reason,
                        more_gaps,
                        "subscriber is too far behind: cookies are lost"
                    );
                }
            }
            Delivery::Idle { .. } | Delivery::End { .. } => {}
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
