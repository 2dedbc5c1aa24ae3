//! Writes a response body into an HTTP/2 stream: takes the next frame, then waits until HTTP/2 can send or buffer at least
//! one byte of it.
//!
//! At most one frame waits here and counts as in flight, because the log cannot drop a chunk that was taken. A stream
//! without data reserves no capacity, because a reserved byte would be missing from the shared window of the
//! connection. A client that extends its window only after the last byte would then never extend it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h2::SendStream;
use http::HeaderMap;
use http_body::Body;
use tonic::Status;

use super::status::trailers;
use crate::streams::in_flight::{Charge, InFlight};

/// A frame that is charged until HTTP/2 has written or discarded it.
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
pub(super) enum PipeEnd {
    /// HTTP/2 has taken the complete response, the client has reset the stream, or the connection is closed.
    Ended,
    /// The stream was disconnected because all streams together exceeded the budget of in-flight bytes.
    Disconnected,
}

/// Resolves when a response must end early: to its status, or to `None` if the stream is disconnected.
type Interrupt = Pin<Box<dyn Future<Output = Option<Status>> + Send>>;

/// One response that is being sent.
pub(super) struct Pipe {
    body: tonic::body::Body,
    out: SendStream<Data>,
    in_flight: Option<Arc<InFlight>>,
    interrupt: Interrupt,
    /// The frame that waits for capacity, and whether it is the last.
    next: Option<(Data, bool)>,
}

impl Pipe {
    /// Sends `body`, whose frames are charged to `in_flight`. Ends the response with the status of `early_end` as soon as
    /// `early_end` resolves, unless the body has already ended.
    pub(super) fn new(
        body: tonic::body::Body,
        out: SendStream<Data>,
        in_flight: Option<Arc<InFlight>>,
        early_end: impl Future<Output = Status> + Send + 'static,
    ) -> Self {
        let disconnect = in_flight.as_ref().map(|it| it.disconnect().clone());
        let disconnect = disconnect.unwrap_or_default();
        let interrupt = async move {
            tokio::select! {
                biased;
                () = disconnect.cancelled() => None,
                status = early_end => Some(status),
            }
        };
        Self {
            body,
            out,
            in_flight,
            interrupt: Box::pin(interrupt),
            next: None,
        }
    }

    /// Sends the complete body and drops it. Its data may not be written yet.
    pub(super) async fn run(mut self) -> (PipeEnd, SendStream<Data>) {
        let ended = std::future::poll_fn(|context| self.poll(context)).await;
        (ended, self.out)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<PipeEnd> {
        loop {
            if self.out.poll_reset(context).is_ready() {
                return Poll::Ready(PipeEnd::Ended);
            }
            if let Poll::Ready(status) = self.interrupt.as_mut().poll(context) {
                let ended = status.map(|status| end(&mut self.out, trailers(&status)));
                return Poll::Ready(ended.unwrap_or(PipeEnd::Disconnected));
            }
            if self.next.is_none() {
                let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
                if let Some(ended) = self.accept_frame(frame) {
                    return Poll::Ready(ended);
                }
            }
            if !ready!(self.poll_capacity(context)) {
                return Poll::Ready(PipeEnd::Ended);
            }
            let Some((data, last)) = self.next.take() else {
                continue;
            };
            if self.out.send_data(data, last).is_err() || last {
                return Poll::Ready(PipeEnd::Ended);
            }
        }
    }

    /// Waits until HTTP/2 accepts at least one byte; false if the stream is closed.
    fn poll_capacity(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.out.reserve_capacity(1);
        while self.out.capacity() == 0 {
            match ready!(self.out.poll_capacity(context)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }

    /// Makes a frame the next one to be sent; sends trailers immediately.
    fn accept_frame(
        &mut self,
        frame: Option<Result<http_body::Frame<Bytes>, Status>>,
    ) -> Option<PipeEnd> {
        let (bytes, last) = match frame.transpose() {
            Ok(None) => (Bytes::new(), true),
            Ok(Some(frame)) => match frame.into_data() {
                Ok(bytes) => (bytes, self.body.is_end_stream()),
                // A frame is either data or trailers; any other frame would be skipped.
                Err(frame) => {
                    let trailers = frame.into_trailers().ok();
                    return trailers.map(|trailers| end(&mut self.out, trailers));
                }
            },
            Err(status) => return Some(end(&mut self.out, trailers(&status))),
        };
        let charge = self.in_flight.as_ref();
        let _charge = charge.map(|in_flight| in_flight.charge(bytes.len()));
        self.next = Some((Data { bytes, _charge }, last));
        None
    }
}

/// Ends a response with these trailers, after all data that was sent.
pub(super) fn end(out: &mut SendStream<Data>, trailers: HeaderMap) -> PipeEnd {
    out.reserve_capacity(0);
    if let Err(error) = out.send_trailers(trailers) {
        tracing::debug!(%error, "stream closed before its trailers were sent");
    }
    PipeEnd::Ended
}

#[cfg(test)]
mod tests;
