//! Answers over HTTP/2 on their way: a client that does not take them holds its own places, and is cut off as a slow reader.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use runtime::listen::{Activity, Unread};

use super::places::Place;

/// An answer's body.
pub(super) struct Sent<B> {
    body: B,
    kept: Option<Kept>,
}

#[derive(Clone)]
struct Kept {
    activity: Arc<Activity>,
    place: Option<Arc<Place>>,
}

/// Bytes that the client has yet to make room for.
struct Chunk {
    bytes: Bytes,
    _unread: Unread,
    _place: Option<Arc<Place>>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B> Sent<B> {
    /// Over HTTP/1.1 nothing is kept: a connection has one answer at a time.
    pub(super) fn alone(body: B) -> Self {
        Self { body, kept: None }
    }

    /// Over HTTP/2: keeps the place until the last byte has gone.
    pub(super) fn beside_others(
        body: B,
        activity: Arc<Activity>,
        place: Option<Arc<Place>>,
    ) -> Self {
        let kept = Some(Kept { activity, place });
        Self { body, kept }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Some(kept) = &self.kept else {
            return polled;
        };
        let keep = |bytes: Bytes| {
            Bytes::from_owner(Chunk {
                bytes,
                _unread: kept.activity.unread(),
                _place: kept.place.clone(),
            })
        };
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(keep))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
