//! One gRPC call: reads its request from HTTP/2, writes its response, and ends it in every case.

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
    call_budget::{AddressShare, CallKind, Grant},
    pipe::{Data, Ended, Pipe, Sent},
};
use crate::streams::{
    Superseded,
    in_flight::InFlight,
    status::{draining, superseded},
};

/// How long a call may take until its response begins. Streaming calls report a late request themselves, after a
/// shorter time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a stream that was cut off may take to release what HTTP/2 has begun to write. After that its connection is
/// stuck as well, and is closed.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Most frames of a request that are read before the health or reflection service asks for them.
const AHEAD_FRAMES_MAX: usize = 16;

/// What a call needs from its connection.
pub(super) struct CallContext {
    pub(super) routes: Routes,
    /// The share of the call budget that its calls draw on.
    pub(super) share: AddressShare,
    /// The producer drains.
    pub(super) stopping: CancellationToken,
    /// Closes the connection at once.
    pub(super) close: CancellationToken,
}

/// The request without its headers, query and authority. The services do not use them, a client can make them long, and
/// some calls would keep them for hours.
pub(super) fn bare(request: Request<RecvStream>) -> Request<RecvStream> {
    let (head, body) = request.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.version_mut() = head.version;
    // Every path is a URI except `*`, which is not a call.
    *request.uri_mut() = head.uri.path().parse().unwrap_or_default();
    // A service refuses a compression that it does not know.
    if let Some(encoding) = head.headers.get("grpc-encoding") {
        let is_identity = encoding == "identity";
        let encoding = if is_identity { "identity" } else { "unknown" };
        let headers = request.headers_mut();
        headers.insert("grpc-encoding", HeaderValue::from_static(encoding));
    }
    request
}

/// Answers one call; the connection is not idle until HTTP/2 has taken the whole response.
pub(super) async fn run(
    request: Request<RecvStream>,
    mut respond: SendResponse<Data>,
    mut context: CallContext,
    grant: Grant,
    in_progress: InProgress,
) {
    let is_stream = CallKind::of(request.uri().path()) == CallKind::Stream;
    let grant = Arc::new(grant);
    // Aborted when the call ends.
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
    let answering = context.routes.call(request);
    let response = tokio::select! {
        biased;
        answered = timeout(ANSWER_TIMEOUT, answering) => match answered {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("the request's message did not come").into_http(),
        },
        () = context.stopping.cancelled() => draining().into_http(),
        () = grant.end().cancelled() => ended_early().into_http(),
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let (mut head, body) = response.into_parts();
    let in_flight = head.extensions.remove::<Arc<InFlight>>();
    let supersession = head.extensions.remove::<Superseded>();
    let Some(mut pipe) = begin(respond, head, body, in_flight.as_ref()) else {
        return;
    };
    // Streams end with the log; all other calls end as soon as the producer drains, or when others need what they hold.
    if is_stream {
        drop(grant);
        // While its window is closed, nobody polls its body, which would notice this too.
        if let Some(Superseded(supersession)) = supersession {
            pipe = pipe.ending_early(Box::pin(async move {
                supersession.cancelled().await;
                superseded()
            }));
        }
    } else {
        let stopping = context.stopping.clone();
        pipe = pipe.ending_early(Box::pin(async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => draining(),
                () = grant.end().cancelled() => ended_early(),
            }
        }));
    }
    // This drops the body, and with it the lease: the subscriber's next stream finds the queue free.
    let (ended, sent) = pipe.run().await;
    drop(in_progress);
    if let Some(in_flight) = in_flight {
        let is_stuck = wait_released(ended, sent, &in_flight, &context.share)
            .await
            .is_err();
        if is_stuck {
            context.close.cancel();
        }
    }
}

/// Waits until HTTP/2 has released the in-flight bytes of a stream that is over; it may still be cut off for them.
///
/// # Errors
/// When HTTP/2 does not release them after the stream was reset.
async fn wait_released(
    ended: Ended,
    mut sent: Sent,
    in_flight: &InFlight,
    share: &AddressShare,
) -> Result<(), Elapsed> {
    if in_flight.bytes() == 0 {
        if ended == Ended::Cut {
            sent.end(&held_too_much());
        }
        return Ok(());
    }
    // It no longer belongs to a subscriber, so nothing but the call budget bounds the number of such streams.
    let grant = share.open(CallKind::Stream, Instant::now());
    let end = async {
        match &grant {
            Some(grant) => grant.end().cancelled().await,
            // It may still be sending the end of the log.
            None => sleep(CUT_GRACE).await,
        }
    };
    let cut = in_flight.cut().cancelled();
    tokio::select! {
        biased;
        () = in_flight.released() => return Ok(()),
        () = cut => {}
        () = end => {}
    }
    sent.reset();
    timeout(CUT_GRACE, in_flight.released()).await
}

/// Sends the response headers; `None` when there is no body, or the client is gone.
fn begin(
    mut respond: SendResponse<Data>,
    head: http::response::Parts,
    body: tonic::body::Body,
    in_flight: Option<&Arc<InFlight>>,
) -> Option<Pipe> {
    let is_whole = body.is_end_stream();
    match respond.send_response(Response::from_parts(head, ()), is_whole) {
        Ok(out) => (!is_whole).then(|| Pipe::new(body, out, in_flight.map(Arc::clone))),
        Err(error) => {
            tracing::debug!(%error, "no response could be sent");
            respond.send_reset(Reason::INTERNAL_ERROR);
            None
        }
    }
}

/// Refuses a call without reading its request.
pub(super) fn refuse(mut respond: SendResponse<Data>, status: Status) {
    let (head, ()) = status.into_http::<()>().into_parts();
    if let Err(error) = respond.send_response(Response::from_parts(head, ()), true) {
        tracing::debug!(%error, "no refusal could be sent");
    }
}

fn ended_early() -> Status {
    Status::unavailable("ended early: all unfinished calls together hold too much")
}

fn held_too_much() -> Status {
    Status::resource_exhausted("all streams together held too much, and this one was read slowest")
}

/// The body of a request; reading releases flow-control capacity for more.
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

/// Reads a request on behalf of its service, which may stop reading while responses are unread, and may keep the
/// request after the call. A client that sends more than `read` has room for is not read any further.
async fn read_ahead(mut body: RequestBody, read: mpsc::Sender<Result<Frame<Bytes>, Status>>) {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Without the copy, a short frame would keep its 8 KiB receive buffer alive.
        let frame = frame.map(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
        if read.try_send(frame).is_err() {
            return;
        }
    }
}

/// A request that is read ahead.
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
