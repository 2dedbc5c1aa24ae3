//! Body of a streaming response: turns the steps of a session into HTTP/2 data frames, and its end into trailers.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio_util::sync::ReusableBoxFuture;

use super::status::trailers;
use crate::streams::{CallError, Session, Step};

/// Response body of one stream.
pub(super) struct StreamBody {
    state: BodyState,
    /// Reused for every delivery, to save an allocation.
    step: ReusableBoxFuture<'static, (Session, Step)>,
}

enum BodyState {
    Streaming,
    /// The last message was sent; trailers follow.
    Ending(CallError),
    Ended,
}

impl StreamBody {
    pub(super) fn new(session: Session) -> Self {
        Self {
            state: BodyState::Streaming,
            step: ReusableBoxFuture::new(session.step()),
        }
    }

    fn end(&mut self, end: CallError) -> Frame<Bytes> {
        self.state = BodyState::Ended;
        Frame::trailers(trailers(&end.into()))
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.state {
            BodyState::Streaming => {}
            BodyState::Ending(end) => return Poll::Ready(Some(Ok(self.end(end)))),
            BodyState::Ended => return Poll::Ready(None),
        }
        let (session, step) = ready!(self.step.poll(context));
        let frame = match step {
            Step::Data(data) => {
                self.step.set(session.step());
                Frame::data(data)
            }
            Step::End(Some(data), end) => {
                self.state = BodyState::Ending(end);
                Frame::data(data)
            }
            Step::End(None, end) => self.end(end),
        };
        Poll::Ready(Some(Ok(frame)))
    }
}
