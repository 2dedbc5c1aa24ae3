//! A response that ends when the port does.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, body::Body};

use super::super::places::InFlight;

/// The messages of a call that may last, until its service, its client or the port ends it.
pub(super) struct UntilStop {
    body: Body,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    is_over: bool,
    _in_flight: InFlight,
}

impl UntilStop {
    pub(super) fn new(body: Body, stop: CancellationToken, in_flight: InFlight) -> Self {
        Self {
            body,
            stop: Box::pin(stop.cancelled_owned()),
            is_over: false,
            _in_flight: in_flight,
        }
    }
}

impl http_body::Body for UntilStop {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.stop.as_mut().poll(context).is_ready() {
            self.is_over = true;
            let mut trailers = HeaderMap::new();
            let status = Status::unavailable("the limiter is being stopped");
            let trailers = status.add_header(&mut trailers).map(|()| trailers);
            return Poll::Ready(Some(trailers.map(Frame::trailers)));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }
}
