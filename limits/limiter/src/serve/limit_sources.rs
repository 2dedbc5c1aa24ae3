//! Where limits come from, and which of them are in force.
//!
//! Each source says the terms of limits by name: the file, and a collection. Of two with a name the one of the collection is in force,
//! as a whole ([`Source`]). What is not of one limit, the file says alone.
//!
//! - A version of a source is in force as a whole or not at all: both sources together are checked as one file is. One that is refused
//!   is tried again when the other source changes.
//! - What the collection said last is in the directory of `--state`, so a start does not depend on a collection that cannot be read.

#[cfg(feature = "mongodb")]
pub(super) mod collection;
mod plan;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use limits::rules::{ConfigErrors, Document};

pub use self::plan::{Named, Plan, Source};
use super::{clock::Clock, engine::Engine, sharing::check_same};

/// All sources; clones share them.
#[derive(Debug, Clone)]
pub struct LimitSources {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    clock: Clock,
    /// Locked while a version is looked at, which may take long.
    newest: Mutex<Newest>,
    in_force: Mutex<InForce>,
}

/// The newest version of each source.
#[derive(Debug)]
struct Newest {
    file: Document,
    collection: Result<Named, String>,
}

/// What is told of the sources, also while a version is looked at.
#[derive(Debug)]
struct InForce {
    plan: Arc<Plan>,
    /// Why the newest version of a source, or of each, is not in force.
    refused: Option<String>,
    /// When the collection was read last, or should have been first.
    read: Option<Instant>,
}

/// What is in force at a start: what the file says, and what the collection said before. Without a collection, what one said is gone.
///
/// # Errors
/// When it has errors.
pub fn at_start(file: Document, kept: &[u8], has_collection: bool) -> Result<Plan, ConfigErrors> {
    let collection = if has_collection && !kept.is_empty() {
        let unreadable =
            |_| ConfigErrors(vec!["what was kept of the limits is damaged".to_owned()]);
        serde_json::from_slice(kept).map_err(unreadable)?
    } else {
        Named::new()
    };
    Plan::of(file, collection)
}

impl LimitSources {
    /// With what is in force already.
    #[must_use]
    pub fn new(plan: Plan, has_collection: bool, engine: Arc<Engine>, clock: Clock) -> Self {
        engine.keep(plan::to_bytes(&plan.collection));
        let newest = Newest {
            file: plan.file.clone(),
            collection: Ok(plan.collection.clone()),
        };
        let in_force = InForce {
            plan: Arc::new(plan),
            refused: None,
            read: has_collection.then(Instant::now),
        };
        Self {
            shared: Arc::new(Shared {
                engine,
                clock,
                newest: Mutex::new(newest),
                in_force: Mutex::new(in_force),
            }),
        }
    }

