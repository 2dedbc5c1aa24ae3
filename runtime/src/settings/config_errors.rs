//! Collects all errors of the settings, to report them together.

use std::fmt;

/// All errors of the settings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<String>,
}

impl ConfigErrors {
    /// Records an error.
    pub fn add(&mut self, error: impl Into<String>) {
        self.errors.push(error.into());
    }

    /// Returns a valid value; records an error with its flag.
    pub fn ok<T, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> Option<T> {
        parsed
            .map_err(|error| self.add(format!("{flag}: {error}")))
            .ok()
    }

    /// Returns a valid value; otherwise records the error with its flag and returns the default.
    pub fn check<T: Default, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> T {
        self.ok(flag, parsed).unwrap_or_default()
    }

    /// Whether there are no errors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns `value` if there are no errors.
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
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}  {}", error.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
