//! The streaming calls as a service of tonic, which does the rest of gRPC: status mapping, health checks, reflection.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use proto::wire;
use tonic::{Status, body::Body, server::NamedService};
use tower::Service;

use super::{refusals::Refusals, request::read_request, status::trailers, stream_body::StreamBody};
use crate::streams::Streams;

/// Serves [`Streams`]; clones share them.
#[derive(Debug, Clone)]
pub(super) struct StreamService {
    streams: Streams,
    refusals: Refusals,
}

/// Request extension: the network of the client, whose addresses count as one client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

impl StreamService {
    pub(super) fn new(streams: Streams, refusals: Refusals) -> Self {
        Self { streams, refusals }
    }

    async fn respond(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let peer = request.extensions().get::<Peer>();
        let network = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0);
        let streams = &self.streams;
        let session = match request.uri().path() {
            "/cookiesync.v1.CookieStreamer/Confirm" => {
                let confirmed = streams.confirm(&read_request(request).await?, network)?;
                let body = Full::new(wire::encode_message(&confirmed));
                let end = trailers(&Status::ok(""));
                let body = body.with_trailers(async { Some(Ok(end)) });
                return Ok(Response::new(Body::new(body)));
            }
            "/cookiesync.v1.CookieStreamer/Subscribe" => {
                streams.subscribe(&read_request(request).await?, network)?
            }
            "/cookiesync.v1.CookieStreamer/GetCookies" => {
                streams.get_cookies(&read_request(request).await?, network)?
            }
            _ => return Err(Status::unimplemented("unknown method")),
        };
        let in_flight = Arc::clone(&session.in_flight);
        let superseded = session.superseded().clone();
        let mut response = Response::new(Body::new(StreamBody::new(session)));
        response.extensions_mut().insert(in_flight);
        response.extensions_mut().insert(superseded);
        Ok(response)
    }
}

impl NamedService for StreamService {
    const NAME: &'static str = "cookiesync.v1.CookieStreamer";
}

impl Service<Request<Body>> for StreamService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            Ok(match service.respond(request).await {
                Ok(mut response) => {
                    let grpc = HeaderValue::from_static("application/grpc");
                    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
                    response
                }
                Err(status) => {
                    service.refusals.count(&status);
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

#[cfg(test)]
mod tests;
