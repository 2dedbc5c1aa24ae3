//! What is wrong with the settings, collected so that all of it is said at once.

use std::fmt;

/// All that is wrong with the settings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    said: Vec<String>,
}

impl ConfigErrors {
    /// Notes an error.
    pub fn add(&mut self, error: impl Into<String>) {
        self.said.push(error.into());
    }

    /// Passes a good value on; notes a bad one under the name of its flag.
    pub fn ok<T, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> Option<T> {
        parsed
            .map_err(|error| self.add(format!("{flag}: {error}")))
            .ok()
    }

    /// Passes a good value on; notes a bad one under the name of its flag, and returns the default.
    pub fn check<T: Default, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> T {
        self.ok(flag, parsed).unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// `value` when there is no error.
    ///
    /// # Errors
    /// All errors.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.said.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}  {}", error.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
