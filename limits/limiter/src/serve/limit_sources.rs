//! Where limits come from, and which of them are in force.
//!
//! Each source says the terms of limits by name: the file, a collection, and PUTs. Of two with a name the one of the later source is
//! in force, as a whole ([`Source`]). What is not of one limit, the file says alone.
//!
//! - A version of a source is in force as a whole or not at all: all sources together are checked as one file is. One that is refused
//!   is kept aside, and tried again when another source changes.
//! - What the sources said last is in each snapshot. So a start does not depend on a collection that cannot be read, and a file that does not go
//!   together with PUTs is refused at a start as it is at any time: the version before stays in force.

mod alone;
mod changes;
#[cfg(feature = "mongodb")]
pub(super) mod collection;
mod plan;
mod views;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use limits::rules::{Document, Mistakes, Terms};
use tokio::sync::watch;

pub use self::alone::Alone;
pub use self::changes::Changes;
pub use self::plan::{Named, Origin, Plan, Said, Source};
pub use self::views::{Names, View, What, etag};
use super::{clock::Clock, engine::Engine, sharing::check_same};

/// Most characters of a limit's terms in the log.
const LOGGED_CHARS_MAX: usize = 400;

/// All sources; clones share them.
#[derive(Debug, Clone)]
pub struct LimitSources {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    clock: Clock,
    /// Locked while a version is looked at, which may take long: see [`aside`](super::aside).
    state: Mutex<State>,
    told: Mutex<Told>,
    plan: watch::Sender<Arc<Plan>>,
    metrics: Changes,
    changing: tokio::sync::Mutex<alone::Changing>,
}

/// Newer versions that do not go together with the other sources, each with why.
#[derive(Debug, Default)]
struct State {
    file: Option<(Document, String)>,
    collection: Option<(Option<Named>, String)>,
}

/// What is told of the sources, also while a version is looked at.
#[derive(Debug, Default)]
struct Told {
    refused: Option<String>,
    /// When the collection was read last, or should have been first.
    read: Option<Instant>,
}

/// What is in force at a start.
#[derive(Debug)]
pub struct Begun {
    plan: Plan,
    refused: Option<(Document, String)>,
    has_collection: bool,
}

/// What a client changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// Who changes it.
    pub who: &'a str,
}

/// Why a client's change is not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotChanged {
    /// All limits together would not be in order.
    Mistakes(Mistakes),
    /// What it goes by is not so, or not any more.
    Condition,
    /// There is nothing to be deleted, with where the limit comes from, if there is one.
    NotPut(Option<Source>),
}

impl Begun {
    /// What is in force when the file says this, and the sources said `kept` before. Without a collection, what one said is gone.
    ///
    /// # Errors
    /// When neither can be in force.
    pub fn of(file: &Document, kept: &[u8], has_collection: bool) -> Result<Self, Mistakes> {
        if kept.is_empty() {
            let said = Said {
                file: file.clone(),
                ..Said::default()
            };
            let plan = Plan::of(said)?;
            return Ok(Self {
                plan,
                refused: None,
                has_collection,
            });
        }
        let unreadable = |_| Mistakes(vec!["what was kept of the limits is damaged".to_owned()]);
        let mut kept = Said::of_bytes(kept).map_err(unreadable)?;
        if !has_collection {
            kept.collection.clear();
        }
        let newest = Said {
            file: file.clone(),
            ..kept.clone()
        };
        match Plan::of(newest) {
            Ok(plan) => Ok(Self {
                plan,
                refused: None,
                has_collection,
            }),
            Err(why) => {
                let refused = Some((file.clone(), in_line(&why)));
                // The mistakes of the newest are those that somebody can do something about.
                let plan = Plan::of(kept).map_err(|_| why)?;
                Ok(Self {
                    plan,
                    refused,
                    has_collection,
                })
            }
        }
    }

