//! The limits in force that a token opens as one document, for those who keep to them by themselves: read again when it changes, by a request
//! that is held until then.

use std::time::Duration;

use http::Request;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        asked::invalid,
        limit_sources::View,
        problem::{self, Problem},
        service::{Service, WAIT_MAX},
        tokens::Holder,
    },
    Answer,
    answer::text,
    ask,
    limits_admin::{is_known, tagged, unchanged},
};

impl Service {
    /// The document, or that it is still the one that the request names: then after the `wait` of its query.
    pub(super) async fn feed<B>(
        &self,
        holder: &Holder,
        request: &Request<B>,
        stop: &CancellationToken,
    ) -> Result<Answer, Problem> {
        if !holder.rights.feed {
            return Err(self.no_right("the token has no right to read the feed"));
        }
        let wait = wait(request.uri().query().unwrap_or_default())?;
        let end = Instant::now() + wait;
        let mut plans = self.sources.watch();
        let mut permit = None;
        loop {
            let plan = plans.borrow_and_update().clone();
            if self.tokens.is_none() && plan.said().file.has_credentials() {
                let detail =
                    "the file has the password of a server: --token-file says who may read it";
                return Err(self.no_right(detail));
            }
            let View { body, etag } = plan.feed(&holder.limits).await;
            if !is_known(request.headers(), &etag) {
                return Ok(tagged(text(body, "application/json"), &etag));
            }
            if Instant::now() >= end {
                return Ok(unchanged(&etag));
            }
            if permit.is_none() {
                let waiting = self.waiting.enter(&holder.name, Vec::new());
                permit = Some(waiting.map_err(|full| {
                    self.metrics.full(full);
                    Problem::new(problem::TOO_MANY_WAIT, "")
                })?);
            }
            // Until a change or the end of the wait: both are looked at above.
            let waiting = timeout_at(end, plans.changed());
            if stop.run_until_cancelled(waiting).await.is_none() {
                return Ok(unchanged(&etag));
            }
        }
    }
}

/// For how long an answer may be held.
fn wait(query: &str) -> Result<Duration, Problem> {
    let mut wait = Duration::ZERO;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "wait" {
            let name = ask::decoded(name)?;
            return Err(invalid(format!("{name:?} is not a parameter of this path")));
        }
        let seconds = value.parse().ok().map(Duration::from_secs);
        let seconds = seconds.filter(|wait| *wait <= WAIT_MAX);
        let most = WAIT_MAX.as_secs();
        wait = seconds.ok_or_else(|| invalid(format!("wait: 0 to {most}, in whole seconds")))?;
    }
    Ok(wait)
}
