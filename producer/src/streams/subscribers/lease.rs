//! A stream's exclusive right to its queue, through which it records what it delivers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{Connection, Queue};
use crate::{log::Delivery, log_gate::LogGate, streams::in_flight::QueueInFlight};

/// What is logged of all subscribers together. Losses have a gate of their own, so that a client that only opens and closes
/// streams does not keep them out of the log.
#[derive(Debug)]
pub(super) struct LogGates {
    streams: LogGate,
    losses: LogGate,
}

impl LogGates {
    pub(super) fn new(lines_max: u32, interval: Duration) -> Self {
        Self {
            streams: LogGate::new(lines_max, interval),
            losses: LogGate::new(lines_max, interval),
        }
    }
}

/// The right to stream one queue; dropping it starts the queue's retention.
#[derive(Debug)]
pub struct Lease {
    pub(super) queue: Arc<Queue>,
    /// Cancelled when another stream of the same name has taken the queue.
    pub(in crate::streams) superseded: CancellationToken,
    pub(super) log_gates: Arc<LogGates>,
}

impl Lease {
    /// Whether one more line about a stream that begins or ends may be logged; says how many could not be before.
    pub(in crate::streams) fn may_log(&self) -> bool {
        let admitted = self.log_gates.streams.admit(Instant::now());
        if let Some(lines) = admitted.filter(|left_out| *left_out > 0) {
            tracing::info!(lines, "log messages about subscribers were suppressed");
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
        state.lag.record(lag);
        match *delivery {
            Delivery::Chunk { ref chunk, first } => state.account.deliver(first, chunk.last()),
            Delivery::Gap {
                first,
                last,
                reason,
            } => {
                state.account.lose(first, last, reason);
                let now = Instant::now();
                let all = || self.log_gates.losses.admit(now).is_some();
                let left_out = state.loss_log.admit_if(now, all);
                drop(state);
                if let Some(more_gaps) = left_out {
                    let (subscriber, call) = self.queue.in_flight.name();
                    tracing::warn!(
                        subscriber,
                        call,
                        first,
                        last,
                        ?reason,
                        more_gaps,
                        "subscriber lags too far behind; cookies lost"
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
