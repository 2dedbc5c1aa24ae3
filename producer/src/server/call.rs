//! One gRPC call: reads its request from HTTP/2 and writes its response.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, server::SendResponse};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame};
use runtime::listen::InProgress;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{error::Elapsed, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};
use tower::Service;

use super::{
    calls::{Grant, is_stream},
    pipe::{self, Data, Pipe, PipeEnd},
    status::trailers,
};
use crate::streams::{CallError, in_flight::InFlight};

/// Time limit until the response begins. Streaming calls have a shorter limit for their request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit for a disconnected stream to release bytes that HTTP/2 has begun to write. Beyond it, the connection is closed.
const RELEASE_GRACE: Duration = Duration::from_secs(1);

/// Time limit for a client to read the rest of an ended stream.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of request frames buffered for the health and reflection services.
const BUFFERED_FRAMES_MAX: usize = 16;

/// State of the connection that a call uses.
pub(super) struct CallContext {
    pub(super) routes: Routes,
    /// Cancelled when the producer drains.
    pub(super) stopping: CancellationToken,
    /// Closes the connection immediately.
    pub(super) close: CancellationToken,
}

/// Removes headers, query and authority of a request. The services do not use them, and long calls would keep them in memory.
pub(super) fn strip_headers(request: Request<RecvStream>) -> Request<RecvStream> {
    let (head, body) = request.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.version_mut() = head.version;
    // Every path is a URI except `*`, which does not name a call.
    *request.uri_mut() = head.uri.path().parse().unwrap_or_default();
    // Kept so that services reject unknown compressions.
    if let Some(encoding) = head.headers.get("grpc-encoding") {
        let is_identity = encoding == "identity";
        let encoding = if is_identity { "identity" } else { "unknown" };
        let headers = request.headers_mut();
        headers.insert("grpc-encoding", HeaderValue::from_static(encoding));
    }
    request
}

/// Handles one call. `in_progress` is held until HTTP/2 has taken the complete response.
pub(super) async fn run(
    request: Request<RecvStream>,
    mut respond: SendResponse<Data>,
    mut context: CallContext,
    grant: Grant,
    in_progress: InProgress,
) {
    let is_stream = is_stream(request.uri().path());
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
        let (sender, receiver) = mpsc::channel(BUFFERED_FRAMES_MAX);
        reading.spawn(buffer_request(body, sender));
        tonic::body::Body::new(BufferedRequest(receiver))
    });
    let responding = context.routes.call(request);
    let response = tokio::select! {
        biased;
        responded = timeout(RESPONSE_TIMEOUT, responding) => match responded {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("request message not received in time").into_http(),
        },
        () = context.stopping.cancelled() => Status::from(CallError::Draining).into_http(),
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let (mut head, body) = response.into_parts();
    let in_flight = head.extensions.remove::<Arc<InFlight>>();
    // Streams end with the log. All other calls end when the producer drains.
    let (early_end, error) = match is_stream {
        // The body checks this too, but is not polled while the window is closed.
        true => (head.extensions.remove(), CallError::Superseded),
        false => (Some(context.stopping.clone()), CallError::Draining),
    };
    let early_end: CancellationToken = early_end.unwrap_or_default();
    let early_end = async move {
        early_end.cancelled().await;
        error.into()
    };
    let Some((body, out)) = send_headers(respond, head, body) else {
        return;
    };
    if is_stream {
        drop(grant);
    }
    let pipe = Pipe::new(body, out, in_flight.clone(), early_end);
    // This drops the body and its lease, so that the subscriber counts as disconnected.
    let (ended, out) = pipe.run().await;
    drop(in_progress);
    if let Some(in_flight) = in_flight {
        let is_stuck = wait_released(ended, out, &in_flight, &context.stopping)
            .await
            .is_err();
        if is_stuck {
            context.close.cancel();
        }
    }
}

/// Waits until HTTP/2 has released the in-flight bytes of an ended stream. Until then, the stream can still be
/// disconnected because of these bytes.
///
/// # Errors
/// When HTTP/2 does not release them after the stream was reset.
async fn wait_released(
    ended: PipeEnd,
    mut out: SendStream<Data>,
    in_flight: &InFlight,
    stopping: &CancellationToken,
) -> Result<(), Elapsed> {
    if in_flight.bytes() == 0 {
        if ended == PipeEnd::Disconnected {
            let message =
                "slow subscriber: bytes in flight to all streams exceed --in-flight-bytes";
            pipe::end(&mut out, trailers(&Status::resource_exhausted(message)));
        }
        return Ok(());
    }
    let end = async {
        sleep(UNREAD_TIMEOUT).await;
        // A draining producer sends the end of the log until its own deadline.
        if stopping.is_cancelled() {
            pending::<()>().await;
        }
    };
    let disconnect = in_flight.disconnect().cancelled();
    tokio::select! {
        biased;
        () = in_flight.released() => return Ok(()),
        () = disconnect => {}
        () = end => {}
    }
    // This releases data that HTTP/2 has not begun to write. gRPC clients map the reason to `RESOURCE_EXHAUSTED`.
    out.send_reset(Reason::ENHANCE_YOUR_CALM);
    timeout(RELEASE_GRACE, in_flight.released()).await
}

/// Sends the response headers; `None` without a body, or if the client has disconnected.
fn send_headers(
    mut respond: SendResponse<Data>,
    head: http::response::Parts,
    body: tonic::body::Body,
) -> Option<(tonic::body::Body, SendStream<Data>)> {
    let has_no_body = body.is_end_stream();
    match respond.send_response(Response::from_parts(head, ()), has_no_body) {
        Ok(out) => (!has_no_body).then_some((body, out)),
        Err(error) => {
            tracing::debug!(%error, "failed to send a response");
            respond.send_reset(Reason::INTERNAL_ERROR);
            None
        }
    }
}

/// Rejects a call without reading its request.
pub(super) fn reject(mut respond: SendResponse<Data>, status: Status) {
    let (head, ()) = status.into_http::<()>().into_parts();
    if let Err(error) = respond.send_response(Response::from_parts(head, ()), true) {
        tracing::debug!(%error, "failed to reject a call");
    }
}

/// Body of a request. Reading releases flow-control capacity.
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
            let data = data.map_err(to_status)?;
            self.grant.receive(data.len())?;
            let flow = self.stream.flow_control();
            flow.release_capacity(data.len()).map_err(to_status)?;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.stream.poll_trailers(context)).map_err(to_status)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// Reads a request into `sender` for its service, which may stop reading while its responses are unread. Stops when the buffer
/// is full.
async fn buffer_request(mut body: RequestBody, sender: mpsc::Sender<Result<Frame<Bytes>, Status>>) {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Copied, because a short frame would keep its 8 KiB receive buffer in memory.
        let frame = frame.map(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
        if sender.try_send(frame).is_err() {
            return;
        }
    }
}

/// Body of a request that is buffered by [`buffer_request`].
struct BufferedRequest(mpsc::Receiver<Result<Frame<Bytes>, Status>>);

impl Body for BufferedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_recv(context)
    }
}

fn to_status(error: h2::Error) -> Status {
    Status::from_error(error.into())
}