    /// What is in force.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.in_force().plan)
    }

    /// Why the newest version of a source, or of each, is not in force.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.in_force().refused.clone()
    }

    /// How long ago the collection was read, if there is one.
    #[must_use]
    pub fn collection_age(&self) -> Option<Duration> {
        self.in_force().read.map(|read| read.elapsed())
    }

    /// The file says something else, which by itself is in order.
    pub fn file(&self, file: &Document) {
        let mut newest = self.newest();
        newest.file = file.clone();
        self.decide(&newest, Source::File);
    }

    /// The collection says something else, or what cannot be understood, and why.
    pub fn collection(&self, read: Result<Named, String>) {
        self.in_force().read = Some(Instant::now());
        let mut newest = self.newest();
        if newest.collection != read {
            newest.collection = read;
            self.decide(&newest, Source::Collection);
        }
    }

    /// Takes into force the newest versions of both; else the one that changed, beside what is in force of the other.
    fn decide(&self, newest: &Newest, changed: Source) {
        let before = self.plan();
        let collection = newest.collection.as_ref();
        let collection = collection.map_err(|why| ConfigErrors(vec![why.clone()]));
        let both = collection.clone();
        let both = both.and_then(|named| self.plan_of(&newest.file, named));
        let refused = match both {
            Ok(plan) => {
                self.take(plan, &before);
                self.in_force().refused = None;
                return;
            }
            Err(why) => {
                let file = (Source::File, self.plan_of(&newest.file, &before.collection));
                let collection = (
                    Source::Collection,
                    collection.and_then(|named| self.plan_of(&before.file, named)),
                );
                let ((changed, plan), (other, other_plan)) = match changed {
                    Source::File => (file, collection),
                    Source::Collection => (collection, file),
                };
                match plan {
                    Ok(plan) => {
                        self.take(plan, &before);
                        vec![(other, why)]
                    }
                    Err(why) => {
                        let other = other_plan.err().map(|why| (other, why));
                        std::iter::once((changed, why)).chain(other).collect()
                    }
                }
            }
        };
        let reasons = refused.into_iter().map(|(source, why)| {
            let (source, why) = (source.name(), why.0.join("; "));
            tracing::warn!(source, why, "limits rejected; keeping the previous version");
            format!("{source}: {why}")
        });
        let reasons: Vec<String> = reasons.collect();
        self.in_force().refused = Some(reasons.join("; "));
    }

    /// What would be in force after what is.
    fn plan_of(&self, file: &Document, collection: &Named) -> Result<Plan, ConfigErrors> {
        let plan = Plan::of(file.clone(), collection.clone())?;
        check_same(&self.plan().rules, &plan.rules)?;
        Ok(plan)
    }

    /// Takes a version into force, unless it is in force.
    fn take(&self, plan: Plan, before: &Plan) {
        let Shared { engine, clock, .. } = &*self.shared;
        let changed = [
            (Source::File, plan.file != before.file),
            (Source::Collection, plan.collection != before.collection),
        ];
        let mut changed = changed.into_iter().filter(|(_, is_changed)| *is_changed);
        let Some(first) = changed.next() else { return };
        let kept = plan::to_bytes(&plan.collection);
        engine.change(&plan.rules.limits, kept, clock.now());
        self.in_force().plan = Arc::new(plan);
        let version = engine.version();
        for (source, _) in [first].into_iter().chain(changed) {
            tracing::info!(source = source.name(), version, "limits changed");
        }
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        let newest = &self.shared.newest;
        newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_force(&self) -> MutexGuard<'_, InForce> {
        let in_force = &self.shared.in_force;
        in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::engine::{Counting, Options};

    fn file(keys: &str) -> Document {
        let text = format!("[limits.a]\nkeys = ['{keys}']\nrules = [{{ id = 'r', rate = '1/s' }}]");
        Document::parse(&text).unwrap()
    }

    #[test]
    fn refusals_of_both_sources_are_told() {
        let options = Options {
            counters_max: 9,
            counters_bytes_max: 9_000,
            feedback_ttl_max: Duration::from_secs(1),
            counting: Counting::Here,
            is_saved: false,
        };
        let terms = file("k").definition("a").unwrap();
        let collection = Named::from([("b".to_owned(), terms)]);
        let plan = Plan::of(file("x"), collection).unwrap();
        let engine = Arc::new(Engine::new(options, &plan.rules.limits));
        let sources = LimitSources::new(plan, true, engine, Clock::start());
        let contradiction = "file: limits.b: key k is already in limits.a";
        sources.file(&file("k"));
        assert_eq!(sources.refused().as_deref(), Some(contradiction));
        sources.collection(Err("unreadable".to_owned()));
        let both = format!("collection: unreadable; {contradiction}");
        assert_eq!(sources.refused(), Some(both));
        sources.file(&file("x"));
        let why = sources.refused();
        assert_eq!(why.as_deref(), Some("collection: unreadable"));
        sources.file(&file("k"));
        let both = format!("{contradiction}; collection: unreadable");
        assert_eq!(sources.refused(), Some(both));
        sources.collection(Ok(Named::new()));
        assert_eq!(sources.refused(), None);
        assert_eq!(sources.plan().rules.limits[0].keys, ["k"]);
    }
}
