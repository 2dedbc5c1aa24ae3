//! Confirms to a producer the sequence number up to which this node has stored its records: once a second while the
//! position changes, and immediately when deletions become durable or take effect. Each reply measures the producer's clock, so the
//! same position is confirmed again from time to time.

use std::{net::SocketAddr, ops::Range, sync::Arc, time::Duration};

use proto::{
    client,
    units::{Epoch, Sequence, UnixMicros},
    v1,
};
use runtime::connect::Connector;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Status, transport::Channel};

use super::Context;

/// Interval of confirmations of a changing position.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval of confirmations of the same position.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout for the producer's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A consumer whose confirmations fail for this time is not ready.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);

/// The confirmations of one stream.
pub(super) struct Confirmations {
    pub(super) context: Arc<Context>,
    /// The connection of the stream.
    pub(super) channel: Channel,
    /// Adds the current token, which may change while the stream is open.
    pub(super) connector: Connector,
    pub(super) address: SocketAddr,
    pub(super) producer: Arc<str>,
    pub(super) epoch: Epoch,
}

/// The position up to which the deletions have taken effect.
///
/// A busy retry queue always has deletions. So a durable position is kept until all its deletions have taken effect,
/// while newer deletions are queued.
#[derive(Debug, Default)]
pub(crate) struct AppliedPosition {
    applied: Sequence,
    /// A durable position, and the number of the next deletion at that time.
    kept: (Sequence, u64),
}

impl AppliedPosition {
    /// Updates and returns the position; see [`unapplied`](crate::deletions::Deletions::unapplied).
    pub(crate) fn advance(&mut self, durable: Sequence, unapplied: &Range<u64>) -> Sequence {
        let (position, next) = self.kept;
        if unapplied.start >= next {
            self.applied = position;
            self.kept = (durable, unapplied.end);
        }
        if unapplied.is_empty() {
            self.applied = durable;
        }
        self.applied
    }
}

impl Confirmations {
    /// Sends confirmations until the future is dropped.
    pub(super) async fn run(self) {
        let mut changes = self.context.deletions.changes();
        let mut applied = AppliedPosition::default();
        let (mut reported, mut reported_at) = (Default::default(), Instant::now());
        let mut failing_since = None;
        loop {
            changes.mark_unchanged();
            let position = self.context.producers.durable(&self.producer);
            let durable = position.filter(|it| it.epoch == self.epoch);
            let durable = durable.map(|it| it.sequence).unwrap_or_default();
            // The deletions are read after the position, so that they include all deletions up to it.
            let applied = applied.advance(durable, &self.context.deletions.unapplied());
            if reported != (durable, applied) || reported_at.elapsed() >= CLOCK_INTERVAL {
                let since = *failing_since.get_or_insert_with(Instant::now);
                match self.report(durable, applied).await {
                    Ok(()) => {
                        (reported, reported_at) = ((durable, applied), Instant::now());
                        failing_since = None;
                        self.set_failure(None);
                    }
                    Err(status) if since.elapsed() >= FAILURE_TIMEOUT => {
                        self.set_failure(Some(&status));
                    }
                    Err(_) => {}
                }
            }
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }

    async fn report(&self, durable: Sequence, applied: Sequence) -> Result<(), Status> {
        let request = v1::ConfirmRequest {
            subscriber: self.context.name.clone(),
            durable: Some(v1::Cursor {
                producer_id: self.producer.to_string(),
                epoch: self.epoch.0,
                sequence: durable.0,
            }),
            applied_sequence: applied.0,
        };
        let request = self.connector.request(request);
        let producers = &self.context.producers;
        let sent = producers.steady_now();
        let confirmed = client::confirm(self.channel.clone(), request);
        let confirmed = timeout(REPLY_TIMEOUT, confirmed).await;
        let confirmed = confirmed
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply to a confirmation")));
        let confirmed = confirmed.inspect_err(|status| {
            tracing::debug!(producer = &*self.producer, %status, "failed to confirm stored records");
        });
        producers.measure_clock(&self.producer, sent, UnixMicros(confirmed?));
        Ok(())
    }

    /// Records why confirmations fail, or that they succeed; logs a change.
    fn set_failure(&self, status: Option<&Status>) {
        let why = status.map(|status| format!("{}: {}", status.code(), status.message()));
        let (address, producer) = (self.address, &*self.producer);
        let producers = &self.context.producers;
        match (producers.set_unconfirmed(address, why.as_deref()), why) {
            (false, Some(why)) => tracing::warn!(
                %address, producer, why,
                "failed to confirm stored records, retrying; deletions do not complete on this producer"
            ),
            (true, None) => tracing::info!(%address, producer, "stored records confirmed again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_advances_while_newer_deletions_are_queued() {
        let mut applied = AppliedPosition::default();
        let mut advance = |durable, unapplied| applied.advance(Sequence(durable), &unapplied).0;
        assert_eq!(advance(10, 1..1), 10, "all have taken effect");
        assert_eq!(advance(20, 1..3), 10);
        assert_eq!(
            advance(30, 2..5),
            10,
            "the second is older than position 20"
        );
        assert_eq!(advance(40, 3..6), 20);
        assert_eq!(advance(50, 5..8), 20, "the fifth is older than position 40");
        assert_eq!(advance(60, 6..9), 40);
        assert_eq!(advance(70, 9..9), 70);
    }
}
