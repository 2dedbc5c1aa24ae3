//! Decisions on calls: by the engine, or, with `mode = "exact"` in `[sharing]`, by a server for all limiters of a group.
//!
//! While the server is unavailable, each limiter enforces 1/`members_max` of every limit. Without `members_max` it refuses
//! all calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use limits::{
    RecordOutcome,
    rules::{ConfigErrors, Rules, Sharing, SharingMode},
};
use limits_sharing::{
    Address,
    exact::{Config, ExactError, ExactLimits, Operation},
};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    engine::{CallError, Counting, Engine, Feedback, Slot, Target, exact},
    problem::{Problem, rejected, server_lost},
};

/// Decides on calls; clones share its state.
#[derive(Debug, Clone)]
pub struct Decider {
    engine: Arc<Engine>,
    clock: Clock,
    shared: Option<Arc<SharedDecider>>,
}

/// Decisions by the sharing server.
#[derive(Debug)]
struct SharedDecider {
    exact: ExactLimits,
    counting: Counting,
    by_share: AtomicU64,
    undecided: AtomicU64,
}

/// Availability of the server, and the number of decisions by decider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharingStatus {
    pub(super) by_server: u64,
    /// By the limiter, within its static share.
    pub(super) by_share: u64,
    /// Calls refused because the server was unavailable.
    pub(super) undecided: u64,
    pub(super) has_server: bool,
}

/// Rejects a change of `[sharing]` from or to exact mode, which is only read at startup.
pub(super) fn check_unchanged(before: &Rules, after: &Rules) -> Result<(), ConfigErrors> {
    let is_exact = |rules: &Rules| exact(rules.sharing.as_ref()).is_some();
    if before.sharing == after.sharing || !(is_exact(before) || is_exact(after)) {
        return Ok(());
    }
    let error = "sharing: exact sharing is only read at startup: restart the limiter";
    Err(ConfigErrors(vec![error.to_owned()]))
}

impl Decider {
    /// Creates a decider for this `[sharing]` table, which is valid.
    #[must_use]
    pub fn new(engine: Arc<Engine>, clock: Clock, sharing: Option<&Sharing>) -> Self {
        if sharing.is_some_and(|it| it.mode == SharingMode::Lease) {
            tracing::info!("lease mode is for producers; this limiter does not share its limits");
        }
        let shared = exact(sharing).and_then(|sharing| {
            let config = Config {
                server: Address::of(sharing).ok()?,
                group: sharing.group.clone(),
                budget: sharing.timeout,
            };
            Some(Arc::new(SharedDecider {
                exact: ExactLimits::new(config),
                counting: engine.options().counting,
                by_share: AtomicU64::new(0),
                undecided: AtomicU64::new(0),
            }))
        });
        Self {
            engine,
            clock,
            shared,
        }
    }

