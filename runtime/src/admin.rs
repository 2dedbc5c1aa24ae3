//! The admin port: the status page, `/metrics`, `/healthz`, `/readyz`, `/v1/status`, `/v1/history`, and the pages of each process.
//!
//! It is read-only, except for the log filter. It has no authentication, so
//! every program on the machine has access. A web page in a browser on the machine may also send requests:
//!
//! - A page of another origin cannot read the responses, because no response has a CORS header. A browser sends no PUT of such
//!   a page, for the same reason.
//! - DNS rebinding would make the page same-origin. So a loopback port accepts only loopback host names. Ports on other
//!   addresses do not check host names, because every client that reaches such a port has access.

pub mod status;

use std::{
    future::Future, net::SocketAddr, ops::RangeInclusive, pin::Pin, sync::Arc, time::Duration,
};

use super::{
    caller, http_server,
    listen::{Limits, Listener},
    logging::{self, FILTER_BYTES_MAX, Filter},
    open_files,
    ready::{self, Component},
    reply::{Reply, content, json, text},
    services::Services,
    settings,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prometheus::{Encoder, TextEncoder};
use serde_json::{Value, json as object};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

use self::status::{History, Progress};

/// Limits of the port, and of other ports for operators.
pub const LIMITS: Limits = Limits {
    connections_max: open_files::ADMIN_CONNECTIONS_MAX,
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

/// Path of the log filter.
const LOG_FILTER: &str = "/log-filter";

/// Prefix of the query of a filter that is restored by itself.
const FOR: &str = "for=";

/// How long such a filter may apply.
const FILTER_TIMES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// Path of the status of the process.
const STATUS: &str = "/v1/status";

/// Path of the values of the graphs before the page was opened.
const HISTORY: &str = "/v1/history";

/// Timeout for receiving a filter, which fits in one packet.
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);

/// The process-specific part of an admin port.
pub trait Pages: Send + Sync + 'static {
    /// The components whose readiness `/readyz` reports.
    fn components(&self) -> Vec<Component>;

    /// Counters of cookies since the start of the process.
    fn progress(&self) -> Progress {
        Progress::default()
    }

    /// What the process adds to `/v1/status`: an object with its name, and facts that only this program has.
    fn details(&self) -> Value {
        object!({})
    }

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
    /// Serves the admin port; returns its address.
    ///
    /// # Errors
    /// If the address is unknown, or a metric is already registered.
    pub fn serve_admin(
        &self,
        listener: impl Listener,
        pages: impl Pages,
    ) -> anyhow::Result<SocketAddr> {
        let (address, metrics) = (listener.local_addr()?, self.connections("admin")?);
        let port = Arc::new(Port {
            services: self.clone(),
            pages: Box::new(pages),
            requires_loopback_host: address.ip().is_loopback(),
            history: Mutex::default(),
            restoring: Mutex::default(),
        });
        let recording = Arc::clone(&port).record();
        let recording = self.stage.stop.clone().run_until_cancelled_owned(recording);
        self.stage.tasks.spawn(recording);
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
    pages: Box<dyn Pages>,
    requires_loopback_host: bool,
    history: Mutex<History>,
    /// Restores the log filter.
    restoring: Mutex<Option<AbortHandle>>,
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
        let is_filter = request.uri().path() == LOG_FILTER;
        match *request.method() {
            Method::GET | Method::HEAD => {}
            Method::PUT if is_filter => return self.put_log_filter(request).await,
            _ if is_filter => return method_not_allowed("GET, HEAD, PUT"),
            _ => return method_not_allowed("GET, HEAD"),
        }
        match request.uri().path() {
            "/" => static_file("text/html", PAGE),
            "/page.css" => static_file("text/css", STYLE),
            "/page.js" => static_file("text/javascript", SCRIPT),
            "/healthz" => match self.pages.needs_restart() {
                None => text(StatusCode::OK, "ok\n"),
                Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            },
            "/readyz" => ready::reply(self.components()),
            STATUS => json(StatusCode::OK, &self.status()),
            HISTORY => json(StatusCode::OK, &self.history()),
            LOG_FILTER => text(StatusCode::OK, format!("{}\n", logging::filter())),
            "/metrics" => self.metrics(request.uri().query() != Some(KEEP_PEAKS)),
            _ => match self.pages.page(request.headers(), request.uri()).await {
                Some(reply) => reply,
                None => text(StatusCode::NOT_FOUND, "not found\n"),
            },
        }
    }

    fn components(&self) -> Vec<Component> {
        let mut components = self.pages.components();
        components.push(self.services.config_reloads.component());
        components
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

impl Port {
    /// Replaces the log filter, for the time in the query if there is one.
    async fn put_log_filter(&self, request: Request<Incoming>) -> Reply {
        let time = request.uri().query().map(|query| {
            let time = query
                .strip_prefix(FOR)
                .ok_or("expected for=TIME".to_owned());
            let parse = settings::time(FILTER_TIMES);
            time.and_then(|time| parse(time).map_err(|error| error.to_string()))
        });
        let time = match time.transpose() {
            Ok(time) => time,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let filter = match receive_filter(request.into_body()).await {
            Ok(filter) => filter,
            Err(reply) => return reply,
        };
        let log = || tracing::info!(%filter, ?time, "log filter changed through the admin port");
        let mut restoring = self.restoring.lock();
        if let Some(restoring) = restoring.take() {
            restoring.abort();
        }
        match time {
            None => shown_before_or_after(log, || logging::set_filter(&filter)),
            Some(time) => {
                shown_before_or_after(log, || logging::set_temporary_filter(&filter));
                let restore = async move {
                    sleep(time).await;
                    let log = || tracing::info!("log filter restored");
                    shown_before_or_after(log, || drop(logging::restore_filter()));
                };
                let stage = &self.services.stage;
                let restore = stage.stop.clone().run_until_cancelled_owned(restore);
                *restoring = Some(stage.tasks.spawn(restore).abort_handle());
            }
        }
        text(StatusCode::OK, format!("{filter}\n"))
    }
}

/// Logs a change of the filter before it, or after it if the old filter hides the message.
fn shown_before_or_after(log: impl Fn(), change: impl FnOnce()) {
    let is_shown_before = tracing::enabled!(tracing::Level::INFO);
    if is_shown_before {
        log();
    }
    change();
    if !is_shown_before {
        log();
    }
}

async fn receive_filter(body: Incoming) -> Result<Filter, Reply> {
    let body = timeout(
        FILTER_TIMEOUT,
        Limited::new(body, FILTER_BYTES_MAX).collect(),
    );
    match body.await {
        Err(_) => Err(text(
            StatusCode::REQUEST_TIMEOUT,
            "no complete filter within 10 s\n",
        )),
        Ok(Err(_)) => {
            let error =
                format!("the filter is incomplete or longer than {FILTER_BYTES_MAX} bytes\n");
            Err(text(StatusCode::PAYLOAD_TOO_LARGE, error))
        }
        Ok(Ok(body)) => {
            let filter = String::from_utf8_lossy(&body.to_bytes()).parse();
            filter.map_err(|error: String| text(StatusCode::BAD_REQUEST, format!("{error}\n")))
        }
    }
}

fn method_not_allowed(allowed: &'static str) -> Reply {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed}\n"));
    let allowed = HeaderValue::from_static(allowed);
    reply.headers_mut().insert(header::ALLOW, allowed);
    reply
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
