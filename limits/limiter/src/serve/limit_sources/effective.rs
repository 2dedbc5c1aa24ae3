//! The limits that result from one version of each source.

use std::collections::BTreeMap;

use limits::rules::{ConfigErrors, Rules, Table, Tables};

use super::super::engine;

/// Definitions of limits by name.
pub type TermsByName = BTreeMap<String, Table>;

/// A valid combination of both sources.
#[derive(Debug)]
pub struct EffectiveLimits {
    pub(super) file: Table,
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
pub(super) fn to_bytes(collection: &TermsByName) -> Vec<u8> {
    serde_json::to_vec(collection).expect("tables of strings and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(rate: &str) -> Table {
        let json = format!("{{\"rules\": [{{\"id\": \"r\", \"rate\": \"{rate}\"}}]}}");
        serde_json::from_str(&json).unwrap()
    }

    fn file() -> Table {
        let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/s' }]";
        text.parse().unwrap()
    }

    fn named<const N: usize>(limits: [(&str, Table); N]) -> TermsByName {
        limits.map(|(name, terms)| (name.to_owned(), terms)).into()
    }

    #[test]
    fn collection_takes_precedence_over_the_file() {
        let collection = named([("b", terms("2/s")), ("c", terms("2/s"))]);
        let effective = EffectiveLimits::of(file(), collection.clone()).unwrap();
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
            let rejected = EffectiveLimits::of(file(), named([(name, terms)])).unwrap_err();
            assert!(rejected.to_string().contains(error), "{rejected}");
        }
        let rules = serde_json::json!([{ "id": "r", "rate": "1/s" }]);
        let with = |keys: &[String]| serde_json::json!({ "keys": keys, "rules": rules });
        check("e", with(&["a".to_owned()]), "key a is already in limits.");
        check("x/y", with(&["k".to_owned()]), "slash");
    }
}
