//! One stream: turns deliveries of the log into messages.

use std::sync::Arc;

use bytes::Bytes;
use proto::wire::IdleMessage;
use tokio_util::sync::CancellationToken;

use super::{
    call::CallError, cookie_messages::CookieMessages, in_flight::InFlight, subscribers::Lease,
    times_to_live::Unsent,
};
use crate::log::{Delivery, Reader};

/// Message format of a stream.
#[derive(Debug)]
pub(super) enum MessageFormat {
    /// Events, beginning with this `Hello`; times to live between the deliveries.
    Events(Option<Bytes>, Unsent),
    /// One message per cookie, encoded once for all streams; heartbeats between them.
    Cookies(Arc<CookieMessages>, IdleMessage),
}

/// One stream: its lease, its reader of the log, and its message format.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) lease: Lease,
    pub(super) reader: Reader,
    pub(super) format: MessageFormat,
    /// Counter of its in-flight bytes.
    pub(crate) in_flight: Arc<InFlight>,
}

/// The next action of a stream.
pub(crate) enum Step {
    /// Send messages.
    Data(Bytes),
    /// End the stream, after the last message, if any.
    End(Option<Bytes>, CallError),
}

impl MessageFormat {
    fn end(&mut self, end: CallError) -> Step {
        let data = match self {
            Self::Events(..) => None,
            Self::Cookies(_, idle) => idle.end(),
        };
        Step::End(data, end)
    }
}

impl Session {
    /// Cancelled when a newer stream of the same subscriber supersedes this one.
    pub(crate) fn superseded(&self) -> &CancellationToken {
        &self.lease.superseded
    }

    /// Returns the next step, and the session for the step after it.
    pub(crate) async fn step(mut self) -> (Self, Step) {
        let step = loop {
            if let MessageFormat::Events(hello, unsent) = &mut self.format
                && let Some(message) = hello.take().or_else(|| unsent.take())
            {
                break Step::Data(message);
            }
            let delivery = tokio::select! {
                biased;
                () = self.lease.superseded.cancelled() => {
                    break self.format.end(CallError::Superseded);
                }
                delivery = self.reader.next() => delivery,
            };
            let data = match &mut self.format {
                MessageFormat::Events(..) => Some(delivery.event()),
                MessageFormat::Cookies(messages, idle) => match &delivery {
                    Delivery::Chunk { chunk, first } => {
                        Some(idle.complete(messages.of(chunk, *first)))
                    }
                    Delivery::Idle { .. } => idle.second(),
                    Delivery::Gap { .. } | Delivery::End { .. } => None,
                },
            };
            let bytes = data.as_ref().map_or(0, Bytes::len);
            self.lease.record(&delivery, bytes, self.reader.lag());
            match (data, &delivery) {
                (Some(goodbye), Delivery::End { .. }) => {
                    break Step::End(Some(goodbye), CallError::Draining);
                }
                (None, Delivery::End { .. }) => break self.format.end(CallError::Draining),
                // The chunk contains only deletions, and the reader did not request deletions.
                (Some(data), _) if data.is_empty() => {}
                (Some(data), _) => break Step::Data(data),
                (None, _) => {}
            }
        };
        (self, step)
    }
}
