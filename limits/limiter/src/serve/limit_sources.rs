//! The sources of limits, and the limits that are in effect.
//!
//! The limits file and a MongoDB collection define limits by name. If both define a name, the collection takes precedence.
//! Settings that do not belong to a single limit come from the file.
//!
//! - A version of a source takes effect completely or is rejected: file and collection are validated together. A rejected
//!   version is validated again when the other source changes.
//! - The `--state` directory contains the last valid version of the collection, so a start does not depend on MongoDB.

#[cfg(feature = "mongodb")]
pub(super) mod collection;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use limits::rules::{ConfigErrors, Rules, Table, Tables};
use parking_lot::Mutex;

use super::{
    clock::Clock,
    engine::{self, Engine},
    sharing::check_unchanged,
};

/// All sources.
#[derive(Debug)]
pub struct LimitSources {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    /// The newest version of the collection, or why it is unreadable. Locked while a version is validated, which can take
    /// long.
    newest_collection: Mutex<Result<TermsByName, String>>,
    active: Mutex<ActiveVersion>,
}

/// The limits in effect. Locked only briefly.
#[derive(Debug)]
struct ActiveVersion {
    effective: Arc<EffectiveLimits>,
    /// Why the newest version of the collection is not in effect.
    rejected: Option<String>,
    /// Time of the last read of the collection, initially of the start; `None` without a collection.
    read_at: Option<Instant>,
}

/// Definitions of limits by name.
pub type TermsByName = BTreeMap<String, Table>;

/// A valid combination of both sources.
#[derive(Debug)]
pub struct EffectiveLimits {
    file: Table,
    /// Limits of the collection. They take precedence over those of the file.
    pub collection: TermsByName,
    /// The resulting limits.
    pub rules: Rules,
}

impl EffectiveLimits {
    /// Combines and validates both sources.
    ///
    /// # Errors
    /// With all errors of the result.
    pub fn of(file: Table, collection: TermsByName) -> Result<Self, ConfigErrors> {
        let mut merged = file.clone();
        let limits = merged.get_mut("limits").and_then(|it| it.as_table_mut());
        if let Some(limits) = limits {
            let terms = collection.iter();
            limits.extend(terms.map(|(name, terms)| (name.clone(), terms.clone().into())));
        }
        let rules = Rules::read(merged, Tables::default())?;
        Ok(Self {
            file,
            collection,
            rules: engine::checked(rules)?,
        })
    }
}

/// Encodes the limits of the collection, to be saved.
fn to_bytes(collection: &TermsByName) -> Vec<u8> {
    serde_json::to_vec(collection).expect("tables of strings and numbers are JSON")
}

/// Returns the limits at startup: those of the file, and the saved ones of the collection if `--limits-collection` is
/// still set.
///
/// # Errors
/// When the limits are invalid.
pub fn initial_limits(
    file: Table,
    saved: &[u8],
    has_collection: bool,
) -> Result<EffectiveLimits, ConfigErrors> {
    let collection = if has_collection && !saved.is_empty() {
        let corrupt = |_| {
            ConfigErrors(vec![
                "the limits of the collection, as saved in --state, are corrupt".to_owned(),
            ])
        };
        serde_json::from_slice(saved).map_err(corrupt)?
    } else {
        TermsByName::new()
    };
    EffectiveLimits::of(file, collection)
}

impl LimitSources {
    /// Starts with limits that are already active in the engine.
    pub fn new(
        effective: EffectiveLimits,
        has_collection: bool,
        engine: Arc<Engine>,
        clock: Arc<Clock>,
    ) -> Self {
        engine.save_sources(to_bytes(&effective.collection));
        let newest_collection = Mutex::new(Ok(effective.collection.clone()));
        let active = Mutex::new(ActiveVersion {
            effective: Arc::new(effective),
            rejected: None,
            read_at: has_collection.then(Instant::now),
        });
        Self {
            engine,
            clock,
            newest_collection,
            active,
        }
    }

    /// The limits in effect.
    pub fn effective(&self) -> Arc<EffectiveLimits> {
        Arc::clone(&self.active.lock().effective)
    }

    /// Why the newest version of the collection is not in effect.
    pub fn rejected(&self) -> Option<String> {
        self.active.lock().rejected.clone()
    }

    /// Time since the collection was last read, if there is one.
    pub fn collection_age(&self) -> Option<Duration> {
        self.active.lock().read_at.map(|read_at| read_at.elapsed())
    }

    /// Activates a version of the file, with the newest version of the collection if they are valid together, otherwise
    /// with the active version of the collection.
    ///
    /// # Errors
    /// When the file is invalid together with either version.
    pub fn set_file(&self, file: &Table) -> Result<(), ConfigErrors> {
        let newest = self.newest_collection.lock();
        let newest = newest.as_ref().ok();
        match newest.and_then(|newest| self.validate(file, newest).ok()) {
            Some(effective) => self.activate(effective, None),
            None => {
                let effective = self.validate(file, &self.effective().collection)?;
                self.activate(effective, self.rejected());
            }
        }
        Ok(())
    }

