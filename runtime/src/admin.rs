//! The admin port: the status page, `/metrics`, `/healthz`, `/readyz`, and what a process adds to them.
//!
//! It only ever answers GET and HEAD, and changes nothing; except for [`debug`], which is off unless asked for. It asks
//! nobody who they are, so what is open to it is open to every program of the machine, and what a browser of that machine
//! can be made to do counts, too:
//!
//! - A page of another origin can send requests here but not read the answers: no answer allows that (CORS), nor a PUT.
//! - One whose name was made to lead to this machine (DNS rebinding) could: so a port on loopback answers only who calls it
//!   by a loopback name. Elsewhere the port is open to whoever reaches it, and a name proves nothing.

pub mod ready;

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    debug,
    listen::{self, InProgress, Limits, Listener, Stage},
    metrics::Registry,
    status::Board,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use prometheus::{Encoder, TextEncoder};
use ready::Part;
use tokio_util::sync::CancellationToken;

const LIMITS: Limits = Limits {
    connections_max: 256,
    // A bidder that looks users up, from one address, leaves some for probes.
    connections_per_address_max: Some(192),
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

/// Most bytes of answers that a connection keeps for a client that does not read.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// What an answer says, at once or bit by bit.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An answer of the admin port.
pub type Answer = Response<Body>;

/// What a process puts behind its admin port.
pub trait Pages: Send + Sync + 'static {
    /// The parts that must work for the process to do its work.
    fn parts(&self) -> Vec<Part>;

    /// Why only a restart can help, if so: `/healthz` then fails.
    fn needs_restart(&self) -> Option<String> {
        None
    }

    /// What `/`, `/status.json` and `/status/events` show.
    fn board(&self) -> &Board;

    /// Whether `/log-filter` and `/debug/pprof/` are there, which change the process or cost it time.
    fn debug_endpoints(&self) -> bool {
        false
    }

    /// Answers a path that is none of the port's own; `None` for "not found".
    fn page<'a>(
        &'a self,
        path: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<Answer>> + Send + 'a>>;
}

/// Serves the admin port until the stage stops, which also ends the streams of events.
pub async fn serve(
    listener: impl Listener,
    registry: Registry,
    metrics: listen::Metrics,
    pages: Arc<dyn Pages>,
    stage: Stage,
) {
    let is_loopback = |address: SocketAddr| address.ip().is_loopback();
    let port = Arc::new(Port {
        registry,
        pages,
        answers_loopback_names_alone: listener.local_addr().is_ok_and(is_loopback),
        stopping: stage.stop.clone(),
    });
    listen::accept(listener, LIMITS, metrics, stage, move |stream, activity| {
        let port = Arc::clone(&port);
        async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (port, in_progress) = (Arc::clone(&port), activity.long_request());
                async move {
                    let answer = port.answer(request).await;
                    Ok::<_, Infallible>(answer.map(|body| Held {
                        body,
                        _in_progress: in_progress,
                    }))
                }
            });
            let connection = http1::Builder::new()
                .max_buf_size(WRITE_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = port.stopping.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "admin connection ended");
            }
        }
    })
    .await;
}

/// Says once when others than this machine reach an admin port, which asks nobody who they are.
pub fn say_if_open(address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(admin = %address, "the admin port is open to whoever reaches this address");
    }
}

/// A body whose request is in progress until all of it was handed over, or nobody wants it any more.
struct Held {
    body: Body,
    _in_progress: InProgress,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Port {
    registry: Registry,
    pages: Arc<dyn Pages>,
    answers_loopback_names_alone: bool,
    stopping: CancellationToken,
}

impl Port {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if self.answers_loopback_names_alone && !is_called_by_a_loopback_name(&request) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "this port answers to localhost and loopback addresses alone\n",
            );
        }
        let is_link = is_followed_link(request.headers());
        if is_of_another_site(request.headers()) && !is_link {
            let why = "this port answers no requests that pages of other sites make\n";
            return text(StatusCode::FORBIDDEN, why);
        }
        if let Some(page) = debug::Page::at(request.uri().path()) {
            let (enabled, stop) = (self.pages.debug_endpoints(), self.stopping.clone());
            return debug::answer(enabled, page, request, stop).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
            answer
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match request.uri().path() {
            "/" => self.pages.board().page(),
            "/status.json" => self.pages.board().json(),
            "/status/events" => self.pages.board().events(&request),
            "/healthz" => match self.pages.needs_restart() {
                None => text(StatusCode::OK, "ok\n"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            },
            "/readyz" => ready::answer(&self.pages.parts()),
            "/metrics" => self.metrics(),
            path => match self.pages.page(path).await {
                Some(answer) => answer,
                None => text(StatusCode::NOT_FOUND, "not found\n"),
            },
        }
    }

    fn metrics(&self) -> Answer {
        let mut body = Vec::new();
        let encoder = TextEncoder::new();
        match encoder.encode(&self.registry.scrape(), &mut body) {
            Ok(()) => content(StatusCode::OK, encoder.format_type(), body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

/// Whether a browser says that it asks for a page of another site, which could not read the answer but would make the process
/// work for it.
pub(super) fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

/// Whether a browser says that it will show the answer as a page of its own.
fn is_followed_link(headers: &HeaderMap) -> bool {
    let says = |name, value| headers.get(name).is_some_and(|it| it == value);
    says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// Whether the client means this machine, by a name that only this machine can have. A client that says no name is no
/// browser.
fn is_called_by_a_loopback_name<B>(request: &Request<B>) -> bool {
    let Some(host) = request.headers().get(header::HOST) else {
        return true;
    };
    let authority = host.to_str().ok().and_then(|host| host.parse().ok());
    let Some(authority) = authority.as_ref().map(http::uri::Authority::host) else {
        return false;
    };
    let address = authority.trim_start_matches('[').trim_end_matches(']');
    let name = address.trim_end_matches('.').to_ascii_lowercase();
    address
        .parse()
        .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        || name == "localhost"
        || name.ends_with(".localhost")
}

/// An answer in plain text.
#[must_use]
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    content(status, "text/plain; charset=utf-8", body)
}

/// An answer in JSON, which `body` must already be.
#[must_use]
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    content(status, "application/json", body)
}

/// An answer that no cache keeps, no frame shows, and that is taken for nothing but what it says it is.
#[must_use]
pub fn content(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Answer {
    streamed(status, content_type, Full::new(body.into()).boxed_unsync())
}

/// Like [`content`], with a body that comes bit by bit.
#[must_use]
pub fn streamed(status: StatusCode, content_type: &str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    let no_frames = HeaderValue::from_static("frame-ancestors 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, no_frames);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, is_ours: bool) {
        let request = Request::builder().header(header::HOST, host).body(());
        let request = request.unwrap();
        assert_eq!(is_called_by_a_loopback_name(&request), is_ours, "{host}");
    }

    #[test]
    fn loopback_port_answers_only_to_names_that_nobody_else_can_have() {
        for ours in [
            "127.0.0.1:9090",
            "127.1.2.3",
            "[::1]:9090",
            "localhost:9090",
            "LOCALHOST",
            "node.localhost:1",
            "localhost.:9090",
        ] {
            check(ours, true);
        }
        for others in [
            "rebound.example:9090",
            "127.0.0.1.example",
            "localhost.example",
            "notlocalhost",
            "10.0.0.1:9090",
            "[2001:db8::1]:9090",
            "",
            "a b",
        ] {
            check(others, false);
        }
        assert!(is_called_by_a_loopback_name(&Request::new(())));
    }
}
