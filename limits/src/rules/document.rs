//! Limits as they are written: the terms of each under its name, before anything is made of them. TOML in a file, or JSON with the same
//! names and values, by `serde`.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{ConfigErrors, Rules, reader};

/// All that a file says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(Table);

/// What it says of one limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LimitDefinition(Table);

impl Document {
    /// Reads TOML.
    ///
    /// # Errors
    /// When it is not TOML; whether the limits are in order is for [`rules`](Self::rules) to say.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let table = text.parse().map_err(|error: toml::de::Error| {
            // Where and what, but not the line itself: it may hold a password.
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            ConfigErrors(vec![format!("line {line}: {}", error.message())])
        })?;
        Ok(Self(table))
    }

    /// What it means.
    ///
    /// # Errors
    /// With everything that is wrong with it.
    pub fn rules(&self) -> Result<Rules, ConfigErrors> {
        reader::read(self.0.clone())
    }

    /// The terms of a limit.
    #[must_use]
    pub fn definition(&self, name: &str) -> Option<LimitDefinition> {
        let limits = self.0.get("limits").and_then(Value::as_table);
        let terms = limits?.get(name)?.as_table()?;
        Some(LimitDefinition(terms.clone()))
    }

    /// Puts terms in the place of those of the limit of this name, if there is one, as a whole.
    pub fn set(&mut self, name: &str, terms: LimitDefinition) {
        let limits = self.0.entry("limits");
        let limits = limits.or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(limits) = limits {
            limits.insert(name.to_owned(), Value::Table(terms.0));
        }
    }
}

impl fmt::Display for Document {
    /// As TOML.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "unknown = 'a'\n[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n\
                        [limits.b]\nmode = 'shape'\nrules = [{ id = 'r', rate = '2/s', burst = 3 }]\n\
                        dead_letter = { share = 0.1 }";

    #[test]
    fn same_limits_are_read_of_toml_and_json() {
        let written = Document::parse(FILE).unwrap();
        let json = serde_json::to_vec(&written).unwrap();
        let of_json: Document = serde_json::from_slice(&json).unwrap();
        assert_eq!(of_json, written);
        let of_toml = Document::parse(&of_json.to_string()).unwrap();
        assert_eq!(of_toml.rules().unwrap(), Rules::parse(FILE).unwrap());
        assert!(serde_json::from_str::<LimitDefinition>("[]").is_err());
        assert!(serde_json::from_str::<LimitDefinition>("{\"rules\": null}").is_err());
    }

    #[test]
    fn terms_take_the_place_of_others_as_a_whole() {
        let mut written = Document::parse(FILE).unwrap();
        let other = "{\"rules\": [{\"id\": \"x\", \"rate\": \"9/s\"}]}";
        let other: LimitDefinition = serde_json::from_str(other).unwrap();
        written.set("b", other.clone());
        written.set("c", other.clone());
        assert_eq!(written.definition("b"), Some(other));
        assert_eq!(written.definition("d"), None);
        let rules = written.rules().unwrap();
        assert_eq!(rules.limits[1].handling, crate::rules::Handling::default());
        let wrong = "{\"rules\": [{\"id\": \"x\", \"rate\": \"fast\"}]}";
        written.set("c", serde_json::from_str(wrong).unwrap());
        let errors = written.rules().unwrap_err().to_string();
        assert!(errors.contains("limits.c.rules[0]"), "{errors}");
    }
}
