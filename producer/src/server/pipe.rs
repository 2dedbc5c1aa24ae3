//! A response body into an HTTP/2 stream: room first, then the next frame.
//!
//! What is taken out of the log is beyond the reach of drop-oldest, so nothing is taken before HTTP/2 can send or
//! buffer at least one byte of it. That byte's room is kept while the log has nothing to give: h2 wakes whoever is
//! given room, so a stream that gave it back and asked again at each poll would wake itself without end. What it costs the other
//! streams of its connection is one byte of their common window.

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

use crate::streams::pinned::{self, Hold};

/// A frame in the hands of HTTP/2, which drops it when it is written or of no use any more.
#[derive(Debug)]
pub(super) struct Data {
    bytes: Bytes,
    _pin: Option<pinned::Pin>,
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

/// How a response came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All of it is in the hands of HTTP/2.
    Whole,
    /// The client has reset the stream, or the connection is gone.
    Gone,
    /// It was cut off for what it holds.
    Cut,
}

type Cancelled = Pin<Box<WaitForCancellationFutureOwned>>;

/// When a response is to end early, and how.
pub(super) type Until = Pin<Box<dyn Future<Output = Status> + Send>>;

/// One response on its way.
pub(super) struct Pipe {
    body: tonic::body::Body,
    out: SendStream<Data>,
    hold: Option<Arc<Hold>>,
    cut: Option<Cancelled>,
    until: Option<Until>,
}

impl Pipe {
    /// Sends `body`; what it holds counts for `hold`.
    pub(super) fn new(
        body: tonic::body::Body,
        out: SendStream<Data>,
        hold: Option<Arc<Hold>>,
    ) -> Self {
        let cut = hold
            .as_ref()
            .map(|hold| Box::pin(hold.cut().clone().cancelled_owned()));
        Self {
            body,
            out,
            hold,
            cut,
            until: None,
        }
    }

    /// Ends with the status of `until` as soon as there is one, if the body has not ended before.
    pub(super) fn until(mut self, until: Until) -> Self {
        self.until = Some(until);
        self
    }

    /// Sends until the end. The body is dropped with it; what was sent may not be written yet.
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
            if let Some(until) = &mut self.until
                && let Poll::Ready(status) = until.as_mut().poll(context)
            {
                return Poll::Ready(self.trailers(&status));
            }
            if !ready!(self.poll_room(context)) {
                return Poll::Ready(Ended::Gone);
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            if let Some(ended) = self.send(frame) {
                return Poll::Ready(ended);
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

    fn send(&mut self, frame: Option<Result<http_body::Frame<Bytes>, Status>>) -> Option<Ended> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => return Some(self.trailers(&status)),
            None => return Some(self.data(Bytes::new(), true)),
        };
        match frame.into_data() {
            Ok(bytes) => {
                let last = self.body.is_end_stream();
                let ended = self.data(bytes, last);
                (ended != Ended::Whole || last).then_some(ended)
            }
            // Neither data nor trailers: no other frame is known.
            Err(frame) => frame
                .into_trailers()
                .ok()
                .map(|trailers| self.send_trailers(trailers)),
        }
    }

    fn data(&mut self, bytes: Bytes, last: bool) -> Ended {
        let pin = self.hold.as_ref().map(|hold| hold.pin(bytes.len()));
        let data = Data { bytes, _pin: pin };
        match self.out.send_data(data, last) {
            Ok(()) => Ended::Whole,
            Err(_) => Ended::Gone,
        }
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

/// What of a response HTTP/2 has got, after its end.
pub(super) struct Sent(SendStream<Data>);

impl Sent {
    /// Resets the stream, which lets go what HTTP/2 has not begun to write.
    ///
    /// gRPC clients take this reason for `RESOURCE_EXHAUSTED`.
    pub(super) fn reset(&mut self) {
        self.0.send_reset(Reason::ENHANCE_YOUR_CALM);
    }

    /// Ends the stream with `status`, after what was sent.
    pub(super) fn end(mut self, status: &Status) {
        self.0.reserve_capacity(0);
        if let Err(error) = self.0.send_trailers(trailers(status)) {
            tracing::debug!(%error, "a stream was gone before its end");
        }
    }
}

fn trailers(status: &Status) -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::debug!(%error, "status does not fit a header");
    }
    trailers
}

#[cfg(test)]
mod tests;
