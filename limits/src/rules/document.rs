//! Unparsed limits: the tables of a limits file, as TOML or, through `serde`, as JSON. They can be replaced one by one.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{ConfigErrors, Rules, reader, tables::Tables};

/// The tables of a limits file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(Table);

/// The table of one limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LimitDefinition(Table);

impl Document {
    /// Parses TOML.
    ///
    /// # Errors
    /// If the syntax is invalid. The limits are checked by [`rules`](Self::rules).
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Tables::parse(text).map(|(table, _)| Self(table))
    }

    /// The limits of this document.
    ///
    /// # Errors
    /// All errors, without line numbers; [`Rules::parse`] adds them.
    pub fn rules(&self) -> Result<Rules, ConfigErrors> {
        reader::read(self.0.clone(), Tables::default())
    }

    /// Adds a limit, or replaces the entire table of the limit with this name.
    pub fn set(&mut self, name: &str, definition: LimitDefinition) {
        let limits = self.0.entry("limits");
        let limits = limits.or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(limits) = limits {
            limits.insert(name.to_owned(), Value::Table(definition.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "unknown = 'a'\n[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n\
                        [limits.b]\nmode = 'shape'\nrules = [{ id = 'r', rate = '2/s', burst = 3 }]\n\
                        dead_letter = { share = 0.1 }";

    #[test]
    fn toml_and_json_have_the_same_limits() {
        let document = Document::parse(FILE).unwrap();
        let json = serde_json::to_vec(&document).unwrap();
        let from_json: Document = serde_json::from_slice(&json).unwrap();
        assert_eq!(from_json, document);
        assert_eq!(from_json.rules().unwrap(), Rules::parse(FILE).unwrap());
        assert!(serde_json::from_str::<LimitDefinition>("[]").is_err());
        assert!(serde_json::from_str::<LimitDefinition>("{\"rules\": null}").is_err());
    }

    #[test]
    fn definition_replaces_the_entire_table() {
        let mut document = Document::parse(FILE).unwrap();
        let other = "{\"rules\": [{\"id\": \"x\", \"rate\": \"9/s\"}]}";
        let other: LimitDefinition = serde_json::from_str(other).unwrap();
        document.set("b", other.clone());
        document.set("c", other);
        let rules = document.rules().unwrap();
        assert_eq!(rules.limits[1].rules, rules.limits[2].rules);
        assert_eq!(rules.limits[1].handling, crate::rules::Handling::default());
        let invalid = "{\"rules\": [{\"id\": \"x\", \"rate\": \"fast\"}]}";
        document.set("c", serde_json::from_str(invalid).unwrap());
        let errors = document.rules().unwrap_err().to_string();
        assert!(errors.contains("limits.c.rules[0]"), "{errors}");
    }
}
