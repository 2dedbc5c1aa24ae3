//! Writes a response body into an HTTP/2 stream: takes the next frame, then waits until HTTP/2 can send or buffer at least
//! one byte of it.
//!
//! The log can no longer drop what was taken out of it, so at most one frame waits here; it counts as in flight. A stream
//! with nothing to send reserves no capacity: a reserved byte is missing in the window that all streams of the connection
//! share, and a client that opens its window only when that is used up would never do so.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use http_body::Body;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use crate::streams::{
    in_flight::{Charge, InFlight},
    status::trailers,
};

/// A frame that HTTP/2 has taken; it drops it when it is written or no longer needed.
#[derive(Debug)]
pub(super) struct Data {
    bytes: Bytes,
    _charge: Option<Charge>,
}

impl Buf for Data {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// HTTP/2 has taken all of it.
    Whole,
    /// The client has reset the stream, or the connection is closed.
    Gone,
    /// It was cut off because all streams together exceeded the budget of in-flight bytes.
    Cut,
}

type Cancelled = Pin<Box<WaitForCancellationFutureOwned>>;

/// Resolves when a response must end early, to the status it ends with.
pub(super) type EarlyEnd = Pin<Box<dyn Future<Output = Status> + Send>>;

/// One response that is being sent.
pub(super) struct Pipe {
    body: tonic::body::Body,
    out: SendStream<Data>,
    in_flight: Option<Arc<InFlight>>,
    cut: Option<Cancelled>,
    early_end: Option<EarlyEnd>,
    /// Waits for capacity; and whether it is the last.
    next: Option<(Data, bool)>,
}

impl Pipe {
    /// Sends `body`, whose frames are charged to `in_flight`.
    pub(super) fn new(
        body: tonic::body::Body,
        out: SendStream<Data>,
        in_flight: Option<Arc<InFlight>>,
    ) -> Self {
        let cut = in_flight
            .as_ref()
            .map(|in_flight| Box::pin(in_flight.cut().clone().cancelled_owned()));
        Self {
            body,
            out,
            in_flight,
            cut,
            early_end: None,
            next: None,
        }
    }

    /// Ends the response with the status of `early_end` as soon as that resolves, unless the body has ended before.
    pub(super) fn ending_early(mut self, early_end: EarlyEnd) -> Self {
        self.early_end = Some(early_end);
        self
    }

    /// Sends the body to its end and drops it; what was sent may not be written yet.
    pub(super) async fn run(mut self) -> (Ended, Sent) {
        let ended = std::future::poll_fn(|context| self.poll(context)).await;
        (ended, Sent(self.out))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        loop {
            if self.out.poll_reset(context).is_ready() {
                return Poll::Ready(Ended::Gone);
            }
            if let Some(cut) = &mut self.cut
                && cut.as_mut().poll(context).is_ready()
            {
                self.cut = None;
                return Poll::Ready(Ended::Cut);
            }
            if let Some(early_end) = &mut self.early_end
                && let Poll::Ready(status) = early_end.as_mut().poll(context)
            {
                return Poll::Ready(self.trailers(&status));
            }
            if self.next.is_none() {
                let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
                if let Some(ended) = self.take(frame) {
                    return Poll::Ready(ended);
                }
            }
            if !ready!(self.poll_room(context)) {
                return Poll::Ready(Ended::Gone);
            }
            let Some((data, last)) = self.next.take() else {
                continue;
            };
            match self.out.send_data(data, last) {
                Ok(()) if last => return Poll::Ready(Ended::Whole),
                Ok(()) => {}
                Err(_) => return Poll::Ready(Ended::Gone),
            }
        }
    }

    /// Waits until HTTP/2 takes at least one byte; false when the stream is gone.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.out.reserve_capacity(1);
        while self.out.capacity() == 0 {
            match ready!(self.out.poll_capacity(context)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }

    /// Makes a frame the next to be sent, or sends it if it ends the response.
    fn take(&mut self, frame: Option<Result<http_body::Frame<Bytes>, Status>>) -> Option<Ended> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => return Some(self.trailers(&status)),
            None => return self.queue(Bytes::new(), true),
        };
        match frame.into_data() {
            Ok(bytes) => {
                let last = self.body.is_end_stream();
                self.queue(bytes, last)
            }
            // A frame that is neither data nor trailers is skipped; there is no other kind today.
            Err(frame) => frame
                .into_trailers()
                .ok()
                .map(|trailers| self.send_trailers(trailers)),
        }
    }

    fn queue(&mut self, bytes: Bytes, last: bool) -> Option<Ended> {
        let charge = self.in_flight.as_ref();
        let charge = charge.map(|in_flight| in_flight.charge(bytes.len()));
        let data = Data {
            bytes,
            _charge: charge,
        };
        self.next = Some((data, last));
        None
    }

    fn trailers(&mut self, status: &Status) -> Ended {
        self.send_trailers(trailers(status))
    }

    fn send_trailers(&mut self, trailers: http::HeaderMap) -> Ended {
        self.out.reserve_capacity(0);
        match self.out.send_trailers(trailers) {
            Ok(()) => Ended::Whole,
            Err(_) => Ended::Gone,
        }
    }
}

/// The sending side of a response that has ended.
pub(super) struct Sent(SendStream<Data>);

impl Sent {
    /// Resets the stream, which releases what HTTP/2 has not begun to write.
    ///
    /// gRPC clients map this reason to `RESOURCE_EXHAUSTED`.
    pub(super) fn reset(&mut self) {
        self.0.send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Ends the stream with `status`, after everything that was sent.
    pub(super) fn end(mut self, status: &Status) {
        self.0.reserve_capacity(0);
        if let Err(error) = self.0.send_trailers(trailers(status)) {
            tracing::debug!(%error, "a stream was gone before its end");
        }
    }
}

#[cfg(test)]
mod tests;
