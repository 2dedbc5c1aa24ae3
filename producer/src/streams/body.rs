//! Body of a streaming response: turns deliveries of the log into HTTP/2 data frames, and the end of the stream into trailers.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use proto::{
    v1::{self, event::Event},
    wire::{self, IdleMessage},
};
use tokio_util::sync::ReusableBoxFuture;
use tonic::Status;

use super::{
    SupersedeToken,
    cookie_messages::CookieMessages,
    in_flight::InFlight,
    status::{draining, superseded, trailers},
    subscribers::Lease,
    times_to_live::Unsent,
};
use crate::log::{Delivery, GapReason, Reader};

/// Message format of a stream.
#[derive(Debug)]
pub(super) enum MessageFormat {
    /// Events, beginning with this `Hello`; times to live between the deliveries.
    Events(v1::Hello, Unsent),
    /// One message per cookie, encoded once for all streams; heartbeats between them.
    Cookies(Arc<CookieMessages>, IdleMessage),
}

/// One stream: its lease, its reader of the log, and its message format.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: Lease,
    pub(super) reader: Reader,
    pub(super) format: MessageFormat,
    pub(super) in_flight: Arc<InFlight>,
}

/// The next action of a body.
enum Step {
    Data(Bytes),
    /// The last message, and the status after it.
    Last(Bytes, Status),
    End(Status),
}

impl MessageFormat {
    fn end(&mut self, status: Status) -> Step {
        let data = match self {
            Self::Events(..) => None,
            Self::Cookies(_, idle) => idle.end(),
        };
        match data {
            Some(data) => Step::Last(data, status),
            None => Step::End(status),
        }
    }
}

impl Session {
    async fn step(mut self) -> (Self, Step) {
        let step = loop {
            if let MessageFormat::Events(_, unsent) = &mut self.format
                && let Some(message) = unsent.take()
            {
                break Step::Data(message);
            }
            let delivery = tokio::select! {
                biased;
                () = self.lease.superseded.cancelled() => {
                    break self.format.end(superseded());
                }
                delivery = self.reader.next() => delivery,
            };
            let data = match &mut self.format {
                MessageFormat::Events(..) => Some(event_message(&delivery)),
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
                (Some(goodbye), Delivery::End { .. }) => break Step::Last(goodbye, draining()),
                (None, Delivery::End { .. }) => break self.format.end(draining()),
                // The chunk contains only deletions, and the reader did not request deletions.
                (Some(data), _) if data.is_empty() => {}
                (Some(data), _) => break Step::Data(data),
                (None, _) => {}
            }
        };
        (self, step)
    }
}

fn event_message(delivery: &Delivery) -> Bytes {
    let event = match *delivery {
        Delivery::Chunk { ref chunk, first } => return chunk.wire_from(first),
        Delivery::Gap {
            first,
            last,
            reason,
        } => Event::Gap(v1::Gap {
            first_sequence: first,
            last_sequence: last,
            reason: match reason {
                GapReason::LagLimit => v1::GapReason::LagLimit,
                GapReason::Evicted => v1::GapReason::Evicted,
            }
            .into(),
        }),
        Delivery::Idle { next } => Event::Heartbeat(v1::Heartbeat {
            next_sequence: next,
        }),
        Delivery::End { last } => Event::Goodbye(v1::Goodbye {
            final_sequence: last,
        }),
    };
    wire::encode_event(event)
}

/// Response body of one stream.
pub(super) struct StreamBody {
    state: BodyState,
    /// Counter of its in-flight bytes.
    pub(super) in_flight: Arc<InFlight>,
    pub(super) superseded: SupersedeToken,
    /// Reused for every delivery, to save an allocation.
    step: ReusableBoxFuture<'static, (Session, Step)>,
}

enum BodyState {
    Hello(Bytes),
    Streaming,
    /// The last message was sent; trailers with this status follow.
    Ending(Status),
    Ended,
}

impl StreamBody {
    pub(super) fn new(session: Session) -> Self {
        let state = match &session.format {
            MessageFormat::Events(hello, _) => {
                BodyState::Hello(wire::encode_event(Event::Hello(hello.clone())))
            }
            MessageFormat::Cookies(..) => BodyState::Streaming,
        };
        Self {
            state,
            in_flight: Arc::clone(&session.in_flight),
            superseded: SupersedeToken(session.lease.superseded.clone()),
            step: ReusableBoxFuture::new(session.step()),
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match std::mem::replace(&mut self.state, BodyState::Streaming) {
            BodyState::Hello(hello) => return Poll::Ready(Some(Ok(Frame::data(hello)))),
            BodyState::Streaming => {}
            BodyState::Ending(status) => {
                self.state = BodyState::Ended;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))));
            }
            BodyState::Ended => {
                self.state = BodyState::Ended;
                return Poll::Ready(None);
            }
        }
        let (session, step) = ready!(self.step.poll(context));
        let frame = match step {
            Step::Data(data) => {
                self.step.set(session.step());
                Frame::data(data)
            }
            Step::Last(data, status) => {
                self.state = BodyState::Ending(status);
                Frame::data(data)
            }
            Step::End(status) => {
                self.state = BodyState::Ended;
                Frame::trailers(trailers(&status))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }
}
