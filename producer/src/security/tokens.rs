//! Admits calls with a valid token: `authorization: Bearer …`.
//!
//! Health checks need no token: they reveal only whether this process serves. If they needed one, a load balancer with
//! a wrong token would consider a healthy producer unhealthy. An open stream stays open when its token is revoked.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::Request;
use metric_defs::producer;
use prometheus::IntCounterVec;
use runtime::{
    metrics::Registry,
    reload::Reloader,
    token::{self, TokenError},
};

use crate::{interval_limit::IntervalLimit, metrics::counters};

/// The call that needs no token.
pub(crate) const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Minimum time between log messages about rejected calls.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Checks the token of each call.
#[derive(Debug)]
pub struct TokenCheck {
    tokens: Arc<Reloader<token::File>>,
    refusals: IntCounterVec,
    log_limit: IntervalLimit,
}

fn label(error: TokenError) -> &'static str {
    match error {
        TokenError::Missing => "missing",
        TokenError::Invalid => "invalid",
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
        let labels = [TokenError::Missing, TokenError::Invalid].map(label);
        Ok(Self {
            tokens,
            refusals: counters(registry, producer::TOKEN_REFUSALS, labels)?,
            log_limit: IntervalLimit::new(1, LOG_INTERVAL),
        })
    }

    /// Admits a call that carries a valid token or needs none.
    ///
    /// # Errors
    /// When the token is missing or invalid.
    pub fn admit<B>(&self, request: &Request<B>, peer: IpAddr) -> Result<(), TokenError> {
        if request.uri().path() == HEALTH_CHECK {
            return Ok(());
        }
        let Err(error) = self.tokens.current().authenticate(request.headers()) else {
            return Ok(());
        };
        self.refusals.with_label_values(&[label(error)]).inc();
        if let Some(suppressed) = self.log_limit.admit(Instant::now()) {
            let rejected = suppressed + 1;
            tracing::warn!(%peer, reason = %error, rejected, "calls rejected");
        }
        Err(error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{io::Write as _, net::Ipv4Addr};

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
        let tokens = Reloader::load(token::File::new(file)).unwrap();
        TokenCheck::new(Arc::new(tokens), &Registry::new()).unwrap()
    }

    #[track_caller]
    fn check(path: &str, authorization: &[&str], expected: Result<(), TokenError>) {
        let token_check = token_check("the-first-of-both\nthe-other-of-both\n");
        let mut request = Request::get(path).body(()).unwrap();
        for value in authorization {
            let headers = request.headers_mut();
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        let admitted = token_check.admit(&request, Ipv4Addr::LOCALHOST.into());
        assert_eq!(admitted, expected, "{authorization:?}");
    }

    #[test]
    fn only_listed_tokens_grant_access() {
        check(STREAMS, &["Bearer the-first-of-both"], Ok(()));
        check(STREAMS, &["bearer  the-other-of-both"], Ok(()));
        check(STREAMS, &[], Err(TokenError::Missing));
        for not_bearer in [
            "",
            "Bearer",
            "Bearer ",
            "Basic the-first-of-both",
            "the-first-of-both",
        ] {
            check(STREAMS, &[not_bearer], Err(TokenError::Missing));
        }
        for invalid in ["Bearer the-first-of-bot", "Bearer the-first-of-both,x"] {
            check(STREAMS, &[invalid], Err(TokenError::Invalid));
        }
        let second_is_valid = ["Bearer guessed", "Bearer the-first-of-both"];
        check(STREAMS, &second_is_valid, Err(TokenError::Invalid));
    }

    #[test]
    fn only_health_checks_need_no_token() {
        check(HEALTH_CHECK, &[], Ok(()));
        for path in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/cookiesync.v1.CookieStreamer/GetCookies",
            "/grpc.health.v1.HealthX/Check",
            "/grpc.health.v1.Health/Watch",
            "/",
        ] {
            check(path, &[], Err(TokenError::Missing));
        }
    }
}
