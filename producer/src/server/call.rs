//! One gRPC call: its request out of HTTP/2, its response back into it, and its end in every case.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame};
use runtime::listen::InProgress;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, error::Elapsed, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};
use tower::Service;

use super::{
    budget::{Grant, Kind, Share},
    pipe::{Data, Ended, Pipe, Sent},
};
use crate::streams::{self, Superseded, pinned::Hold};

/// How long a call may take until its answer begins: the streams wait as long for their request's message, which then
/// says so itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a stream that was cut off may take to let go what HTTP/2 has begun to write. Then its connection, which is
/// as stuck as it, is closed.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Most frames of a request that are read before a service that is no stream asks for them.
const AHEAD_FRAMES_MAX: usize = 16;

/// What a call needs of its connection.
pub(super) struct Surroundings {
    pub(super) routes: Routes,
    /// What of the budget of bytes is for its calls.
    pub(super) share: Share,
    /// The producer drains.
    pub(super) stopping: CancellationToken,
    /// Closes the connection at once.
    pub(super) close: CancellationToken,
}

/// The request without what the services do not look at: headers, a query and an authority, which a client may make long, and
/// which some calls would keep for hours.
pub(super) fn bare(request: Request<RecvStream>) -> Request<RecvStream> {
    let (head, body) = request.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.version_mut() = head.version;
    // A path is a URI, but for `*`, which is no call.
    *request.uri_mut() = head.uri.path().parse().unwrap_or_default();
    // A service that does not know the compression says so.
    if let Some(encoding) = head.headers.get("grpc-encoding") {
        let is_identity = encoding == "identity";
        let encoding = if is_identity { "identity" } else { "unknown" };
        let headers = request.headers_mut();
        headers.insert("grpc-encoding", HeaderValue::from_static(encoding));
    }
    request
}

/// Answers one call; the connection is not idle until all of its answer is in the hands of HTTP/2.
pub(super) async fn run(
    request: Request<RecvStream>,
    mut respond: SendResponse<Data>,
    mut around: Surroundings,
    grant: Grant,
    in_progress: InProgress,
) {
    let is_stream = Kind::of(request.uri().path()) == Kind::Stream;
    let grant = Arc::new(grant);
    // Ends with the call.
    let mut reading = JoinSet::new();
    let request = request.map(|stream| {
        let body = RequestBody {
            stream,
            grant: Arc::clone(&grant),
        };
        if is_stream {
            return tonic::body::Body::new(body);
        }
        let (read, ahead) = mpsc::channel(AHEAD_FRAMES_MAX);
        reading.spawn(read_ahead(body, read));
        tonic::body::Body::new(Ahead(ahead))
    });
    let answering = around.routes.call(request);
    let response = tokio::select! {
        biased;
        answered = timeout(ANSWER_TIMEOUT, answering) => match answered {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("the request's message did not come").into_http(),
        },
        () = around.stopping.cancelled() => draining().into_http(),
        () = grant.end().cancelled() => hurried().into_http(),
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let (mut head, body) = response.into_parts();
    let hold = head.extensions.remove::<Arc<Hold>>();
    let superseded = head.extensions.remove::<Superseded>();
    let Some(mut pipe) = begin(respond, head, body, hold.as_ref()) else {
        return;
    };
    // The log's end ends streams; all other calls end as soon as the producer drains, or others need what they hold.
    if is_stream {
        drop(grant);
        // Its window may be closed, so that nobody asks its body.
        if let Some(Superseded(superseded)) = superseded {
            pipe = pipe.until(Box::pin(async move {
                superseded.cancelled().await;
                streams::superseded()
            }));
        }
    } else {
        let stopping = around.stopping.clone();
        pipe = pipe.until(Box::pin(async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => draining(),
                () = grant.end().cancelled() => hurried(),
            }
        }));
    }
    // The body is gone by then: the subscriber's next stream does not have to take the queue.
    let (ended, sent) = pipe.run().await;
    drop(in_progress);
    if let Some(hold) = hold {
        let is_stuck = let_go(ended, sent, &hold, &around.share).await.is_err();
        if is_stuck {
            around.close.cancel();
        }
    }
}

