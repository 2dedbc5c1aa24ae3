//! gRPC output: two server-streaming calls that send chunks of the log without copying them.
//!
//! A tonic codec would copy each message into a buffer per stream. This module has its own response body, whose data
//! frames are the shared bytes of a chunk, including the length prefix. A delivery thus costs a reference count and a
//! share of a system call. The body takes a chunk from the log only when HTTP/2 has capacity for it. Until then, the log
//! can drop the chunk if the subscriber is slow.
//!
//! tonic does the rest of gRPC: status mapping, health checks, reflection.

mod body;
mod call;
mod confirm;
mod cookie_messages;
mod get_cookies;
pub mod in_flight;
pub mod refusals;
mod request;
mod resume;
pub(crate) mod status;
mod subscribe;
pub mod subscribers;
pub mod times_to_live;

use std::{
    convert::Infallible,
    future::Future,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response, header};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService};
use tower::Service;

pub(crate) use self::cookie_messages::CACHED_CHUNKS_MAX;
use self::{
    body::{MessageFormat, Session, StreamBody},
    cookie_messages::CookieMessages,
    in_flight::StreamBudget,
    refusals::Refusals,
    request::read_request,
    subscribers::{Lease, Subscribers},
    times_to_live::TimesToLive,
};
use crate::{epoch_history::EpochHistory, log::Log};

/// The streams of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    /// Messages without deletions, and messages with deletions.
    cookie_messages: [Arc<CookieMessages>; 2],
}

/// Parts and configuration of all streams.
#[derive(Debug)]
pub struct Config {
    /// The log from which streams read.
    pub log: Log,
    /// The subscribers.
    pub subscribers: Subscribers,
    /// Bounds the in-flight bytes.
    pub budget: StreamBudget,
    /// Counter of rejected calls.
    pub refusals: Refusals,
    /// The id of this producer, the same across restarts.
    pub producer_id: String,
    /// Maximum lag of a subscriber, in cookies.
    pub queue_cookies_max: u64,
    /// Maximum bytes to resend to a subscriber that reconnects without a cursor: the bytes that can be lost with a connection,
    /// in its windows and in the buffers of two kernels. Less if the client stated a smaller window.
    pub rewind_bytes: usize,
    /// Ends of earlier epochs of this producer.
    pub epoch_history: EpochHistory,
    /// Times to live that `Subscribe` sends.
    pub times_to_live: TimesToLive,
}

impl Streams {
    /// Creates the streams of a producer with these parts.
    pub fn new(config: Config) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                cookie_messages: [false, true]
                    .map(|deletions| Arc::new(CookieMessages::new(deletions))),
            }),
        }
    }

    async fn respond(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let peer = request.extensions().get::<Peer>();
        let network = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0);
        let streams = &*self.inner;
        let body = match request.uri().path() {
            "/cookiesync.v1.CookieStreamer/Confirm" => {
                return confirm::handle(streams, &read_request(request).await?, network);
            }
            "/cookiesync.v1.CookieStreamer/Subscribe" => {
                subscribe::open(streams, &read_request(request).await?, network)?
            }
            "/cookiesync.v1.CookieStreamer/GetCookies" => {
                get_cookies::open(streams, &read_request(request).await?, network)?
            }
            _ => return Err(Status::unimplemented("unknown method")),
        };
        let (in_flight, superseded) = (Arc::clone(&body.in_flight), body.superseded.clone());
        let mut response = Response::new(Body::new(body));
        response.extensions_mut().insert(in_flight);
        response.extensions_mut().insert(superseded);
        Ok(response)
    }
}

impl Inner {
    fn stream(&self, lease: Lease, format: MessageFormat) -> StreamBody {
        let config = &self.config;
        let (first, until) = (lease.start.first, lease.start.catching_up_until);
        StreamBody::new(Session {
            reader: config.log.reader(first, config.queue_cookies_max, until),
            in_flight: config.budget.open(lease.in_flight()),
            lease,
            format,
        })
    }
}

/// Request extension: the network of the client, whose addresses count as one client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Response extension: cancelled when a newer stream of the same subscriber supersedes this one.
#[derive(Debug, Clone)]
pub(crate) struct SupersedeToken(pub(crate) CancellationToken);

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
            Ok(match streams.respond(request).await {
                Ok(mut response) => {
                    let grpc = HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
                    response
                }
                Err(status) => {
                    streams.inner.config.refusals.count(&status);
                    let mut response = status.into_http();
                    // Tells clients not to compress their messages.
                    let accepted = HeaderValue::from_static("identity");
                    let headers = response.headers_mut();
                    headers.insert("grpc-accept-encoding", accepted);
                    response
                }
            })
        })
    }
}

/// Memory of a subscriber besides the log and in-flight bytes: its state, metrics and stream.
pub(crate) const SUBSCRIBER_BYTES: usize = 32 * 1024;

#[cfg(test)]
mod tests;
