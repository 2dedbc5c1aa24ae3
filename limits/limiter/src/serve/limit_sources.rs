//! Where limits come from, and which of them are in force.
//!
//! Each source says the terms of limits by name: the file, and a collection. Of two with a name the one of the collection is in force,
//! as a whole ([`Source`]). What is not of one limit, the file says alone.
//!
//! - A version of a source is in force as a whole or not at all: both sources together are checked as one file is. One that is refused
//!   is tried again when the other source changes.
//! - What the collection said last is in the folder of `--state`, so a start does not depend on a collection that cannot be read.

mod changes;
#[cfg(feature = "mongodb")]
pub(super) mod collection;
mod plan;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use limits::rules::{Document, Mistakes};

pub use self::changes::Changes;
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
    metrics: Changes,
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
    /// Why the newest version of a source is not in force.
    refused: Option<String>,
    /// When the collection was read last, or should have been first.
    read: Option<Instant>,
}

/// What is in force at a start: what the file says, and what the collection said before. Without a collection, what one said is gone.
///
/// # Errors
/// When it has mistakes.
pub fn at_start(file: Document, kept: &[u8], has_collection: bool) -> Result<Plan, Mistakes> {
    let collection = if has_collection && !kept.is_empty() {
        let unreadable = |_| Mistakes(vec!["what was kept of the limits is damaged".to_owned()]);
        serde_json::from_slice(kept).map_err(unreadable)?
    } else {
        Named::new()
    };
    Plan::of(file, collection)
}

impl LimitSources {
    /// With what is in force already.
    #[must_use]
    pub fn new(
        plan: Plan,
        has_collection: bool,
        engine: Arc<Engine>,
        clock: Clock,
        metrics: Changes,
    ) -> Self {
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
                metrics,
            }),
        }
    }

    /// What is in force.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.in_force().plan)
    }

    /// Why the newest version of a source is not in force.
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

    /// Takes into force what can be of the newest versions: both, else the one that changed, else the other.
    fn decide(&self, newest: &Newest, changed: Source) {
        let before = self.plan();
        let of = |source: Source| -> Result<Plan, Mistakes> {
            match (source, &newest.collection) {
                (Source::File, _) => self.plan_of(&newest.file, &before.collection),
                (Source::Collection, Ok(named)) => self.plan_of(&before.file, named),
                (Source::Collection, Err(why)) => Err(Mistakes(vec![why.clone()])),
            }
        };
        let both = match &newest.collection {
            Ok(named) => self.plan_of(&newest.file, named),
            Err(_) => of(Source::File),
        };
        let other = match changed {
            Source::File => Source::Collection,
            Source::Collection => Source::File,
        };
        if let Ok(plan) = both.or_else(|_| of(changed)).or_else(|_| of(other)) {
            self.take(plan, &before);
        }
        let in_force = self.plan();
        let mut refused = Vec::new();
        for source in Source::ALL {
            let tried = match (source, &newest.collection) {
                (Source::File, _) if newest.file == in_force.file => continue,
                (Source::File, _) => self.plan_of(&newest.file, &in_force.collection),
                (_, Ok(named)) if *named == in_force.collection => continue,
                (_, Ok(named)) => self.plan_of(&in_force.file, named),
                (_, Err(why)) => Err(Mistakes(vec![why.clone()])),
            };
            let why = tried.err().map(|mistakes| mistakes.0.join("; "));
            let (source, why) = (source.name(), why.unwrap_or_default());
            if source == changed.name() {
                self.shared.metrics.refused(changed);
                tracing::warn!(
                    source,
                    why,
                    "limits rejected: the previous version stays in force"
                );
            }
            refused.push(format!("{source}: {why}"));
        }
        self.in_force().refused = (!refused.is_empty()).then(|| refused.join("; "));
    }

    /// What would be in force after what is.
    fn plan_of(&self, file: &Document, collection: &Named) -> Result<Plan, Mistakes> {
        let plan = Plan::of(file.clone(), collection.clone())?;
        check_same(&self.plan().rules, &plan.rules)?;
        Ok(plan)
    }

    /// Takes a version into force, unless it is in force.
    fn take(&self, plan: Plan, before: &Plan) {
        let Shared {
            engine,
            clock,
            metrics,
            ..
        } = &*self.shared;
        let changed = [
            plan.file != before.file,
            plan.collection != before.collection,
        ];
        if changed == [false; 2] {
            return;
        }
        let kept = plan::to_bytes(&plan.collection);
        engine.change(&plan.rules.limits, kept, clock.now());
        self.in_force().plan = Arc::new(plan);
        let version = engine.version();
        for (source, is_changed) in Source::ALL.into_iter().zip(changed) {
            if is_changed {
                metrics.taken(source);
                let source = source.name();
                tracing::info!(source, version, "limits changed");
            }
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
