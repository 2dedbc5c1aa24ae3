//! The lease of a subscriber: the exclusive right of one stream to record its deliveries.

use std::{sync::Arc, time::Instant};

use tokio_util::sync::CancellationToken;

use super::{StreamStart, StreamState, Subscriber, SubscribersShared};
use crate::{log::Delivery, streams::in_flight::SubscriberInFlight};

/// The lease of one subscriber. Dropping it starts the retention time.
#[derive(Debug)]
pub struct Lease {
    pub(super) subscriber: Arc<Subscriber>,
    /// Cancelled when a newer stream of the same name supersedes this one.
    pub(in crate::streams) superseded: CancellationToken,
    /// Where the stream begins.
    pub(in crate::streams) start: StreamStart,
    pub(super) shared: Arc<SubscribersShared>,
}

impl Lease {
    /// Whether a message about the start or end of a stream may be logged; logs the number of suppressed messages.
    pub(in crate::streams) fn may_log(&self) -> bool {
        let admitted = self.shared.stream_log.admit(Instant::now());
        if let Some(lines) = admitted.filter(|suppressed| *suppressed > 0) {
            tracing::info!(lines, "log messages about subscribers were suppressed");
        }
        admitted.is_some()
    }

    /// Counter of the in-flight bytes of this subscriber's streams.
    pub(in crate::streams) fn in_flight(&self) -> &Arc<SubscriberInFlight> {
        &self.subscriber.in_flight
    }

    /// Records a delivery with its size on the wire in bytes, and the lag in cookies before it.
    pub fn record(&self, delivery: &Delivery, bytes: usize, lag: u64) {
        let mut state = self.subscriber.state.lock();
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
                let all = || self.shared.loss_log.admit(now).is_some();
                let suppressed = state.loss_log.admit_if(now, all);
                drop(state);
                if let Some(more_gaps) = suppressed {
                    let (subscriber, call) = self.subscriber.in_flight.name();
                    tracing::warn!(
                        subscriber,
                        call,
                        first = first.0,
                        last = last.0,
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
        let mut state = self.subscriber.state.lock();
        if self.superseded.is_cancelled() {
            return;
        }
        state.stream = StreamState::Ended {
            since: Instant::now(),
        };
        drop(state);
        if self.may_log() {
            let (subscriber, call) = self.subscriber.in_flight.name();
            tracing::info!(subscriber, call, "subscriber disconnected");
        }
    }
}
