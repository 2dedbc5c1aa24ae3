//! Opens a stream: connects, sends all cursors, and receives the producer's `Hello`.

use proto::{
    client,
    limits::RECEIVE_WINDOW_BYTES,
    units::UnixMicros,
    v1::{self, StartPosition, SubscribeRequest, event::Event},
    wire::StreamMessage,
};
use runtime::connect::Connector;
use tonic::{Streaming, transport::Channel};

use super::{Subscription, sequence::ProtocolViolation, stream_end::StreamEnd};
use crate::batch::Cursor;

/// Total bytes of all receive windows, which limit sent but unread bytes. Enough for three producers with windows of the
/// maximum size.
const WINDOWS_BYTES: u32 = 3 * RECEIVE_WINDOW_BYTES;

/// Minimum bytes of a stream's window: one second of 10,000 cookies per second.
const WINDOW_BYTES_MIN: u32 = 1 << 20;

/// The receive window of each of `streams` streams.
fn window_bytes(streams: usize) -> u32 {
    let streams = u32::try_from(streams).unwrap_or(u32::MAX).max(1);
    (WINDOWS_BYTES / streams).clamp(WINDOW_BYTES_MIN, RECEIVE_WINDOW_BYTES)
}

/// A connection, and the connector that adds the token to its calls.
type Connection = (Channel, Connector);

impl Subscription {
    /// Connects and receives the producer's `Hello`. Also returns the time of the request, for the comparison of clocks.
    pub(super) async fn handshake(
        &self,
        cursors: &[Cursor],
    ) -> Result<(v1::Hello, Streaming<bytes::Bytes>, Connection, UnixMicros), StreamEnd> {
        let (mut stream, connection, sent) = self.open(cursors).await?;
        match self.receive(&mut stream).await? {
            StreamMessage::Event(Event::Hello(hello)) => Ok((hello, stream, connection, sent)),
            _ => Err(self.violation(ProtocolViolation::new("the first message is not Hello"))),
        }
    }

    async fn open(
        &self,
        cursors: &[Cursor],
    ) -> Result<(Streaming<bytes::Bytes>, Connection, UnixMicros), StreamEnd> {
        let unreachable = |error: tonic::transport::Error| StreamEnd::Unreachable(chain(&error));
        let origin = self.origin.parse().map_err(|_| {
            StreamEnd::Unreachable(format!("invalid producer URL `{}`", self.origin))
        })?;
        let addresses = self.context.producers.snapshot().addresses.len();
        let window_bytes = window_bytes(addresses.max(self.context.producers_min));
        let endpoint = client::endpoint(format!("http://{}", self.address()))
            .map_err(unreachable)?
            .initial_stream_window_size(window_bytes)
            .initial_connection_window_size(window_bytes)
            .origin(origin);
        let host = (self.producer.host.as_str(), self.producer.https);
        let (network, security) = (&self.context.network, &self.context.security);
        let connector = Connector::new(network, self.address(), host, security)
            .map_err(StreamEnd::Unreachable)?;
        let request = SubscribeRequest {
            subscriber: self.context.name.clone(),
            cursors: cursors.iter().map(wire_cursor).collect(),
            start: StartPosition::Oldest.into(),
            window_bytes,
            supports_age: true,
        };
        let opened = async {
            let channel = connector.connect(&endpoint).await.map_err(unreachable)?;
            let request = connector.request(request);
            let sent = self.context.producers.steady_now();
            let subscribed = client::subscribe(channel.clone(), request).await?;
            Ok::<_, StreamEnd>((subscribed.into_inner(), channel, sent))
        };
        match (opened.await, connector.failure()) {
            (Ok((stream, channel, sent)), _) => Ok((stream, (channel, connector), sent)),
            // The error of the connection is more specific than that of the call.
            (Err(_), Some(trouble)) => Err(StreamEnd::Unreachable(trouble.to_owned())),
            (Err(ended), None) => Err(ended),
        }
    }
}

fn wire_cursor(cursor: &Cursor) -> v1::Cursor {
    v1::Cursor {
        producer_id: cursor.producer.to_string(),
        epoch: cursor.epoch.0,
        sequence: cursor.sequence.0,
    }
}

/// An error and its causes, as one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !line.ends_with(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
        source = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_share_a_budget_within_their_minimum_and_maximum() {
        for (streams, mebibytes) in [
            (0, 32),
            (1, 32),
            (3, 32),
            (4, 24),
            (8, 12),
            (96, 1),
            (1_000, 1),
            (usize::MAX, 1),
        ] {
            assert_eq!(window_bytes(streams), mebibytes << 20, "{streams}");
        }
    }
}
