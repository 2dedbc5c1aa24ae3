//! One gRPC call: its request out of HTTP/2, its response back into it, and its end in every case.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use cookiesync::process::listen::InProgress;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::time::{error::Elapsed, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};
use tower::Service;

use super::pipe::{Data, Ended, Pipe, Sent};
use crate::streams::pinned::Hold;

/// The calls that the log's end ends; all others end as soon as the producer drains.
const STREAMS_PATH: &str = "/cookiesync.v1.CookieStreamer/";

/// How long a call may take until its answer begins: the streams wait as long for their request's message, which then
/// says so itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a stream that was cut off may take to let go what HTTP/2 has begun to write. Then its connection, which is
/// as stuck as it, is closed.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// What a call needs of its connection.
pub(super) struct Surroundings {
    pub(super) routes: Routes,
    /// The producer drains.
    pub(super) stopping: CancellationToken,
    /// Closes the connection at once.
    pub(super) close: CancellationToken,
}

/// Answers one call; the connection is not idle until all of its answer is in the hands of HTTP/2.
pub(super) async fn run(
    request: Request<RecvStream>,
    mut respond: SendResponse<Data>,
    mut around: Surroundings,
    in_progress: InProgress,
) {
    let until = (!request.uri().path().starts_with(STREAMS_PATH))
        .then(|| Box::pin(around.stopping.clone().cancelled_owned()));
    let answering = around.routes.call(request.map(RequestBody));
    let response = tokio::select! {
        biased;
        answered = timeout(ANSWER_TIMEOUT, answering) => match answered {
            Ok(Ok(response)) => response,
            Err(_) => Status::deadline_exceeded("the request's message did not come").into_http(),
        },
        () = around.stopping.cancelled() => draining().into_http(),
        _ = std::future::poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let (mut head, body) = response.into_parts();
    let hold = head.extensions.remove::<Arc<Hold>>();
    let Some(mut pipe) = begin(respond, head, body, hold.as_ref()) else {
        return;
    };
    if let Some(until) = until {
        pipe = pipe.until(until, draining());
    }
    // The body is gone by then: the subscriber's next stream does not have to take the queue.
    let (ended, sent) = pipe.run().await;
    drop(in_progress);
    if let Some(hold) = hold {
        let is_stuck = let_go(ended, sent, &hold).await.is_err();
        if is_stuck {
            around.close.cancel();
        }
    }
}

/// Waits until HTTP/2 has let go what the stream holds, which may be cut off for it also after its end.
///
/// # Errors
/// When it keeps what was cut off.
async fn let_go(ended: Ended, mut sent: Sent, hold: &Hold) -> Result<(), Elapsed> {
    if ended == Ended::Cut && hold.bytes() == 0 {
        sent.end(&held_too_much());
        return Ok(());
    }
    let cut = hold.cut().cancelled();
    tokio::select! {
        biased;
        () = hold.released() => return Ok(()),
        () = cut => {}
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

fn held_too_much() -> Status {
    Status::resource_exhausted("all streams together held too much, and this one was read slowest")
}

/// The body of a request; what was read makes room for more.
struct RequestBody(RecvStream);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if let Some(data) = ready!(self.0.poll_data(context)) {
            let data = data?;
            self.0.flow_control().release_capacity(data.len())?;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(self.0.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
