//! The body of a streaming response: deliveries of the log become HTTP/2 data frames, its end becomes trailers.

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
    wire,
};
use tokio_util::sync::ReusableBoxFuture;
use tonic::Status;

use super::{
    Superseded,
    cookie_messages::CookieMessages,
    in_flight::InFlight,
    status::{draining, superseded, trailers},
    subscribers::Lease,
};
use crate::log::{Delivery, GapReason, Reader};

/// The messages in which a stream sends its deliveries.
#[derive(Debug)]
pub(super) enum Form {
    /// Events, of which this is the first.
    Events(v1::Hello),
    /// Single cookies, encoded once for all streams.
    Cookies(Arc<CookieMessages>),
}

/// One stream: its lease, its position in the log, and its form.
#[derive(Debug)]
pub(super) struct Session {
    lease: Lease,
    reader: Reader,
    form: Form,
    in_flight: Arc<InFlight>,
}

/// What the body does next.
enum Step {
    Data(Bytes),
    /// The last event, and the status after it.
    Last(Bytes, Status),
    End(Status),
}

impl Session {
    pub(super) fn new(lease: Lease, reader: Reader, form: Form, in_flight: Arc<InFlight>) -> Self {
        Self {
            lease,
            reader,
            form,
            in_flight,
        }
    }

    async fn step(mut self) -> (Self, Step) {
        let step = loop {
            let delivery = tokio::select! {
                biased;
                () = self.lease.superseded.cancelled() => {
                    break Step::End(superseded());
                }
                delivery = self.reader.next() => delivery,
            };
            let data = match &self.form {
                Form::Events(_) => Some(event_message(&delivery)),
                Form::Cookies(messages) => match &delivery {
                    Delivery::Chunk { chunk, first } => Some(messages.of(chunk, *first)),
                    Delivery::Gap { .. } | Delivery::Idle { .. } | Delivery::End { .. } => None,
                },
            };
            let bytes = data.as_ref().map_or(0, Bytes::len);
            self.lease.record(&delivery, bytes, self.reader.lag());
            match (data, &delivery) {
                (Some(goodbye), Delivery::End { .. }) => break Step::Last(goodbye, draining()),
                (None, Delivery::End { .. }) => break Step::End(draining()),
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

/// The response body of one stream.
pub(super) struct StreamBody {
    state: State,
    /// Counts its in-flight bytes.
    pub(super) in_flight: Arc<InFlight>,
    pub(super) superseded: Superseded,
    /// Reused for every delivery, to save an allocation.
    step: ReusableBoxFuture<'static, (Session, Step)>,
}

enum State {
    Hello(Bytes),
    Streaming,
    /// The last event was sent; this status follows.
    Ending(Status),
    Ended,
}

impl StreamBody {
    pub(super) fn new(session: Session) -> Self {
        let state = match &session.form {
            Form::Events(hello) => State::Hello(wire::encode_event(Event::Hello(hello.clone()))),
            Form::Cookies(_) => State::Streaming,
        };
        Self {
            state,
            in_flight: Arc::clone(&session.in_flight),
            superseded: Superseded(session.lease.superseded.clone()),
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
        match std::mem::replace(&mut self.state, State::Streaming) {
            State::Hello(hello) => return Poll::Ready(Some(Ok(Frame::data(hello)))),
            State::Streaming => {}
            State::Ending(status) => {
                self.state = State::Ended;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))));
            }
            State::Ended => {
                self.state = State::Ended;
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
                self.state = State::Ending(status);
                Frame::data(data)
            }
            Step::End(status) => {
                self.state = State::Ended;
                Frame::trailers(trailers(&status))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }
}
