//! gRPC on the lookup port: `cookiesync.v1.Lookup/Get`.

use std::{
    borrow::Cow,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use prost::Message as _;
use proto::v1::{LookupRequest, LookupResponse};
use runtime::listen::{Activity, ByteStream, InProgress};
use tokio::{
    io::AsyncReadExt as _,
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status,
    server::{Grpc, UnaryService},
};
use tonic_prost::ProstCodec;

use super::{
    answer::EncodedUsers,
    metrics::Api,
    port::{LookupPort, label_of},
    request::{BODY_BYTES_MAX, BatchRequest, DEADLINE_DEFAULT, DEADLINE_MAX, Rejection},
};

/// The only call.
const PATH: &str = "/cookiesync.v1.Lookup/Get";

/// Maximum concurrent calls of a connection.
const CALLS_MAX: u32 = 32;

/// Maximum bytes of headers, and of the flow-control windows.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
const WINDOW_BYTES: u32 = 64 << 10;

/// Maximum time to receive and answer a request.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a response to reach the client before its deadline; at most a quarter of the deadline.
const RESPONSE_TIME: Duration = Duration::from_millis(5);

/// Interval of keepalive pings, and timeout of the reply.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Each unread answer counts at least this many bytes.
const ANSWER_BYTES_MIN: usize = 4 << 10;

/// Maximum time in which the client must read an answer.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(10);

/// Number of answers above which those that were read are forgotten.
const UNREAD_MAX: usize = 4 * CALLS_MAX as usize;

/// Serves calls until the client closes the connection or `stop` is cancelled. `input` was read before.
pub(super) async fn serve(
    port: Arc<LookupPort>,
    stream: impl ByteStream,
    input: Vec<u8>,
    activity: &Arc<Activity>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let reader = std::io::Cursor::new(input).chain(reader);
    let stream = TokioIo::new(tokio::io::join(reader, writer));
    activity.set_multiplexed();
    let activity = Arc::clone(activity);
    let (unread, refused) = (Arc::new(Unread::default()), CancellationToken::new());
    let (answers, refuse) = (Arc::clone(&unread), refused.clone());
    let service = service_fn(move |request| {
        let (port, in_progress) = (Arc::clone(&port), activity.long_request());
        let (answers, refuse) = (Arc::clone(&answers), refuse.clone());
        async move {
            let response = call(&port, request, &refuse).await;
            let permit = response.extensions().get().cloned();
            let answer = Arc::new(UnreadAnswer {
                _permit: permit,
                _in_progress: in_progress,
            });
            answers.add(&answer);
            Ok::<_, Infallible>(response.map(|body| AnswerBody { body, answer }))
        }
    });
    let mut protocol = http2::Builder::new(TokioExecutor::new());
    protocol
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let serving = async {
        let mut connection = std::pin::pin!(protocol.serve_connection(stream, service));
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => {}
            () = refused.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        ended = serving => Ok(ended?),
        () = unread.are_stalled() => anyhow::bail!("an answer was not read in time"),
    }
}

/// Answers one call. Cancels `refuse` if the connection must be closed.
async fn call(
    port: &Arc<LookupPort>,
    request: Request<Incoming>,
    refuse: &CancellationToken,
) -> Response<tonic::body::Body> {
    let began = Instant::now();
    let refused = |status: Status, label| {
        port.count(Api::Grpc, label, began);
        status.into_http()
    };
    if let Err(problem) = port.admit(request.headers(), request.uri()) {
        let label = label_of(problem.kind.status);
        let status = match problem.kind.status {
            StatusCode::UNAUTHORIZED => Status::unauthenticated(problem.detail),
            _ => Status::permission_denied(problem.detail),
        };
        refuse.cancel();
        return refused(status, label);
    }
    if request.uri().path() != PATH {
        let why = format!("unknown method; this port serves {PATH}");
        return refused(Status::unimplemented(why), "not_found");
    }
    let permit = match port.begin() {
        Ok(permit) => permit,
        Err(rejection) => return refused(rejection.status(), rejection.label()),
    };
    let outcome = Arc::new(OnceLock::new());
    let service = Get {
        port: Arc::clone(port),
        outcome: Arc::clone(&outcome),
        permit: Some(permit),
        deadline: deadline(request.headers()),
    };
    let codec = ProstCodec::<EncodedUsers, LookupRequest>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(BODY_BYTES_MAX);
    match timeout(CALL_TIMEOUT, grpc.unary(service, request)).await {
        // tonic's status for a message above the limit.
        Ok(response) if Status::from_header_map(response.headers()).is_some_and(is_too_large) => {
            let why = format!("the request is longer than {BODY_BYTES_MAX} bytes");
            refused(Status::resource_exhausted(why), "too_large")
        }
        Ok(response) => {
            // Without an outcome, tonic has rejected the message.
            let label = outcome.get().copied().unwrap_or("invalid");
            port.count(Api::Grpc, label, began);
            response
        }
        Err(_) => {
            let why = "the request was not received in time";
            refused(Status::deadline_exceeded(why), "invalid")
        }
    }
}

fn is_too_large(status: Status) -> bool {
    status.code() == Code::OutOfRange
}

/// The call `Get`.
struct Get {
    port: Arc<LookupPort>,
    outcome: Arc<OnceLock<&'static str>>,
    /// The permit to receive the request and to wait for the store.
    permit: Option<OwnedSemaphorePermit>,
    deadline: Duration,
}

impl UnaryService<LookupRequest> for Get {
    type Response = EncodedUsers;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<EncodedUsers>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<LookupRequest>) -> Self::Future {
        let received = Instant::now();
        let (port, permit, deadline) = (Arc::clone(&self.port), self.permit.take(), self.deadline);
        let outcome = Arc::clone(&self.outcome);
        Box::pin(async move {
            let answered = answer(&port, request.get_ref(), permit, received, deadline).await;
            let label = match &answered {
                Ok((_, is_complete)) if *is_complete => "ok",
                Ok(_) => "partial",
                Err(rejection) => rejection.label(),
            };
            outcome.set(label).ok();
            answered
                .map(|(response, _)| response)
                .map_err(|it| it.status())
        })
    }
}

