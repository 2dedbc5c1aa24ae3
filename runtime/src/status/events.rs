//! A stream of server-sent events: one sample each, the newest whenever the viewer takes one.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

/// The media type.
pub(super) const TYPE: &str = "text/event-stream";

/// An event that carries one line of JSON.
pub(super) fn event(json: &[u8]) -> Bytes {
    // A line end in a text is escaped in JSON, so no data ends the event early.
    Bytes::from([b"data: ", json, b"\n\n"].concat())
}

/// A place among the viewers, and the count of it.
pub(super) struct Viewer {
    _permit: OwnedSemaphorePermit,
    viewing: IntGauge,
}

impl Viewer {
    pub(super) fn new(permit: OwnedSemaphorePermit, viewing: IntGauge) -> Self {
        viewing.inc();
        Self {
            _permit: permit,
            viewing,
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.viewing.dec();
    }
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, watch::Receiver<Bytes>)>> + Send>>;

/// The body of the stream. It makes an event only when the connection asks for one, and takes the newest sample then.
pub(super) struct Events {
    first: Option<Bytes>,
    next: Next,
    stop: CancellationToken,
    _viewer: Viewer,
}

impl Events {
    /// Sends the event of `first` and then every new one, until `stop`.
    pub(super) fn new(
        first: &[u8],
        newest: watch::Receiver<Bytes>,
        stop: CancellationToken,
        viewer: Viewer,
    ) -> Self {
        // A browser that lost the stream asks again after a second.
        let first = [b"retry: 1000\n", &*event(first)].concat();
        Self {
            first: Some(Bytes::from(first)),
            next: Box::pin(next(newest, stop.clone())),
            stop,
            _viewer: viewer,
        }
    }
}

async fn next(
    mut newest: watch::Receiver<Bytes>,
    stop: CancellationToken,
) -> Option<(Bytes, watch::Receiver<Bytes>)> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        changed = newest.changed() => {
            changed.ok()?;
            let event = newest.borrow_and_update().clone();
            Some((event, newest))
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some((event, newest)) = ready!(self.next.as_mut().poll(context)) else {
            return Poll::Ready(None);
        };
        self.next = Box::pin(next(newest, self.stop.clone()));
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}
