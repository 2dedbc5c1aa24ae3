//! Processing of requests between the HTTP layer and the decisions; [`http`](super::http) parses requests and formats
//! responses.
//!
//! A waiting reservation occupies its connection, so the connection limit bounds the number of waiting reservations. A client
//! that disconnects does not release its slot.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Uri};
use prometheus::IntGauge;
use runtime::{caller, rate_limit::HeaderFormat, reload::Reloader};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    engine::Slot,
    metrics,
    problem::{self, NOT_SAVED, Problem},
    request::{CallKind, LimitedCall},
    saver::Saver,
    sharing::Decider,
    tokens::{self, Client},
};

/// Maximum time that a response is held until the slot.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// State shared by all connections.
pub struct Service {
    /// Decides on calls.
    pub decider: Decider,
    /// Accepted tokens; `None` if clients need none.
    pub tokens: Option<Arc<Reloader<tokens::File>>>,
    /// Form of the rate-limit headers.
    pub fields: HeaderFormat,
    /// Writes changes before the response.
    pub saver: Arc<Saver>,
    /// Metrics of requests.
    pub metrics: metrics::RequestMetrics,
}

impl Service {
    /// Authenticates a request.
    ///
    /// # Errors
    /// When the token is missing or invalid; without tokens, when a browser sends the request from another site.
    pub(super) fn authenticate(&self, headers: &HeaderMap) -> Result<Arc<Client>, Problem> {
        let Some(tokens) = &self.tokens else {
            if caller::is_foreign(headers, &Uri::default()) {
                return Err(Problem::new(problem::MISDIRECTED, ""));
            }
            return Ok(Arc::default());
        };
        let client = tokens.current().authenticate(headers);
        client.map_err(|error| Problem::new(problem::UNAUTHORIZED, error.to_string()))
    }

    /// [Decides](Decider::decide) on a call. A waiting reservation returns at its slot, or when `stop` is
    /// cancelled.
    ///
    /// # Errors
    /// When the call is rejected, or its change is not known to be saved.
    pub(super) async fn process(
        &self,
        call: &mut LimitedCall,
        client: &Client,
        stop: &CancellationToken,
    ) -> Result<(Slot, bool), Problem> {
        let began = Instant::now();
        for counter in &call.counters {
            client.permissions.authorize(&counter.limit)?;
        }
        if let (Some(rule), Some(first)) = (call.rule, call.counters.first_mut()) {
            first.limit = rule.limit_name(&first.limit);
        }
        let may_change = !matches!(call.kind, CallKind::Delay { .. });
        let unsaved = || Err(problem::transient(NOT_SAVED, self.decider.clock.now()));
        if may_change && !self.saver.is_writable() {
            return unsaved();
        }
        let decided = self
            .decider
            .decide(&client.name, &call.counters, &call.kind);
        let decided = decided.await;
        let decided_at = Instant::now();
        // Even a refused call can change a counter.
        if may_change && !self.saver.wait_written().await {
            return unsaved();
        }
        let (mut slot, has_effect) = decided?;
        let is_held = matches!(call.kind, CallKind::Reserve { is_held: true, .. });
        if is_held && slot.at > slot.now {
            self.hold(&slot, decided_at, stop).await;
        } else {
            self.metrics.seconds.observe(began.elapsed(), 1);
        }
        if may_change {
            let passed = u64::try_from(decided_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
            slot.now = slot.now.saturating_add(passed);
        }
        Ok((slot, has_effect))
    }

    /// Holds the response until the slot that was decided on at `decided_at`, for up to [`WAIT_MAX`].
    async fn hold(&self, slot: &Slot, decided_at: Instant, stop: &CancellationToken) {
        self.metrics.waiting.inc();
        let _waiting = WaitingGuard(&self.metrics.waiting);
        let wait = Duration::from_nanos(slot.at.saturating_sub(slot.now));
        let wait = wait.saturating_sub(decided_at.elapsed());
        stop.run_until_cancelled(sleep(wait.min(WAIT_MAX))).await;
    }
}

/// Decrements the gauge when the reservation ends or its client disconnects.
struct WaitingGuard<'a>(&'a IntGauge);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
