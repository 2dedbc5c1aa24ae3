//! gRPC out: two server-streaming calls that send the log's chunks as they lie in memory.
//!
//! A tonic codec would copy each message into a buffer of its own for each stream. Here the response body is
//! our own: its data frames are the shared bytes of a chunk, length prefix included, so a delivery costs a
//! reference count and a share of a system call. The body takes a chunk out of the log only when HTTP/2 asks
//! for it: what is taken is beyond the reach of drop-oldest.
//!
//! The rest of gRPC is tonic's: status mapping, health, reflection.

mod body;
mod get_cookies;
pub mod pinned;
pub mod refusals;
mod subscribe;
pub mod subscribers;

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header};
use http_body::Body as _;
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, decode_key, skip_field},
};
use proto::{
    ids::{self, Illegal},
    limits::{CURSORS_MAX, REQUEST_BYTES_MAX, SUBSCRIBER_NAME_BYTES_MAX},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService};
use tower::Service;

pub(crate) use self::get_cookies::CHUNKS_KEPT;
use self::{
    body::{Form, Session, StreamBody},
    get_cookies::CookieMessages,
    pinned::Pinned,
    refusals::Refusals,
    subscribers::{Lease, Subscribers, TooManySubscribers},
};
use crate::{lives::Lives, log::Log};

/// What all streams of one producer share.
#[derive(Debug, Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    subscribers: Subscribers,
    config: Config,
    pinned: Pinned,
    refusals: Refusals,
    cookie_messages: Arc<CookieMessages>,
}

/// How streams behave.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name of this producer, the same across restarts.
    pub producer_id: String,
    /// Most cookies a subscriber may be behind.
    pub queue_cookies_max: u64,
    /// How far before its position a queue that is found by name alone starts again, at most: what can be on the way
    /// to a client, in its windows and in the buffers of two kernels, when a connection breaks. Less where its client
    /// told of a smaller window.
    pub rewind_bytes: usize,
    /// What is known of this producer's former lives.
    pub lives: Lives,
}

impl Streams {
    /// Streams out of `log`, whose connections hold no more than `pinned` allows.
    #[must_use]
    pub fn new(
        log: Log,
        subscribers: Subscribers,
        config: Config,
        pinned: Pinned,
        refusals: Refusals,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                log,
                subscribers,
                config,
                pinned,
                refusals,
                cookie_messages: Arc::default(),
            }),
        }
    }

    async fn open(&self, request: Request<Body>) -> Result<StreamBody, Status> {
        match request.uri().path() {
            "/cookiesync.v1.CookieStreamer/Subscribe" => {
                let network = network(&request);
                let request = read_request(request).await?;
                subscribe::open(&self.inner, &request, network)
            }
            "/cookiesync.v1.CookieStreamer/GetCookies" => {
                let network = network(&request);
                let request = read_request(request).await?;
                get_cookies::open(&self.inner, &request, network)
            }
            _ => Err(Status::unimplemented("no such call")),
        }
    }
}

impl Inner {
    fn session(&self, lease: Lease, position: u64, until: u64, form: Form) -> Session {
        let queue_cookies_max = self.config.queue_cookies_max;
        let reader = self.log.reader(position, queue_cookies_max, until);
        let told_from = tokio::time::Instant::from_std(lease.told_from());
        let hold = self.pinned.open(lease.pinned(), told_from);
        Session::new(lease, reader, form, hold)
    }
}

/// Of a request: where it comes from, as far as that counts as one address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

fn network(request: &Request<Body>) -> IpAddr {
    let peer = request.extensions().get::<Peer>();
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0)
}

/// Of a stream's response: cancelled when another stream of its name has taken its queue.
#[derive(Debug, Clone)]
pub(crate) struct Superseded(pub(crate) CancellationToken);

/// What such a stream ends with.
pub(crate) fn superseded() -> Status {
    Status::aborted("another stream took this subscriber's queue")
}

impl NamedService for Streams {
    const NAME: &'static str = "cookiesync.v1.CookieStreamer";
}

