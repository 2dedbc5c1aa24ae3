//! Decisions on calls: by the engine, or, with `mode = "exact"` in `[sharing]`, by a server for all limiters of a group.
//!
//! While the server is unavailable, each limiter enforces 1/`members_max` of every limit. Without `members_max` it refuses
//! all calls.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
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
    engine::{CallError, Counting, Engine, Slot, Target, exact},
    problem::{Problem, SERVER_LOST, rejected, transient},
    request::CallKind,
};

/// Decides on calls; clones share its state.
#[derive(Debug, Clone)]
pub struct Decider {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: Arc<Clock>,
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

/// Rejects a change of `[sharing]` from, to or in exact mode, which is only read at startup.
pub(super) fn check_unchanged(before: &Rules, after: &Rules) -> Result<(), ConfigErrors> {
    let is_exact = |rules: &Rules| exact(rules.sharing.as_ref()).is_some();
    if before.sharing == after.sharing || !(is_exact(before) || is_exact(after)) {
        return Ok(());
    }
    let error = "sharing: cannot change from, to or in exact mode at run time: restart the limiter";
    Err(ConfigErrors(vec![error.to_owned()]))
}

impl Decider {
    /// Creates a decider for this valid `[sharing]` table.
    pub fn new(engine: Arc<Engine>, clock: Arc<Clock>, sharing: Option<&Sharing>) -> Self {
        if sharing.is_some_and(|it| it.mode == SharingMode::Lease) {
            tracing::info!("only producers support lease mode; this limiter shares no limits");
        }
        let shared = exact(sharing).and_then(|sharing| {
            let config = Config {
                server: Address::of(sharing).ok()?,
                group: sharing.group.clone(),
                budget: sharing.timeout,
            };
            Some(Arc::new(SharedDecider {
                exact: ExactLimits::new(config),
                counting: Counting::of(Some(sharing)),
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

    /// Whether the server is available; `None` without shared limits.
    pub(super) fn has_server(&self) -> Option<bool> {
        self.shared.as_ref().map(|it| it.exact.is_connected())
    }

    /// Number of calls under shared limits: decided by the server, decided here within the guaranteed share, and
    /// refused because neither was possible.
    pub(super) fn decisions(&self) -> Option<[(&'static str, u64); 3]> {
        let shared = self.shared.as_ref()?;
        Some([
            ("server", shared.exact.replies()),
            ("share", shared.by_share.load(Ordering::Relaxed)),
            ("none", shared.undecided.load(Ordering::Relaxed)),
        ])
    }

    /// Describes how calls are decided; an error if they are refused because the server is unavailable. `None` without shared limits.
    pub fn state(&self) -> Option<Result<String, String>> {
        let shared = self.shared.as_ref()?;
        Some(match shared.counting {
            _ if shared.exact.is_connected() => Ok("the server decides all calls".to_owned()),
            Counting::GuaranteedShare(members) => Ok(format!(
                "server unavailable; enforcing 1/{members} of each limit"
            )),
            Counting::Local | Counting::Server => Err(
                "server unavailable; refusing all calls because sharing.members_max is not set"
                    .to_owned(),
            ),
        })
    }

    /// Decides on a call of a token. Returns its slot (after reported calls and feedback, the slot of the next call), and
    /// whether it had an effect: reserved or counted requests, or a restriction added by feedback.
    ///
    /// # Errors
    /// When the call is rejected, or there is no decision.
    pub(super) async fn decide(
        &self,
        token: &str,
        targets: &[Target<'_>],
        kind: &CallKind,
    ) -> Result<(Slot, bool), Problem> {
        let (engine, now) = (&self.engine, self.clock.now());
        let (requests, operation) = match *kind {
            CallKind::Delay { requests } => (requests, Operation::Peek),
            CallKind::Feedback(_) => (1, Operation::Peek),
            CallKind::Reserve {
                requests, max_wait, ..
            } => (requests, Operation::Reserve { max_wait }),
            CallKind::Increment { requests, at } => {
                let made = at.map(|at| at / 1_000);
                (requests, Operation::Count { made })
            }
        };
        let mut is_applied = None;
        if let CallKind::Feedback(feedback) = kind {
            let applied = engine.apply_feedback(targets[0], feedback, now);
            is_applied = Some(applied.map_err(|error| self.problem(error, now))?);
        }
        // The delay query after feedback is internal, so it is not counted.
        let is_counted = is_applied.is_none();
        let by_server = self.ask(token, targets, requests, operation, is_counted);
        if let Some((slot, has_effect)) = by_server.await? {
            return Ok((slot, is_applied.unwrap_or(has_effect)));
        }
        let now = self.clock.now();
        let decided = match *kind {
            CallKind::Reserve { max_wait, .. } => engine
                .reserve(Some(token), targets, requests, max_wait, now)
                .map(|slot| (slot, true)),
            CallKind::Increment { at, .. } => engine
                .increment(targets, requests, at, now)
                .map(|(recorded, slot)| (slot, recorded == RecordOutcome::Counted)),
            CallKind::Delay { .. } | CallKind::Feedback(_) => engine
                .delay(targets, requests, is_counted, now)
                .map(|slot| (slot, is_applied == Some(true))),
        };
        decided.map_err(|error| self.problem(error, now))
    }

    /// Returns the decision of the server, by its clock, and whether it granted or counted the call; `None` if the engine
    /// has to decide.
    async fn ask(
        &self,
        token: &str,
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
            .begin_decision(Some(token), targets, requests, operation, is_counted, now)
            .map_err(|error| rejected(error, now))?;
        let was_sent = shared.exact.is_connected();
        let decision = shared
            .exact
            .decide(&pending.rule_requests, pending.operation, pending.pause)
            .await;
        let now = self.clock.now();
        let lost = match decision {
            Ok(decision) => {
                let decided = self.engine.finish_decision(&pending, &decision, now);
                return decided.map(Some).map_err(|error| rejected(error, now));
            }
            Err(lost) => lost,
        };
        self.engine.abandon_decision(&pending, was_sent);
        // An overloaded server still grants calls; the guaranteed share must not add to them.
        if lost == ExactError::Unavailable
            && matches!(shared.counting, Counting::GuaranteedShare(_))
        {
            shared.by_share.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        shared.undecided.fetch_add(1, Ordering::Relaxed);
        Err(transient(SERVER_LOST, now))
    }

    fn problem(&self, error: CallError, now: u64) -> Problem {
        match error {
            // The burst is that of the guaranteed share; the full limit may allow the call.
            CallError::OverBurst { .. } if self.shared.is_some() => transient(SERVER_LOST, now),
            error => rejected(error, now),
        }
    }
}