/// The response, and whether it is complete.
async fn answer(
    port: &LookupPort,
    request: &LookupRequest,
    permit: Option<OwnedSemaphorePermit>,
    received: Instant,
    deadline: Duration,
) -> Result<(tonic::Response<EncodedUsers>, bool), Rejection> {
    let users = request.user_ids.iter();
    let users = users.map(|user_id| Cow::Borrowed(&**user_id));
    let request = BatchRequest::new(users, &request.dsp_ids, deadline)?;
    let result = port.read(&request, received, permit).await?;
    let mut response = EncodedUsers::default();
    port.write(&request, &result, &mut response).await;
    let unavailable = LookupResponse {
        unavailable_dsps: result.unavailable().iter().map(|it| it.0).collect(),
        ..LookupResponse::default()
    };
    unavailable.encode_raw(&mut response.output);
    // tonic copies the response into a buffer of its size.
    let permit = port.charge(response.output.len().max(ANSWER_BYTES_MIN))?;
    let is_complete = result.is_complete(&request);
    let mut response = tonic::Response::new(response);
    response.extensions_mut().insert(Arc::new(permit));
    Ok((response, is_complete))
}

impl Rejection {
    fn status(&self) -> Status {
        match self {
            Self::Invalid(why) => Status::invalid_argument(why),
            Self::TooLarge(why) => Status::resource_exhausted(why),
            Self::Busy => Status::resource_exhausted("too many calls or answers in progress"),
            Self::Unavailable(why) => Status::unavailable(format!("cannot read the store: {why}")),
        }
    }
}

/// The deadline of a call: that of `grpc-timeout`, which has up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Duration {
    let stated = headers.get("grpc-timeout").and_then(|value| {
        let (digits, unit) = value
            .to_str()
            .ok()?
            .split_at_checked(value.len().checked_sub(1)?)?;
        let count = digits.parse::<u32>().ok()?;
        Some(match unit {
            "n" => Duration::from_nanos(count.into()),
            "u" => Duration::from_micros(count.into()),
            "m" => Duration::from_millis(count.into()),
            "S" => Duration::from_secs(count.into()),
            "M" => Duration::from_secs(60 * u64::from(count)),
            "H" => Duration::from_secs(3600 * u64::from(count)),
            _ => return None,
        })
    });
    // The response must arrive before the client gives up.
    let in_time = |it: Duration| it.min(DEADLINE_MAX) - (it / 4).min(RESPONSE_TIME);
    stated.map_or(DEADLINE_DEFAULT, in_time)
}

/// An answer that the client has not read. It counts toward the limit of unread answers.
struct UnreadAnswer {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
    _in_progress: InProgress,
}

/// The unread answers of a connection, and since when.
#[derive(Default)]
struct Unread(Mutex<Vec<(Instant, Weak<UnreadAnswer>)>>);

impl Unread {
    fn add(&self, answer: &Arc<UnreadAnswer>) {
        let mut answers = self.0.lock();
        if answers.len() >= UNREAD_MAX {
            answers.retain(|(_, answer)| answer.strong_count() > 0);
        }
        answers.push((Instant::now(), Arc::downgrade(answer)));
    }

    /// Waits until an answer has been unread for too long.
    async fn are_stalled(&self) {
        loop {
            sleep(UNREAD_TIME_MAX / 4).await;
            let mut answers = self.0.lock();
            answers.retain(|(_, answer)| answer.strong_count() > 0);
            if answers
                .iter()
                .any(|(since, _)| since.elapsed() >= UNREAD_TIME_MAX)
            {
                return;
            }
        }
    }
}

/// The body of an answer.
struct AnswerBody {
    body: tonic::body::Body,
    answer: Arc<UnreadAnswer>,
}

/// A part of an answer. It counts as unread until HTTP/2 has sent it.
struct AnswerData {
    bytes: Bytes,
    _answer: Arc<UnreadAnswer>,
}

impl AsRef<[u8]> for AnswerData {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let answer = &self.answer;
        let counted = |bytes| {
            let answer = Arc::clone(answer);
            Bytes::from_owner(AnswerData {
                bytes,
                _answer: answer,
            })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
