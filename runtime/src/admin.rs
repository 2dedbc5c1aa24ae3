//! The admin port: the status page, `/metrics`, `/healthz`, `/readyz`, and the pages of each process.
//!
//! It serves only GET and HEAD and is read-only; [`debug`] costs CPU time and is off by default. It has no authentication, so
//! every program on the machine has access. A web page in a browser on the machine may also send requests:
//!
//! - A page of another origin cannot read the responses, because no response has a CORS header.
//! - DNS rebinding would make the page same-origin. So a loopback port accepts only loopback host names. Ports on other
//!   addresses do not check host names, because every client that reaches such a port has access.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use super::{
    caller, debug, http_server,
    listen::{Limits, Listener},
    open_files,
    ready::{self, Component},
    reply::{Reply, content, text},
    services::Services,
    settings::Common,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use hyper::body::Incoming;
use prometheus::{Encoder, TextEncoder};

/// Limits of the port, and of other ports for operators.
pub const LIMITS: Limits = Limits {
    connections_max: 256,
    // Reserves connections for probes while a bidder opens many lookup connections from one address.
    connections_per_address_max: Some(192),
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

const PAGE: &str = include_str!("admin/page.html");
const STYLE: &str = include_str!("admin/page.css");
const SCRIPT: &str = concat!(
    include_str!("admin/programs.js"),
    include_str!("admin/page.js")
);

/// Allows the status page to run its own script and to query its own port.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Query for reading `/metrics` without ending the intervals of peak metrics. The status page sends it every second.
const KEEP_PEAKS: &str = "keep-peaks";

/// The process-specific part of an admin port.
pub trait Pages: Send + Sync + 'static {
    /// The components whose readiness `/readyz` reports.
    fn components(&self) -> Vec<Component>;

    /// The reason why only a restart helps, if so; `/healthz` then fails.
    fn needs_restart(&self) -> Option<String> {
        None
    }

    /// Serves a request for a path that the port itself does not serve; `None` for "not found".
    fn page<'a>(
        &'a self,
        _headers: &'a HeaderMap,
        _uri: &'a Uri,
    ) -> Pin<Box<dyn Future<Output = Option<Reply>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }
}

impl Services {
    /// Serves the admin port; returns its address. `--debug-endpoints` enables `/debug/profile`.
    ///
    /// # Errors
    /// If the address is unknown, or a metric is already registered.
    pub fn serve_admin(
        &self,
        listener: impl Listener,
        common: &Common,
        pages: impl Pages,
    ) -> anyhow::Result<SocketAddr> {
        let (address, metrics) = (listener.local_addr()?, self.connections("admin")?);
        let port = Arc::new(Port {
            services: self.clone(),
            debug: common.debug_endpoints,
            pages: Box::new(pages),
            requires_loopback_host: address.ip().is_loopback(),
        });
        let handler = move |request| {
            let port = Arc::clone(&port);
            async move { port.serve(request).await }
        };
        let (stage, limits) = (self.stage.clone(), LIMITS.with(open_files::of_admin()));
        let serving = http_server::serve(listener, None, limits, metrics, stage, handler);
        self.stage.tasks.spawn(serving);
        tracing::info!(%address, "admin port is open");
        if !address.ip().is_loopback() {
            tracing::warn!(admin = %address, "the admin port is open to every client that reaches this address");
        }
        Ok(address)
    }
}

struct Port {
    services: Services,
    debug: bool,
    pages: Box<dyn Pages>,
    requires_loopback_host: bool,
}

impl Port {
    async fn serve(&self, request: Request<Incoming>) -> Reply {
        let (headers, uri) = (request.headers(), request.uri());
        if self.requires_loopback_host && !caller::has_loopback_host(headers, uri) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "this port accepts only localhost or a loopback address in the Host header\n",
            );
        }
        let is_link = caller::is_navigation(request.headers());
        if caller::is_cross_site(request.headers()) && !is_link {
            return text(StatusCode::FORBIDDEN, "cross-site requests are rejected\n");
        }
        if debug::is_page(request.uri().path()) {
            let stop = self.services.stage.stop.clone();
            return debug::serve(self.debug, request, stop).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return debug::method_not_allowed("GET, HEAD");
        }
        match request.uri().path() {
            "/" => static_file("text/html", PAGE),
            "/page.css" => static_file("text/css", STYLE),
            "/page.js" => static_file("text/javascript", SCRIPT),
            "/healthz" => match self.pages.needs_restart() {
                None => text(StatusCode::OK, "ok\n"),
                Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            },
            "/readyz" => {
                let mut components = self.pages.components();
                components.push(self.services.config_reloads.component());
                ready::reply(&components)
            }
            "/metrics" => self.metrics(request.uri().query() != Some(KEEP_PEAKS)),
            _ => match self.pages.page(request.headers(), request.uri()).await {
                Some(reply) => reply,
                None => text(StatusCode::NOT_FOUND, "not found\n"),
            },
        }
    }

    fn metrics(&self, ends_interval: bool) -> Reply {
        let mut body = Vec::new();
        let encoder = TextEncoder::new();
        let families = if ends_interval {
            self.services.registry.scrape()
        } else {
            self.services.registry.gather()
        };
        match encoder.encode(&families, &mut body) {
            Ok(()) => content(StatusCode::OK, encoder.format_type(), body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

/// A file of the status page.
fn static_file(content_type: &str, file: &'static str) -> Reply {
    let content_type = format!("{content_type}; charset=utf-8");
    let mut reply = content(StatusCode::OK, &content_type, file);
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        let value = HeaderValue::from_static(value);
        reply.headers_mut().insert(name, value);
    }
    reply
}
