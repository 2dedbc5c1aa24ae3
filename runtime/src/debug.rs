//! The debug endpoint of the admin port: CPU profiles. They cost CPU time, and are therefore available only with `--debug-endpoints`.

mod profile;

use http::{Method, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::{
    caller,
    reply::{Reply, text},
};

/// Path of CPU profiles.
const PROFILE: &str = "/debug/profile";

/// Whether [`serve`] handles this path.
pub(super) fn is_page(path: &str) -> bool {
    path.starts_with("/debug")
}

/// Serves the debug endpoint. `stop` cancels a running profile.
pub(super) async fn serve(
    enabled: bool,
    request: Request<Incoming>,
    stop: CancellationToken,
) -> Reply {
    if !enabled {
        return text(
            StatusCode::NOT_FOUND,
            "disabled; start the process with --debug-endpoints\n",
        );
    }
    if caller::is_cross_site(request.headers()) {
        let reason = "cross-site requests are rejected\n";
        return text(StatusCode::FORBIDDEN, reason);
    }
    match (request.uri().path(), request.method()) {
        (PROFILE, &Method::GET) => profile::serve(request.uri().clone(), stop).await,
        (PROFILE, _) => method_not_allowed("GET"),
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; use /debug/profile?seconds=10\n",
        ),
    }
}

pub(super) fn method_not_allowed(allowed: &'static str) -> Reply {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed}\n"));
    let allowed = header::HeaderValue::from_static(allowed);
    reply.headers_mut().insert(header::ALLOW, allowed);
    reply
}
