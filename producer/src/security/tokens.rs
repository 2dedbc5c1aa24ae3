//! Admits calls that carry a valid token: `authorization: Bearer …`.
//!
//! Health checks need none: load balancers and orchestrators make them, they reveal nothing but whether this process
//! serves, and a token would be one more thing that could make a healthy producer look dead. A stream that is open
//! stays open when its token is withdrawn.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, Request};
use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::{metrics::Registry, reload::Reloader, token};
use tonic::Status;

use crate::log_gate::LogGate;

/// The service that needs no token.
const OPEN_TO_ALL: &str = "/grpc.health.v1.Health/";

/// Refusals are logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Checks the token of each call.
#[derive(Debug)]
pub struct TokenCheck {
    tokens: Arc<Reloader<token::File>>,
    refusals: IntCounterVec,
    log_gate: LogGate,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("a token is needed: authorization: Bearer …")]
    Missing,
    #[error("invalid token")]
    Wrong,
}

impl Refusal {
    fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Wrong => "wrong",
        }
    }
}

impl TokenCheck {
    /// Registers `producer_token_refusals_total{reason}`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn new(
        tokens: Arc<Reloader<token::File>>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let refusals: IntCounterVec = registry.add(producer::TOKEN_REFUSALS)?;
        for refusal in [Refusal::Missing, Refusal::Wrong] {
            refusals.with_label_values(&[refusal.label()]);
        }
        Ok(Self {
            tokens,
            refusals,
            log_gate: LogGate::new(1, LOG_INTERVAL),
        })
    }

    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        if path.starts_with(OPEN_TO_ALL) {
            return Ok(());
        }
        let token = token::bearer(headers).ok_or(Refusal::Missing)?;
        if self.tokens.current().contains(token) {
            Ok(())
        } else {
            Err(Refusal::Wrong)
        }
    }

    /// Admits a call that carries a valid token or needs none.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, with the reason.
    pub fn admit<B>(&self, request: &Request<B>, peer: IpAddr) -> Result<(), Status> {
        self.check(request.uri().path(), request.headers())
            .map_err(|refusal| {
                self.note(refusal, peer);
                Status::unauthenticated(refusal.to_string())
            })
    }

    fn note(&self, refusal: Refusal, peer: IpAddr) {
        self.refusals.with_label_values(&[refusal.label()]).inc();
        if let Some(left_out) = self.log_gate.admit(Instant::now()) {
            let refused = left_out + 1;
            tracing::warn!(%peer, why = %refusal, refused, "calls rejected");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use http::header::AUTHORIZATION;
    use runtime::reload::NamedFile;

    use super::*;

    const STREAMS: &str = "/cookiesync.v1.CookieStreamer/Subscribe";

    /// A check of these tokens, one per line.
    pub(crate) fn token_check(tokens: &str) -> TokenCheck {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(tokens.as_bytes()).unwrap();
        let path = file.path().display().to_string();
        let file = NamedFile::from_flag("--token-file", &path).unwrap();
        let tokens = Reloader::load(token::File(file)).unwrap();
        TokenCheck::new(Arc::new(tokens), &Registry::new()).unwrap()
    }

    #[track_caller]
    fn check(path: &str, authorization: &[&str], expected: Result<(), Refusal>) {
        let token_check = token_check("the-first-of-both\nthe-other-of-both\n");
        let mut headers = HeaderMap::new();
        for value in authorization {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        assert_eq!(
            token_check.check(path, &headers),
            expected,
            "{authorization:?}"
        );
    }

    #[test]
    fn every_token_opens_and_nothing_else_does() {
        check(STREAMS, &["Bearer the-first-of-both"], Ok(()));
        check(STREAMS, &["bearer  the-other-of-both"], Ok(()));
        check(STREAMS, &[], Err(Refusal::Missing));
        for not_bearer in [
            "",
            "Bearer",
            "Bearer ",
            "Basic the-first-of-both",
            "the-first-of-both",
        ] {
            check(STREAMS, &[not_bearer], Err(Refusal::Missing));
        }
        for wrong in ["Bearer the-first-of-bot", "Bearer the-first-of-both,x"] {
            check(STREAMS, &[wrong], Err(Refusal::Wrong));
        }
        let second_is_right = ["Bearer guessed", "Bearer the-first-of-both"];
        check(STREAMS, &second_is_right, Err(Refusal::Wrong));
    }

    #[test]
    fn only_health_checks_need_no_token() {
        check("/grpc.health.v1.Health/Check", &[], Ok(()));
        for path in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/cookiesync.v1.CookieStreamer/GetCookies",
            "/grpc.health.v1.HealthX/Check",
            "/",
        ] {
            check(path, &[], Err(Refusal::Missing));
        }
    }
}
