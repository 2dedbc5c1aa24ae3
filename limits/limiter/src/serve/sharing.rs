//! Decisions on calls: by the engine, or, with `mode = "exact"` in `[sharing]`, by a server for all limiters of a group.
//!
//! While the server is unavailable, all calls are refused.

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
    exact::{Config, ExactLimits, Operation},
};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    engine::{Engine, Slot, Target, exact},
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
    /// Number of calls refused because the server was unavailable.
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

    /// Number of calls under shared limits: decided by the server, and refused because it was unavailable.
    pub(super) fn decisions(&self) -> Option<[(&'static str, u64); 2]> {
        let shared = self.shared.as_ref()?;
        Some([
            ("server", shared.exact.replies()),
            ("none", shared.undecided.load(Ordering::Relaxed)),
        ])
    }

    /// Describes how calls are decided; an error if they are refused because the server is unavailable. `None` without shared limits.
    pub fn state(&self) -> Option<Result<String, String>> {
        Some(match self.has_server()? {
            true => Ok("the server decides all calls".to_owned()),
            false => Err("server unavailable; refusing all calls".to_owned()),
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
        targets: &[Target],
        kind: &CallKind,
    ) -> Result<(Slot, bool), Problem> {
        let (engine, now) = (&self.engine, self.clock.now());
        let mut is_applied = None;
        if let CallKind::Feedback { feedback, .. } = kind {
            let applied = engine.apply_feedback(&targets[0], feedback, now);
            is_applied = Some(applied.map_err(|error| rejected(error, now))?);
        }
        if let Some(shared) = &self.shared {
            let (slot, has_effect) = self.ask(shared, token, targets, kind).await?;
            return Ok((slot, is_applied.unwrap_or(has_effect)));
        }
        let decided = match *kind {
            CallKind::Reserve {
                requests, max_wait, ..
            } => engine
                .reserve(Some(token), targets, requests, max_wait, now)
                .map(|slot| (slot, true)),
            CallKind::Increment { requests, at } => engine
                .increment(targets, requests, at, now)
                .map(|(recorded, slot)| (slot, recorded == RecordOutcome::Counted)),
            CallKind::Delay { requests } => engine
                .delay(targets, requests, true, now)
                .map(|slot| (slot, false)),
            // This delay query is internal, so it is not counted.
            CallKind::Feedback { .. } => engine
                .delay(targets, 1, false, now)
                .map(|slot| (slot, is_applied == Some(true))),
        };
        decided.map_err(|error| rejected(error, now))
    }

    /// Returns the decision of the server, by its clock, and whether it granted or counted the call.
    async fn ask(
        &self,
        shared: &SharedDecider,
        token: &str,
        targets: &[Target],
        kind: &CallKind,
    ) -> Result<(Slot, bool), Problem> {
        let (requests, operation) = match *kind {
            CallKind::Delay { requests } => (requests, Operation::Peek),
            CallKind::Feedback { .. } => (1, Operation::Peek),
            CallKind::Reserve {
                requests, max_wait, ..
            } => (requests, Operation::Reserve { max_wait }),
            CallKind::Increment { requests, at } => {
                let made = at.map(|at| at / 1_000);
                (requests, Operation::Count { made })
            }
        };
        let is_counted = !matches!(kind, CallKind::Feedback { .. });
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
        let Ok(decision) = decision else {
            self.engine.abandon_decision(&pending, was_sent);
            shared.undecided.fetch_add(1, Ordering::Relaxed);
            return Err(transient(SERVER_LOST, now));
        };
        let decided = self.engine.finish_decision(&pending, &decision, now);
        decided.map_err(|error| rejected(error, now))
    }
}
