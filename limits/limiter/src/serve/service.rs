//! Decides, waits and answers; [`http`](super::http) reads what is asked and writes what is answered.
//!
//! A call that waits holds its connection, and gives it back by going away; its slot stays taken. So as many may wait as there may be connections.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use prometheus::IntGauge;
use runtime::{
    caller::{has_loopback_host, is_cross_site},
    rate_limit::Fields,
    reload::Reloader,
    token,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    ask::{Asked, What},
    clock::Clock,
    engine::{Engine, Slot},
    limit_sources::LimitSources,
    metrics,
    problem::{self, Problem, not_saved},
    saver::Saver,
    sharing::Decider,
    tokens::{self, Holder},
};

/// Largest body of a request.
const BODY_BYTES_MAX: usize = 8 << 10;

/// Longest time for a body to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest that an answer is held until its slot.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What connections share.
pub struct Service {
    /// The limiter.
    pub engine: Arc<Engine>,
    /// Who decides on calls.
    pub decider: Decider,
    /// Its clock.
    pub clock: Clock,
    /// Who may ask; `None`: anybody who reaches the port.
    pub tokens: Option<Arc<Reloader<tokens::File>>>,
    /// How answers over HTTP tell what is left.
    pub fields: Fields,
    /// Where the limits come from.
    pub sources: LimitSources,
    /// What writes changes before they are answered; `None`: nothing is kept.
    pub saver: Option<Saver>,
    /// What is counted.
    pub metrics: metrics::Serving,
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// When the call may go, or the next one could.
    pub(super) slot: Slot,
    /// Whether it changed anything: requests were taken or counted, or something was learned.
    pub(super) has_effect: bool,
}

impl Service {
    /// Who makes a request.
    ///
    /// # Errors
    /// Why the request is not admitted.
    pub(super) fn admit(&self, head: &Parts) -> Result<Arc<Holder>, Problem> {
        let Some(tokens) = &self.tokens else {
            if !has_loopback_host(&head.headers, &head.uri) || is_cross_site(&head.headers) {
                return Err(Problem::new(problem::MISDIRECTED, ""));
            }
            return Ok(Arc::new(Holder::anybody()));
        };
        let refuse = |reason, detail: &str| {
            let refusals = &self.metrics.token_refusals;
            refusals.with_label_values(&[reason]).inc();
            Problem::new(problem::UNAUTHORIZED, detail)
        };
        let token = token::bearer(&head.headers).ok_or_else(|| refuse("missing", ""))?;
        let holder = tokens.current().holder(token);
        holder.ok_or_else(|| refuse("wrong", "invalid token"))
    }

    /// Answers a call that came at `began`; where it is to wait for its slot, then, or as soon as `stop` is cancelled.
    ///
    /// # Errors
    /// Why it is not answered.
    pub(super) async fn answer(
        &self,
        asked: &mut Asked,
        holder: &Holder,
        stop: &CancellationToken,
        began: Instant,
    ) -> Result<Answer, Problem> {
        for counter in &asked.of {
            self.may_use(holder, &counter.limit)?;
        }
        if let (Some(rule), Some(first)) = (asked.rule, asked.of.first_mut()) {
            first.limit = rule.limit_of(&first.limit);
        }
        let may_change = !matches!(asked.what, What::Delay { .. });
        let saver = self.saver.as_ref().filter(|_| may_change);
        let unsaved = |_| not_saved(self.clock.now());
        saver.map_or(Ok(()), Saver::check).map_err(unsaved)?;
        let decided = self.decide(asked, holder).await;
        let decided_at = Instant::now();
        if let Some(saver) = saver {
            // A call that is refused may count, too.
            saver.written().await.map_err(unsaved)?;
        }
        let Answer {
            mut slot,
            has_effect,
        } = decided?;
        let is_held = matches!(asked.what, What::Reserve { is_held: true, .. });
        if is_held && slot.at > slot.now {
            self.hold(&slot, decided_at, stop).await;
        } else {
            self.metrics.seconds.observe(began.elapsed(), 1);
        }
        if may_change {
            let passed = u64::try_from(decided_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
            slot.now = slot.now.saturating_add(passed);
        }
        Ok(Answer { slot, has_effect })
    }

    async fn decide(&self, asked: &Asked, holder: &Holder) -> Result<Answer, Problem> {
        let targets = asked.targets();
        let (slot, has_effect) = match &asked.what {
            What::Delay { requests } => (self.decider.delay(&targets, *requests).await?, false),
            What::Increment { requests, at } => {
                self.decider.increment(&targets, *requests, *at).await?
            }
            What::Feedback(feedback) => {
                let [target] = targets[..] else {
                    let detail = "also: an answer is of one limit";
                    return Err(Problem::new(problem::INVALID, detail));
                };
                let said = feedback.said(self.clock.now())?;
                self.decider.feedback(target, said).await?
            }
            What::Reserve {
                requests, max_wait, ..
            } => {
                let by = &holder.name;
                let slot = self.decider.reserve(by, &targets, *requests, *max_wait);
                (slot.await?, true)
            }
        };
        Ok(Answer { slot, has_effect })
    }

    /// Holds the response until the slot that was decided on at `decided_at`, for up to [`WAIT_MAX`].
    async fn hold(&self, slot: &Slot, decided_at: Instant, stop: &CancellationToken) {
        let _waits = Waits::begin(&self.metrics.waiting);
        let wait = Duration::from_nanos(slot.at.saturating_sub(slot.now));
        let wait = wait.saturating_sub(decided_at.elapsed());
        stop.run_until_cancelled(sleep(wait.min(WAIT_MAX))).await;
    }

    /// Reads a whole body, and takes it away.
    ///
    /// # Errors
    /// When it is too large, or does not come.
    pub(super) async fn body(&self, body: &mut Option<Incoming>) -> Result<Bytes, Problem> {
        let Some(incoming) = body else {
            return Ok(Bytes::new());
        };
        if incoming.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(Problem::new(problem::TOO_LARGE, ""));
        }
        let read = Limited::new(incoming, BODY_BYTES_MAX).collect();
        match timeout(BODY_TIMEOUT, read).await {
            Err(_) => Err(Problem::new(problem::SLOW, "")),
            Ok(Err(_)) => Err(Problem::new(problem::TOO_LARGE, "")),
            Ok(Ok(read)) => {
                *body = None;
                Ok(read.to_bytes())
            }
        }
    }

    pub(super) fn may_use(&self, holder: &Holder, limit: &str) -> Result<(), Problem> {
        if holder.may_use(limit) {
            return Ok(());
        }
        let refusals = &self.metrics.token_refusals;
        refusals.with_label_values(&["limit"]).inc();
        let detail = format!("the token does not open {limit:?}");
        Err(Problem::new(problem::FORBIDDEN, detail))
    }
}

/// Counts one who waits, also one who goes away.
struct Waits<'a>(&'a IntGauge);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a IntGauge) -> Self {
        waiting.inc();
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
