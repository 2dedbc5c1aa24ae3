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
    caller::{is_called_by_a_loopback_name, is_of_another_site},
    rate_limit::Fields,
    reload::Reloaded,
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
    sharing::{Decided, Decider},
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
    pub tokens: Option<Arc<Reloaded<tokens::File>>>,
    /// How answers over HTTP tell what is left.
    pub fields: Fields,
    /// Where the limits come from.
    pub sources: LimitSources,
    /// What writes changes before they are answered; `None`: nothing is kept.
    pub saver: Option<Saver>,
    /// What is counted.
    pub metrics: metrics::Serving,
}

/// Who asks, and since when.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) holder: Arc<Holder>,
    pub(super) began: Instant,
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// When the call may go, or the next one could; its `now` is the moment of the answer.
    pub(super) slot: Slot,
    /// Whether it changed anything: requests were taken or counted, or something was learned.
    pub(super) has_effect: bool,
}

impl Service {
    /// Who makes a request.
    ///
    /// # Errors
    /// Why the request is not admitted.
    pub(super) fn admit(&self, head: &Parts, began: Instant) -> Result<Caller, Problem> {
        let Some(tokens) = &self.tokens else {
            if !is_called_by_a_loopback_name(&head.headers, &head.uri)
                || is_of_another_site(&head.headers)
            {
                return Err(Problem::new(problem::MISDIRECTED, ""));
            }
            let holder = Arc::new(Holder::anybody());
            return Ok(Caller { holder, began });
        };
        let refuse = |reason, detail: &str| {
            let refusals = &self.metrics.token_refusals;
            refusals.with_label_values(&[reason]).inc();
            Problem::new(problem::UNAUTHORIZED, detail)
        };
        let token = token::bearer(&head.headers).ok_or_else(|| refuse("missing", ""))?;
        let holder = tokens.current().holder(token);
        let holder =
            holder.ok_or_else(|| refuse("wrong", "the token is none that is taken here"))?;
        Ok(Caller { holder, began })
    }

    /// Answers a call; where it is to wait for its slot, then, or as soon as `stop` is cancelled.
    ///
    /// # Errors
    /// Why it is not answered.
    pub(super) async fn answer(
        &self,
        asked: &mut Asked,
        caller: &Caller,
        stop: &CancellationToken,
    ) -> Result<Answer, Problem> {
        for counter in &asked.of {
            self.may_use(&caller.holder, &counter.limit)?;
        }
        if let (Some(rule), Some(first)) = (asked.rule, asked.of.first_mut()) {
            first.limit = rule.limit_of(&first.limit);
        }
        let may_change = !matches!(asked.what, What::Delay { .. });
        let saver = self.saver.as_ref().filter(|_| may_change);
        let unsaved = |_| not_saved(self.clock.now());
        saver.map_or(Ok(()), Saver::check).map_err(unsaved)?;
        let decided = self.decide(asked, caller).await;
        if let Some(saver) = saver {
            // A call that is refused may count, too.
            saver.written().await.map_err(unsaved)?;
        }
        let Decided { mut answer, clock } = decided?;
        let is_held = matches!(asked.what, What::Reserve { is_held: true, .. });
        if is_held && answer.slot.at > clock.now() {
            let _waits = Waits::begin(&self.metrics.waiting);
            wait(&answer.slot, &clock, stop).await;
        } else {
            self.metrics.seconds.observe(caller.began.elapsed(), 1);
        }
        if may_change {
            answer.slot.now = clock.now();
        }
        Ok(answer)
    }

    async fn decide(&self, asked: &Asked, caller: &Caller) -> Result<Decided<Answer>, Problem> {
        let targets = asked.targets();
        let answer = |(has_effect, slot)| Answer { slot, has_effect };
        match &asked.what {
            What::Delay { requests } => {
                let decided = self.decider.delay(&targets, *requests).await?;
                Ok(decided.map(|slot| answer((false, slot))))
            }
            What::Increment { requests, at } => {
                let decided = self.decider.increment(&targets, *requests, *at).await?;
                Ok(decided.map(answer))
            }
            What::Feedback(feedback) => {
                let [target] = targets[..] else {
                    let detail = "also: an answer is of one limit";
                    return Err(Problem::new(problem::INVALID, detail));
                };
                let said = feedback.said(self.clock.now())?;
                Ok(self.decider.feedback(target, said).await?.map(answer))
            }
            What::Reserve {
                requests, horizon, ..
            } => {
                let by = &caller.holder.name;
                let decided = self.decider.reserve(by, &targets, *requests, *horizon);
                Ok(decided.await?.map(|slot| answer((true, slot))))
            }
        }
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

/// Holds an answer until its slot, for a while at most.
async fn wait(slot: &Slot, clock: &Clock, stop: &CancellationToken) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let wait = Duration::from_nanos(slot.at.saturating_sub(clock.now()));
        let left = deadline.saturating_duration_since(Instant::now());
        if wait.is_zero() || left.is_zero() {
            return;
        }
        let slept = stop.run_until_cancelled(sleep(wait.min(left))).await;
        if slept.is_none() {
            return;
        }
    }
}