/// Waits until HTTP/2 has let go what the stream holds, which may be cut off for it also after its end.
///
/// # Errors
/// When it keeps what was cut off.
async fn let_go(ended: Ended, mut sent: Sent, hold: &Hold, share: &Share) -> Result<(), Elapsed> {
    if hold.bytes() == 0 {
        if ended == Ended::Cut {
            sent.end(&held_too_much());
        }
        return Ok(());
    }
    // It is no subscriber's any more, so nothing else bounds how many there are of its kind.
    let grant = share.open(Kind::Stream, Instant::now());
    let end = async {
        match &grant {
            Some(grant) => grant.end().cancelled().await,
            // It may be the log's end that is on its way.
            None => sleep(CUT_GRACE).await,
        }
    };
    let cut = hold.cut().cancelled();
    tokio::select! {
        biased;
        () = hold.released() => return Ok(()),
        () = cut => {}
        () = end => {}
    }
    sent.reset();
    timeout(CUT_GRACE, hold.released()).await
}

/// Sends the head; `None` when there is no body, or nobody to send it to.
fn begin(
    mut respond: SendResponse<Data>,
    head: http::response::Parts,
    body: tonic::body::Body,
    hold: Option<&Arc<Hold>>,
) -> Option<Pipe> {
    let is_whole = body.is_end_stream();
    match respond.send_response(Response::from_parts(head, ()), is_whole) {
        Ok(out) => (!is_whole).then(|| Pipe::new(body, out, hold.map(Arc::clone))),
        Err(error) => {
            tracing::debug!(%error, "no response could be sent");
            respond.send_reset(Reason::INTERNAL_ERROR);
            None
        }
    }
}

/// Answers a call without looking at it.
pub(super) fn refuse(mut respond: SendResponse<Data>, status: Status) {
    let (head, ()) = status.into_http::<()>().into_parts();
    if let Err(error) = respond.send_response(Response::from_parts(head, ()), true) {
        tracing::debug!(%error, "no refusal could be sent");
    }
}

fn draining() -> Status {
    Status::unavailable("the producer is shutting down")
}

fn hurried() -> Status {
    Status::unavailable("ended early: all unfinished calls together hold too much")
}

fn held_too_much() -> Status {
    Status::resource_exhausted("all streams together held too much, and this one was read slowest")
}

/// The body of a request; what was read makes room for more.
struct RequestBody {
    stream: RecvStream,
    grant: Arc<Grant>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(data) = ready!(self.stream.poll_data(context)) {
            let data = data.map_err(broken)?;
            if !self.grant.receive(data.len(), Instant::now()) {
                let message = "all unfinished requests together hold too much";
                return Poll::Ready(Some(Err(Status::resource_exhausted(message))));
            }
            let flow = self.stream.flow_control();
            flow.release_capacity(data.len()).map_err(broken)?;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.stream.poll_trailers(context)).map_err(broken)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// Reads a request for its service, which may not ask for it for as long as answers wait, nor let it go when the call is over. A
/// client that sends more than `read` has room for has sent all that is answered.
async fn read_ahead(mut body: RequestBody, read: mpsc::Sender<Result<Frame<Bytes>, Status>>) {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Alone, a short frame would keep the 8 KiB that it was received with.
        let frame = frame.map(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
        if read.try_send(frame).is_err() {
            return;
        }
    }
}

/// What of a request was read ahead.
struct Ahead(mpsc::Receiver<Result<Frame<Bytes>, Status>>);

impl Body for Ahead {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_recv(context)
    }
}

fn broken(error: h2::Error) -> Status {
    Status::from_error(error.into())
}
