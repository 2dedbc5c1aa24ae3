//! Admits calls that carry a valid token: `authorization: Bearer …`.
//!
//! Health checks need none: load balancers and orchestrators make them, they reveal nothing but whether this process
//! serves, and a token would be one more thing that could make a healthy producer look dead. A stream that is open
//! stays open when its token is withdrawn.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use figures::producer;
use http::{HeaderMap, Request};
use prometheus::{IntCounter, IntCounterVec};
use runtime::{metrics::Registry, reload::Reloaded, token};
use tonic::Status;

/// The service that needs no token.
const OPEN_TO_ALL: &str = "/grpc.health.v1.Health/";

/// Refusals are logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Checks the token of each call.
#[derive(Debug)]
pub struct TokenCheck {
    tokens: Arc<Reloaded<token::File>>,
    missing: IntCounter,
    wrong: IntCounter,
    unlogged: Mutex<Unlogged>,
}

/// Refusals that were not logged yet, and when the last ones were.
#[derive(Debug, Default)]
struct Unlogged {
    refused: u64,
    logged: Option<Instant>,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("a token is needed: authorization: Bearer …")]
    Missing,
    #[error("the token is none that is taken here")]
    Wrong,
}

impl TokenCheck {
    /// Registers `producer_token_refusals_total{reason}`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn new(
        tokens: Arc<Reloaded<token::File>>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let refusals: IntCounterVec = registry.add(producer::TOKEN_REFUSALS)?;
        Ok(Self {
            tokens,
            missing: refusals.with_label_values(&["missing"]),
            wrong: refusals.with_label_values(&["wrong"]),
            unlogged: Mutex::default(),
        })
    }

    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        if path.starts_with(OPEN_TO_ALL) {
            return Ok(());
        }
        let token = token::bearer(headers).ok_or(Refusal::Missing)?;
        if self.tokens.current().contain(token) {
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
        match refusal {
            Refusal::Missing => self.missing.inc(),
            Refusal::Wrong => self.wrong.inc(),
        }
        let mut unlogged = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refused) = unlogged.note(Instant::now()) {
            tracing::warn!(%peer, why = %refusal, refused, "calls are refused");
        }
    }
}

impl Unlogged {
    /// Counts one refusal; returns how many are to be logged now.
    fn note(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        let is_due = self.logged.is_none_or(|at| now - at >= LOG_INTERVAL);
        is_due.then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.refused)
        })
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
        let file = NamedFile::given("--token-file", &path).unwrap();
        let tokens = Reloaded::load(token::File(file)).unwrap();
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

    #[test]
    fn refusals_are_logged_at_once_and_then_summed_up_each_minute() {
        let mut unlogged = Unlogged::default();
        let now = Instant::now();
        assert_eq!(unlogged.note(now), Some(1));
        for second in 1..60 {
            let then = now + Duration::from_secs(second);
            assert_eq!(unlogged.note(then), None);
        }
        assert_eq!(unlogged.note(now + LOG_INTERVAL), Some(60));
    }
}
