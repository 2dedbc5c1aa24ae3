//! Who decides on calls: the limiter alone, or, with `mode = "exact"` of `[sharing]`, a server for all limiters of a group.
//!
//! While the server is lost, each limiter goes by its part of every limit where the file says how many there are at most; else nothing goes.

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
    engine::{Asking, Counting, Engine, Refused, Said, Slot, Target, exact},
    problem::{Problem, refused, server_lost},
};

/// Decides on calls; clones share it.
#[derive(Debug, Clone)]
pub struct Decider {
    engine: Arc<Engine>,
    clock: Clock,
    shared: Option<Arc<Shared>>,
}

/// Limits that a server decides on.
#[derive(Debug)]
struct Shared {
    exact: ExactLimits,
    counting: Counting,
    /// Calls that were decided on here, and those that nobody decided on.
    by_part: AtomicU64,
    by_nobody: AtomicU64,
}

/// How many calls under shared limits were decided on by whom, and whether the server is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) by_server: u64,
    pub(super) by_part: u64,
    pub(super) by_nobody: u64,
    pub(super) has_server: bool,
}

/// What a change of `[sharing]` is not made by: a server that decides, or decided, is known at the start alone.
///
/// # Errors
/// With what to do.
pub(super) fn check_same(before: &Rules, after: &Rules) -> Result<(), ConfigErrors> {
    let is_exact = |rules: &Rules| exact(rules.sharing.as_ref()).is_some();
    if before.sharing == after.sharing || !(is_exact(before) || is_exact(after)) {
        return Ok(());
    }
    let error = "sharing: who decides is read at the start: restart the limiter";
    Err(ConfigErrors(vec![error.to_owned()]))
}