impl Service<Request<Body>> for Streams {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let streams = self.clone();
        Box::pin(async move {
            Ok(match streams.open(request).await {
                Ok(body) => {
                    let (hold, superseded) = (body.hold(), body.superseded());
                    let mut response = Response::new(Body::new(body));
                    response.extensions_mut().insert(hold);
                    response.extensions_mut().insert(superseded);
                    response.headers_mut().insert(
                        header::CONTENT_TYPE,
                        HeaderValue::from_static("application/grpc"),
                    );
                    response
                }
                Err(status) => {
                    streams.inner.refusals.count(&status);
                    let mut response = status.into_http();
                    // To a client that compresses this says what it may send instead.
                    let accepted = HeaderValue::from_static("identity");
                    let headers = response.headers_mut();
                    headers.insert("grpc-accept-encoding", accepted);
                    response
                }
            })
        })
    }
}

/// The number of `SubscribeRequest.cursors`.
const CURSORS_FIELD: u32 = 2;

/// What a subscriber takes beside the log and what is pinned: its queue, its metrics, and its stream.
pub(crate) const SUBSCRIBER_BYTES: usize = 32 * 1024;

/// How long a client may take to send the message of its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Reads the one message of a server-streaming call, to the end of the request: what would still come would lie in memory for as long
/// as the stream.
///
/// tonic's reader would set a buffer aside before anything has come, and all that the client says it will send as soon as it
/// says so.
async fn read_request<M: Message + Default>(request: Request<Body>) -> Result<M, Status> {
    let bytes = timeout(REQUEST_TIMEOUT, read_message(request.into_body()))
        .await
        .map_err(|_| Status::deadline_exceeded("the request's message did not come"))??;
    let malformed = |error| Status::invalid_argument(format!("malformed request: {error}"));
    // Decoded, an empty one takes twenty times its bytes.
    if cursors(&bytes).map_err(malformed)? > CURSORS_MAX {
        let message = format!("more than {CURSORS_MAX} cursors");
        return Err(Status::invalid_argument(message));
    }
    M::decode(&*bytes).map_err(malformed)
}

/// How many cursors a request has; one that has none has nothing else that is repeated.
fn cursors(mut message: &[u8]) -> Result<usize, DecodeError> {
    let mut count = 0;
    while !message.is_empty() {
        let (field, kind) = decode_key(&mut message)?;
        count += usize::from(field == CURSORS_FIELD);
        skip_field(kind, field, &mut message, DecodeContext::default())?;
    }
    Ok(count)
}

async fn read_message(mut body: Body) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        // Nobody asks for trailers.
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        bytes.extend_from_slice(&data);
        if bytes.len() > message_end(&bytes)? {
            return Err(Status::invalid_argument(
                "the request has more than one message",
            ));
        }
    }
    if bytes.is_empty() {
        return Err(Status::invalid_argument("the request has no message"));
    }
    if bytes.len() < message_end(&bytes)? {
        return Err(Status::invalid_argument(
            "the request's message is not whole",
        ));
    }
    bytes.drain(..PREFIX_BYTES);
    Ok(bytes)
}

/// Where the message ends that begins with `bytes`; at least where its prefix does.
fn message_end(bytes: &[u8]) -> Result<usize, Status> {
    let Some(&[compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES);
    };
    if compressed != 0 {
        return Err(Status::unimplemented("the request's message is compressed"));
    }
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length <= REQUEST_BYTES_MAX => Ok(PREFIX_BYTES + length),
        _ => Err(Status::out_of_range(format!(
            "the request's message is longer than {REQUEST_BYTES_MAX} bytes"
        ))),
    }
}

/// Checks the name of a queue, which the request calls `field`.
fn check_name(name: &str, field: &str) -> Result<(), Status> {
    ids::check_name(name).map_err(|illegal| {
        Status::invalid_argument(match illegal {
            Illegal::Empty => format!("{field} is empty"),
            Illegal::TooLong => format!("{field} is longer than {SUBSCRIBER_NAME_BYTES_MAX} bytes"),
            Illegal::Character => format!("{field} holds a control character"),
        })
    })
}

/// Why no stream was opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    TooManySubscribers(#[from] TooManySubscribers),
    #[error("cursor {cursor} is from the future: the newest sequence of this epoch is {newest}")]
    CursorFromTheFuture { cursor: u64, newest: u64 },
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::TooManySubscribers(_) => Self::resource_exhausted(error.to_string()),
            OpenError::CursorFromTheFuture { .. } => Self::invalid_argument(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