    /// Keeps the connection to the server, if there is one, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        if let Some(shared) = &self.shared {
            shared.exact.run(stop).await;
        }
    }

    /// Whether a server is available and decides.
    pub(super) fn has_server(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|it| it.exact.is_connected())
    }

    pub(super) fn status(&self) -> Option<SharingStatus> {
        let shared = self.shared.as_ref()?;
        Some(SharingStatus {
            by_server: shared.exact.replies(),
            by_share: shared.by_share.load(Ordering::Relaxed),
            undecided: shared.undecided.load(Ordering::Relaxed),
            has_server: shared.exact.is_connected(),
        })
    }

    /// Describes how calls are decided, with an error if they are not; `None` without shared limits.
    #[must_use]
    pub fn state(&self) -> Option<Result<String, String>> {
        let shared = self.shared.as_ref()?;
        Some(match shared.counting {
            _ if shared.exact.is_connected() => Ok("the server decides".to_owned()),
            Counting::StaticShare(members) => Ok(format!(
                "server unavailable; enforcing 1/{members} of each limit"
            )),
            Counting::Local | Counting::Server => Err(
                "server unavailable; refusing all calls because sharing.members_max is not set"
                    .to_owned(),
            ),
        })
    }

    /// Returns the earliest time for a call.
    pub(super) async fn delay(
        &self,
        targets: &[Target<'_>],
        requests: u64,
    ) -> Result<Slot, Problem> {
        self.earliest(targets, requests, true).await
    }

    async fn earliest(
        &self,
        targets: &[Target<'_>],
        requests: u64,
        is_counted: bool,
    ) -> Result<Slot, Problem> {
        let operation = Operation::Peek;
        let decision = self.ask(None, targets, requests, operation, is_counted);
        if let Some((slot, _)) = decision.await? {
            return Ok(slot);
        }
        let now = self.clock.now();
        let slot = self.engine.delay(targets, requests, is_counted, now);
        slot.map_err(|error| self.problem(error, now))
    }

    /// Reserves a slot within the maximum wait for a token.
    pub(super) async fn reserve(
        &self,
        token: &str,
        targets: &[Target<'_>],
        requests: u64,
        max_wait: Duration,
    ) -> Result<Slot, Problem> {
        let operation = Operation::Reserve { max_wait };
        let decision = self.ask(Some(token), targets, requests, operation, true);
        if let Some((slot, _)) = decision.await? {
            return Ok(slot);
        }
        let now = self.clock.now();
        let slot = self
            .engine
            .reserve(Some(token), targets, requests, max_wait, now);
        slot.map_err(|error| self.problem(error, now))
    }

    /// Counts calls already made. Returns the earliest time for one more, and whether the calls have an effect.
    pub(super) async fn increment(
        &self,
        targets: &[Target<'_>],
        requests: u64,
        at: Option<u64>,
    ) -> Result<(Slot, bool), Problem> {
        let made = at.map(|at| at / 1_000);
        let operation = Operation::Count { made };
        let decision = self.ask(None, targets, requests, operation, true);
        if let Some(counted) = decision.await? {
            return Ok(counted);
        }
        let now = self.clock.now();
        let counted = self.engine.increment(targets, requests, at, now);
        let (recorded, slot) = counted.map_err(|error| self.problem(error, now))?;
        Ok((slot, recorded == RecordOutcome::Counted))
    }

    /// Applies the feedback of a partner. Returns the earliest time for a request, and whether the feedback adds a
    /// restriction.
    pub(super) async fn feedback(
        &self,
        target: Target<'_>,
        feedback: Feedback,
    ) -> Result<(Slot, bool), Problem> {
        let now = self.clock.now();
        let applied = self.engine.apply_feedback(target, feedback, now);
        let is_applied = applied.map_err(|error| self.problem(error, now))?;
        Ok((self.earliest(&[target], 1, false).await?, is_applied))
    }

    /// Returns the decision of the server, by its clock, and whether it granted or counted the call; `None` if the engine
    /// has to decide.
    async fn ask(
        &self,
        token: Option<&str>,
        targets: &[Target<'_>],
        requests: u64,
        operation: Operation,
        is_counted: bool,
    ) -> Result<Option<(Slot, bool)>, Problem> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let now = self.clock.now();
        let pending = self
            .engine
            .begin_decision(token, targets, requests, operation, is_counted, now)
            .map_err(|error| rejected(error, now))?;
        let was_sent = shared.exact.is_connected();
        let decision = shared
            .exact
            .decide(&pending.rule_requests, pending.operation, pending.pause)
            .await;
        let now = self.clock.now();
        let lost = match decision {
            Ok(answer) => {
                let decided = self.engine.finish_decision(&pending, &answer, now);
                return decided.map(Some).map_err(|error| rejected(error, now));
            }
            Err(lost) => lost,
        };
        self.engine.abandon_decision(&pending, was_sent);
        // An overloaded server still grants calls; the static share must not add to them.
        if lost == ExactError::Unavailable && matches!(shared.counting, Counting::StaticShare(_)) {
            shared.by_share.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        shared.undecided.fetch_add(1, Ordering::Relaxed);
        Err(server_lost(now))
    }

    fn problem(&self, error: CallError, now: u64) -> Problem {
        match error {
            // The burst is that of the static share; the full limit may allow the call.
            CallError::OverBurst { .. } if self.shared.is_some() => server_lost(now),
            error => rejected(error, now),
        }
    }
}
