//! What is wrong with the settings, collected so that all of it is said at once.

use std::{collections::BTreeMap, fmt};

/// All that is wrong with the settings; also what range each value was checked against, for the documentation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Mistakes {
    said: Vec<String>,
    ranges: BTreeMap<String, String>,
}

impl Mistakes {
    /// Notes a mistake.
    pub fn add(&mut self, mistake: impl Into<String>) {
        self.said.push(mistake.into());
    }

    /// Passes a good value on; notes a bad one under the name of its flag.
    pub fn good<T, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> Option<T> {
        parsed
            .map_err(|error| self.add(format!("{flag}: {error}")))
            .ok()
    }

    /// Passes a good value on; notes a bad one under the name of its flag, and returns the default.
    pub fn check<T: Default, E: fmt::Display>(&mut self, flag: &str, parsed: Result<T, E>) -> T {
        self.good(flag, parsed).unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// `value` when there is no mistake.
    ///
    /// # Errors
    /// All mistakes.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }

    /// What the value of a flag was checked against, in words; `None` when it has no range.
    pub(super) fn range_of(&self, flag: &str) -> Option<&str> {
        self.ranges.get(flag).map(String::as_str)
    }

    /// Notes the range of a flag's values; from `unbounded` on, its upper end is none that a user would meet.
    pub(super) fn range<T: PartialOrd + Copy>(
        &mut self,
        flag: &str,
        (least, most): (T, T),
        unbounded: T,
        show: impl Fn(T) -> String,
    ) {
        let range = if most >= unbounded {
            format!("at least {}", show(least))
        } else {
            format!("{} to {}", show(least), show(most))
        };
        self.ranges.insert(flag.to_owned(), range);
    }

    /// The same for whole numbers of any type.
    pub(super) fn range_of_numbers<N: ToString>(&mut self, flag: &str, (least, most): (N, N)) {
        let (least, most) = (least.to_string(), most.to_string());
        let range = if most == u64::MAX.to_string() {
            format!("at least {least}")
        } else {
            format!("{least} to {most}")
        };
        self.ranges.insert(flag.to_owned(), range);
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.said.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}  {}", mistake.trim_end())?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}
