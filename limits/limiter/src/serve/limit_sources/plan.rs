//! One version of all limits: what each source says, and what is in force of it.

use std::collections::BTreeMap;

use limits::rules::{ConfigErrors, Document, LimitDefinition, Rules};
use serde::Serialize;

use super::super::engine;

/// Most bytes of the collection, as JSON.
pub(super) const BYTES_MAX: usize = 2 << 20;

/// Where a limit comes from; of two with its name the later one here is in force, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The file of `--limits`, which also says all that is not of one limit.
    File,
    /// The collection of `--limits-collection`.
    Collection,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::File, Self::Collection];

    /// As a label and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Collection => "collection",
        }
    }
}

/// The terms of limits by name.
pub type Named = BTreeMap<String, LimitDefinition>;

/// A version that is in order.
#[derive(Debug)]
pub struct Plan {
    pub(super) file: Document,
    pub(super) collection: Named,
    /// What it means.
    pub rules: Rules,
}

impl Plan {
    /// What is in force when the sources say this.
    ///
    /// # Errors
    /// With everything that is wrong with it.
    pub fn of(file: Document, collection: Named) -> Result<Self, ConfigErrors> {
        let mut document = file.clone();
        for (name, terms) in &collection {
            document.set(name, terms.clone());
        }
        let rules = document.rules()?;
        let mut errors = engine::errors(&rules);
        let bytes = to_bytes(&collection).len();
        if bytes > BYTES_MAX {
            errors.push(format!(
                "the collection has {bytes} bytes of limits: {BYTES_MAX} at most"
            ));
        }
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        Ok(Self {
            file,
            collection,
            rules,
        })
    }

    /// Where the limit of this name comes from.
    #[must_use]
    pub fn source(&self, name: &str) -> Source {
        if self.collection.contains_key(name) {
            Source::Collection
        } else {
            Source::File
        }
    }

    /// The terms of the limit of this name, if there is one.
    #[must_use]
    pub fn terms(&self, name: &str) -> Option<LimitDefinition> {
        let of_collection = self.collection.get(name).cloned();
        of_collection.or_else(|| self.file.definition(name))
    }
}

/// What the collection says, to be kept.
pub(super) fn to_bytes(collection: &Named) -> Vec<u8> {
    serde_json::to_vec(collection).expect("tables of texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(rate: &str) -> LimitDefinition {
        let json = format!("{{\"rules\": [{{\"id\": \"r\", \"rate\": \"{rate}\"}}]}}");
        serde_json::from_str(&json).unwrap()
    }

    fn file() -> Document {
        let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/s' }]";
        Document::parse(text).unwrap()
    }

    fn named<const N: usize>(limits: [(&str, LimitDefinition); N]) -> Named {
        limits.map(|(name, terms)| (name.to_owned(), terms)).into()
    }

    #[test]
    fn collection_is_over_the_file() {
        let collection = named([("b", terms("2/s")), ("c", terms("2/s"))]);
        let plan = Plan::of(file(), collection.clone()).unwrap();
        for (limit, (name, source, rate)) in plan.rules.limits.iter().zip([
            ("a", Source::File, "1/s"),
            ("b", Source::Collection, "2/s"),
            ("c", Source::Collection, "2/s"),
        ]) {
            assert_eq!((&*limit.name, plan.source(name)), (name, source));
            assert_eq!(plan.terms(name), Some(terms(rate)));
            let algorithm = limit.rules[0].limit.algorithm.to_string();
            assert!(algorithm.contains(&rate[..1]), "{algorithm}");
        }
        assert_eq!(plan.terms("d"), None);
        let kept: Named = serde_json::from_slice(&to_bytes(&collection)).unwrap();
        assert_eq!(kept, collection);
    }

    #[test]
    fn sources_that_contradict_each_other_or_are_too_large_are_refused() {
        #[track_caller]
        fn check(name: &str, terms: serde_json::Value, error: &str) {
            let terms = serde_json::from_value(terms).unwrap();
            let refused = Plan::of(file(), named([(name, terms)])).unwrap_err();
            assert!(refused.to_string().contains(error), "{refused}");
        }
        let rules = serde_json::json!([{ "id": "r", "rate": "1/s" }]);
        let with = |keys: &[String]| serde_json::json!({ "keys": keys, "rules": rules });
        check("e", with(&["a".to_owned()]), "key a is already in limits.");
        check("x/y", with(&["k".to_owned()]), "slash");
        let keys: Vec<String> = (0..BYTES_MAX / 1_000)
            .map(|it| format!("{}{it}", "k".repeat(1_000)))
            .collect();
        check("large", with(&keys), "bytes");
    }
}
