//! The admin port: `/metrics`, `/healthz`, `/readyz`, and what a process adds to them.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use super::listen::{self, Limits, Listener, Stage};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use prometheus::{Encoder, Registry, TextEncoder};

const LIMITS: Limits = Limits {
    connections_max: 256,
    connections_per_address_max: None,
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

/// An answer of the admin port.
pub type Answer = Response<Full<Bytes>>;

/// What a process puts behind its admin port.
pub trait Pages: Send + Sync + 'static {
    /// `Ok` when the process can do its work, otherwise why not, in one line.
    fn ready(&self) -> Result<(), String>;

    /// Answers a path that is none of the port's own; `None` for "not found".
    fn page<'a>(
        &'a self,
        path: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<Answer>> + Send + 'a>>;
}

/// Serves the admin port until the stage stops.
pub async fn serve(
    listener: impl Listener,
    registry: Registry,
    metrics: listen::Metrics,
    pages: Arc<dyn Pages>,
    stage: Stage,
) {
    let port = Arc::new(Port { registry, pages });
    let stopping = stage.stop.clone();
    listen::accept(listener, LIMITS, metrics, stage, move |stream, activity| {
        let (port, stopping) = (Arc::clone(&port), stopping.clone());
        async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (port, request_in_progress) = (Arc::clone(&port), activity.long_request());
                async move {
                    let answer = port.answer(&request).await;
                    drop(request_in_progress);
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stopping.cancelled() => {
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

struct Port {
    registry: Registry,
    pages: Arc<dyn Pages>,
}

impl Port {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
            answer
                .headers_mut()
                .insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match self.pages.ready() {
                Ok(()) => text(StatusCode::OK, "ready\n"),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            },
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
        match encoder.encode(&self.registry.gather(), &mut body) {
            Ok(()) => content(StatusCode::OK, encoder.format_type(), body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
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

fn content(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    if let Ok(content_type) = header::HeaderValue::from_str(content_type) {
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type);
    }
    answer
}