impl Decider {
    /// As the file says, which was checked.
    #[must_use]
    pub fn new(engine: Arc<Engine>, clock: Clock, sharing: Option<&Sharing>) -> Self {
        if sharing.is_some_and(|it| it.mode == SharingMode::Lease) {
            tracing::info!("lease mode is for producers; this limiter does not share its limits");
        }
        let server = exact(sharing).and_then(|sharing| {
            let server = Address::of(sharing).ok()?;
            Some(Config {
                server,
                group: sharing.group.clone(),
                budget: sharing.timeout,
            })
        });
        let shared = server.map(|config| {
            Arc::new(Shared {
                exact: ExactLimits::new(config),
                counting: engine.options().counting,
                by_part: AtomicU64::new(0),
                by_nobody: AtomicU64::new(0),
            })
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

    /// Whether a server decides now.
    pub(super) fn has_server(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|it| it.exact.is_connected())
    }

    pub(super) fn standing(&self) -> Option<Standing> {
        let shared = self.shared.as_ref()?;
        Some(Standing {
            by_server: shared.exact.replies(),
            by_part: shared.by_part.load(Ordering::Relaxed),
            by_nobody: shared.by_nobody.load(Ordering::Relaxed),
            has_server: shared.exact.is_connected(),
        })
    }

    /// Whether calls are decided on, in words; `None` where no server shares the limits.
    #[must_use]
    pub fn state(&self) -> Option<Result<String, String>> {
        let shared = self.shared.as_ref()?;
        Some(match shared.counting {
            _ if shared.exact.is_connected() => Ok("the server decides".to_owned()),
            Counting::Part(parts) => {
                let words = format!("without the server, by a part of 1/{parts} of each limit");
                Ok(words)
            }
            Counting::Here | Counting::Elsewhere => {
                Err("without the server nothing goes (sharing.members_max is not set)".to_owned())
            }
        })
    }

    /// When so many requests could go.
    pub(super) async fn delay(&self, of: &[Target<'_>], requests: u64) -> Result<Slot, Problem> {
        if let Some((slot, _)) = self.ask(None, of, requests, Operation::Peek).await? {
            return Ok(slot);
        }
        let now = self.clock.now();
        let slot = self.engine.delay(of, requests, now);
        slot.map_err(|why| self.wrong(why, now))
    }

    /// Takes a slot within the maximum wait, for the bearer of a token.
    pub(super) async fn reserve(
        &self,
        by: &str,
        of: &[Target<'_>],
        requests: u64,
        max_wait: Duration,
    ) -> Result<Slot, Problem> {
        let question = Operation::Reserve { max_wait };
        if let Some((slot, _)) = self.ask(Some(by), of, requests, question).await? {
            return Ok(slot);
        }
        let now = self.clock.now();
        let slot = self.engine.reserve(Some(by), of, requests, max_wait, now);
        slot.map_err(|why| self.wrong(why, now))
    }

    /// Counts calls that were made, and says when one more could go, and whether they have an effect.
    pub(super) async fn increment(
        &self,
        of: &[Target<'_>],
        requests: u64,
        at: Option<u64>,
    ) -> Result<(Slot, bool), Problem> {
        let made = at.map(|at| at / 1_000);
        let question = Operation::Count { made };
        if let Some(counted) = self.ask(None, of, requests, question).await? {
            return Ok(counted);
        }
        let now = self.clock.now();
        let counted = self.engine.increment(of, requests, at, now);
        let (recorded, slot) = counted.map_err(|why| self.wrong(why, now))?;
        Ok((slot, recorded == RecordOutcome::Counted))
    }

    /// Learns from a partner's answer, and says when one request could go, and whether it did.
    pub(super) async fn feedback(
        &self,
        of: Target<'_>,
        said: Said,
    ) -> Result<(Slot, bool), Problem> {
        let now = self.clock.now();
        if self.shared.is_none() {
            let learned = self.engine.feedback(of, said, now);
            let (is_learned, slot) = learned.map_err(|why| self.wrong(why, now))?;
            return Ok((slot, is_learned));
        }
        let learned = self.engine.hear(of, said, now);
        let is_learned = learned.map_err(|why| self.wrong(why, now))?;
        let asking = self.engine.asking(None, &[of], 1, Operation::Peek, now);
        let mut asking = asking.map_err(|why| refused(why, now))?;
        asking.is_counted = false;
        let slot = match self.ask_about(asking).await? {
            Some((slot, _)) => slot,
            None => {
                let slot = self.engine.delay(&[of], 1, now);
                slot.map_err(|why| self.wrong(why, now))?
            }
        };
        Ok((slot, is_learned))
    }

    /// What the server says, by its clock, and whether it took anything; `None` where it is for the engine to say, as there is no server, or it
    /// is lost.
    async fn ask(
        &self,
        by: Option<&str>,
        of: &[Target<'_>],
        requests: u64,
        question: Operation,
    ) -> Result<Option<(Slot, bool)>, Problem> {
        if self.shared.is_none() {
            return Ok(None);
        }
        let now = self.clock.now();
        let asking = self.engine.asking(by, of, requests, question, now);
        self.ask_about(asking.map_err(|why| refused(why, now))?)
            .await
    }

    async fn ask_about(&self, asking: Asking) -> Result<Option<(Slot, bool)>, Problem> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let was_asked = shared.exact.is_connected();
        let asked = shared
            .exact
            .decide(&asking.asks, asking.question, asking.pause);
        let answer = asked.await;
        let now = self.clock.now();
        let lost = match answer {
            Ok(answer) => {
                let answered = self.engine.answered(&asking, &answer, now);
                return answered.map(Some).map_err(|why| refused(why, now));
            }
            Err(lost) => lost,
        };
        self.engine.unanswered(&asking, was_asked);
        // Where it is there, parts would come on top of what it lets go.
        if lost == ExactError::Unavailable && matches!(shared.counting, Counting::Part(_)) {
            shared.by_part.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        shared.by_nobody.fetch_add(1, Ordering::Relaxed);
        Err(server_lost(now))
    }

    /// Why the engine has no answer.
    fn wrong(&self, why: Refused, now: u64) -> Problem {
        match why {
            // That is said of a part; the whole may let it go.
            Refused::TooMany { .. } if self.shared.is_some() => server_lost(now),
            why => refused(why, now),
        }
    }
}