    /// What is in force.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl LimitSources {
    /// With what is in force already.
    #[must_use]
    pub fn new(begun: Begun, engine: Arc<Engine>, clock: Clock, metrics: Changes) -> Self {
        engine.keep(Arc::from(begun.plan.said().to_bytes()));
        if let Some((_, why)) = &begun.refused {
            metrics.refused(Source::File);
            tracing::error!(
                why,
                "the file of limits does not go together with what was PUT or read before: its version before stays in force"
            );
        }
        let state = State {
            file: begun.refused,
            collection: None,
        };
        Self {
            shared: Arc::new(Shared {
                engine,
                clock,
                told: Mutex::new(Told {
                    refused: state.refused(),
                    read: begun.has_collection.then(Instant::now),
                }),
                state: Mutex::new(state),
                plan: watch::Sender::new(Arc::new(begun.plan)),
                metrics,
                changing: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// What is in force.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.shared.plan.borrow())
    }

    /// Tells of each version that comes into force.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Plan>> {
        self.shared.plan.subscribe()
    }

    /// Why the newest version of a source is not in force.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.told().refused.clone()
    }

    /// How long ago the collection was read, if there is one.
    #[must_use]
    pub fn collection_age(&self) -> Option<Duration> {
        self.told().read.map(|read| read.elapsed())
    }

    /// The file says something else, which by itself is in order.
    pub fn file(&self, file: &Document) {
        let mut state = self.state();
        let said = Said {
            file: file.clone(),
            ..self.plan().said().clone()
        };
        state.file = match self.try_source(Source::File, said) {
            Ok(()) => None,
            Err(why) => Some((file.clone(), why)),
        };
        self.try_others(&mut state);
    }

    /// The collection says something else, or what cannot be understood, and why.
    pub fn collection(&self, read: Result<Named, String>) {
        self.told().read = Some(Instant::now());
        let mut state = self.state();
        let tried = match read {
            Ok(named) if named == self.plan().said().collection => Ok(()),
            Ok(named) => {
                let said = Said {
                    collection: named.clone(),
                    ..self.plan().said().clone()
                };
                let is_known =
                    matches!(&state.collection, Some((Some(known), _)) if *known == named);
                if is_known {
                    return;
                }
                let tried = self.try_source(Source::Collection, said);
                tried.map_err(|why| (Some(named), why))
            }
            Err(why) => {
                if state.collection.as_ref().is_some_and(|it| it.1 == why) {
                    return;
                }
                self.say_refused(Source::Collection, &why);
                Err((None, why))
            }
        };
        state.collection = tried.err();
        self.try_others(&mut state);
    }

    /// Gives a limit these terms, if `may` allows it, given what is in force. In force when this returns; on the disk with the snapshot of
    /// this number.
    ///
    /// # Errors
    /// When it is not made, and nothing is changed.
    pub fn put(
        &self,
        change: Change<'_>,
        terms: Terms,
        may: impl FnOnce(Option<&Origin>) -> bool,
    ) -> Result<u64, NotChanged> {
        self.change(change, may, |put| {
            put.insert(change.limit.to_owned(), terms);
            Ok(())
        })
    }

    /// Takes back what was PUT: what another source says of the limit is in force again, if one does. Otherwise as [`put`](Self::put).
    ///
    /// # Errors
    /// When it is not made, and nothing is changed.
    pub fn delete(
        &self,
        change: Change<'_>,
        may: impl FnOnce(Option<&Origin>) -> bool,
    ) -> Result<u64, NotChanged> {
        let source = self.plan().origin(change.limit).map(|it| it.source);
        self.change(change, may, |put| match put.remove(change.limit) {
            Some(_) => Ok(()),
            None => Err(NotChanged::NotPut(source)),
        })
    }

    fn change(
        &self,
        Change { limit, who }: Change<'_>,
        may: impl FnOnce(Option<&Origin>) -> bool,
        edit: impl FnOnce(&mut Named) -> Result<(), NotChanged>,
    ) -> Result<u64, NotChanged> {
        let mut state = self.state();
        let plan = self.plan();
        let before = plan.origin(limit);
        if !may(before.as_ref()) {
            return Err(NotChanged::Condition);
        }
        let mut said = plan.said().clone();
        edit(&mut said.put)?;
        let plan = self.plan_of(said).map_err(|mistakes| {
            self.shared.metrics.refused(Source::Put);
            NotChanged::Mistakes(mistakes)
        })?;
        let after = plan.origin(limit);
        tracing::info!(
            who = if who.is_empty() { "anybody" } else { who },
            limit,
            before = logged(before.as_ref()),
            after = logged(after.as_ref()),
            "limit is changed"
        );
        let number = self.take(Source::Put, plan);
        self.try_others(&mut state);
        Ok(number)
    }

    fn try_source(&self, source: Source, said: Said) -> Result<(), String> {
        match self.plan_of(said) {
            Ok(plan) => {
                self.take(source, plan);
                Ok(())
            }
            Err(mistakes) => {
                let why = in_line(&mistakes);
                self.say_refused(source, &why);
                Err(why)
            }
        }
    }

    fn say_refused(&self, source: Source, why: &str) {
        self.shared.metrics.refused(source);
        let source = source.name();
        tracing::warn!(
            source,
            why,
            "other limits are refused: the version before stays in force"
        );
    }

    /// Tries again what did not go together with the others before they changed: both together, then each, until nothing more comes into
    /// force.
    fn try_others(&self, state: &mut State) {
        let with = |file: Option<&Document>, named: Option<&Named>| {
            let plan = self.plan();
            let said = plan.said();
            self.plan_of(Said {
                file: file.unwrap_or(&said.file).clone(),
                collection: named.unwrap_or(&said.collection).clone(),
                put: said.put.clone(),
            })
        };
        if let (Some((file, _)), Some((Some(named), _))) = (&state.file, &state.collection)
            && let Ok(plan) = with(Some(file), Some(named))
        {
            self.take(Source::File, plan);
            (state.file, state.collection) = (None, None);
        }
        loop {
            let mut is_over = true;
            if let Some((file, why)) = &mut state.file {
                match with(Some(file), None) {
                    Ok(plan) => {
                        self.take(Source::File, plan);
                        (state.file, is_over) = (None, false);
                    }
                    Err(mistakes) => *why = in_line(&mistakes),
                }
            }
            if let Some((Some(named), why)) = &mut state.collection {
                match with(None, Some(named)) {
                    Ok(plan) => {
                        self.take(Source::Collection, plan);
                        (state.collection, is_over) = (None, false);
                    }
                    Err(mistakes) => *why = in_line(&mistakes),
                }
            }
            if is_over {
                break;
            }
        }
        self.told().refused = state.refused();
    }

    /// What would be in force after what is.
    fn plan_of(&self, said: Said) -> Result<Plan, Mistakes> {
        let plan = Plan::of(said)?;
        check_same(&self.plan().rules, &plan.rules)?;
        Ok(plan)
    }

    /// Takes a version into force; the number of the first snapshot that has it.
    fn take(&self, source: Source, plan: Plan) -> u64 {
        let Shared {
            engine,
            clock,
            metrics,
            ..
        } = &*self.shared;
        let said = Arc::from(plan.said().to_bytes());
        let number = engine.change_and_keep(&plan.rules.limits, said, clock.now());
        self.shared.plan.send_replace(Arc::new(plan));
        metrics.taken(source);
        let (source, version) = (source.name(), engine.version());
        tracing::info!(source, version, "other limits are in force");
        number
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        let told = &self.shared.told;
        told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = &self.shared.state;
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refused(&self) -> Option<String> {
        let file = self.file.as_ref().map(|(_, why)| format!("file: {why}"));
        let collection = self.collection.as_ref();
        let collection = collection.map(|(_, why)| format!("collection: {why}"));
        let all: Vec<String> = file.into_iter().chain(collection).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

fn in_line(mistakes: &Mistakes) -> String {
    mistakes.0.join("; ")
}

/// The beginning of a limit's terms, after where they come from and a tag of the whole.
fn logged(origin: Option<&Origin>) -> String {
    let Some(origin) = origin else {
        return "none".to_owned();
    };
    let terms = serde_json::to_string(&origin.terms).unwrap_or_default();
    let tag = etag(terms.as_bytes());
    let mut text = format!("{} {tag}: {terms}", origin.source.name());
    if let Some((end, _)) = text.char_indices().nth(LOGGED_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}