    /// Activates a version of the collection, or rejects it; `read` is an error if the collection has invalid documents.
    pub fn set_collection(&self, read: Result<TermsByName, String>) {
        self.active.lock().read_at = Some(Instant::now());
        let mut newest = self.newest_collection.lock();
        if *newest == read {
            return;
        }
        *newest = read;
        let newest = newest.as_ref().map_err(Clone::clone);
        let effective = newest.and_then(|newest| {
            let effective = self.validate(&self.effective().file, newest);
            effective.map_err(|errors| errors.0.join("; "))
        });
        match effective {
            Ok(effective) => self.activate(effective, None),
            Err(why) => {
                let source = "collection";
                tracing::warn!(source, why, "invalid limits; keeping the previous version");
                self.active.lock().rejected = Some(format!("{source}: {why}"));
            }
        }
    }

    fn validate(
        &self,
        file: &Table,
        collection: &TermsByName,
    ) -> Result<EffectiveLimits, ConfigErrors> {
        let effective = EffectiveLimits::of(file.clone(), collection.clone())?;
        check_unchanged(&self.effective().rules, &effective.rules)?;
        Ok(effective)
    }

    fn activate(&self, effective: EffectiveLimits, rejected: Option<String>) {
        let before = self.effective();
        self.active.lock().rejected = rejected;
        if effective.file == before.file && effective.collection == before.collection {
            return;
        }
        let saved = to_bytes(&effective.collection);
        let now = self.clock.now();
        self.engine.change(&effective.rules.limits, saved, now);
        self.active.lock().effective = Arc::new(effective);
        tracing::info!(version = self.engine.version(), "limits changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::engine::Options;

    fn file(keys: &str) -> Table {
        let text = format!("[limits.a]\nkeys = ['{keys}']\nrules = [{{ id = 'r', rate = '1/s' }}]");
        text.parse().unwrap()
    }

    #[test]
    fn conflicting_versions_take_effect_once_both_sources_are_valid_together() {
        let options = Options {
            counters_max: 9,
            counters_bytes_max: 9_000,
            counted_by_server: false,
        };
        let limits =
            "{\"b\": {\"keys\": [\"k\"], \"rules\": [{\"id\": \"r\", \"rate\": \"1/s\"}]}}";
        let collection: TermsByName = serde_json::from_str(limits).unwrap();
        let effective = EffectiveLimits::of(file("x"), collection.clone()).unwrap();
        let engine = Arc::new(Engine::new(options, &effective.rules.limits));
        let sources = LimitSources::new(effective, true, engine, Arc::new(Clock::start()));
        let active_key = || sources.effective().rules.limits[0].keys[0].clone();
        let error = sources.set_file(&file("k")).unwrap_err();
        assert_eq!(error.to_string(), "limits.b: key k is already in limits.a");
        sources.set_collection(Err("unreadable".to_owned()));
        let unreadable = Some("collection: unreadable".to_owned());
        assert_eq!(sources.rejected(), unreadable);
        // A valid file takes effect with the active version of the collection.
        sources.set_file(&file("y")).unwrap();
        assert_eq!(
            (sources.rejected(), active_key()),
            (unreadable, "y".to_owned())
        );
        sources.set_file(&file("k")).unwrap_err();
        sources.set_collection(Ok(TermsByName::new()));
        assert_eq!(sources.rejected(), None);
        sources.set_file(&file("k")).unwrap();
        assert_eq!(active_key(), "k");
        // A collection that conflicts with the file takes effect with the next file.
        sources.set_collection(Ok(collection));
        assert!(sources.rejected().is_some());
        sources.set_file(&file("z")).unwrap();
        assert_eq!((sources.rejected(), active_key()), (None, "z".to_owned()));
        assert_eq!(sources.effective().rules.limits.len(), 2);
    }

    fn terms(rate: &str) -> Table {
        let json = format!("{{\"rules\": [{{\"id\": \"r\", \"rate\": \"{rate}\"}}]}}");
        serde_json::from_str(&json).unwrap()
    }

    fn two_limits() -> Table {
        let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/s' }]";
        text.parse().unwrap()
    }

    fn named<const N: usize>(limits: [(&str, Table); N]) -> TermsByName {
        limits.map(|(name, terms)| (name.to_owned(), terms)).into()
    }

    #[test]
    fn collection_takes_precedence_over_the_file() {
        let collection = named([("b", terms("2/s")), ("c", terms("2/s"))]);
        let effective = EffectiveLimits::of(two_limits(), collection.clone()).unwrap();
        for (limit, (name, rate)) in
            effective
                .rules
                .limits
                .iter()
                .zip([("a", "1/s"), ("b", "2/s"), ("c", "2/s")])
        {
            assert_eq!(limit.name, name);
            let algorithm = limit.rules[0].limit.algorithm.to_string();
            assert!(algorithm.contains(&rate[..1]), "{algorithm}");
        }
        let saved: TermsByName = serde_json::from_slice(&to_bytes(&collection)).unwrap();
        assert_eq!(saved, collection);
    }

    #[test]
    fn conflicting_sources_are_rejected() {
        #[track_caller]
        fn check(name: &str, terms: serde_json::Value, error: &str) {
            let terms = serde_json::from_value(terms).unwrap();
            let rejected = EffectiveLimits::of(two_limits(), named([(name, terms)])).unwrap_err();
            assert!(rejected.to_string().contains(error), "{rejected}");
        }
        let rules = serde_json::json!([{ "id": "r", "rate": "1/s" }]);
        let with = |keys: &[String]| serde_json::json!({ "keys": keys, "rules": rules });
        check("e", with(&["a".to_owned()]), "key a is already in limits.");
        check("x/y", with(&["k".to_owned()]), "slash");
    }
}
