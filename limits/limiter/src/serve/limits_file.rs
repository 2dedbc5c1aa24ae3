//! The limits file.

use std::sync::{Arc, OnceLock};

use limits::rules::{ConfigErrors, Rules, Table, Tables};
use runtime::reload::{NamedFile, Source};

use super::limit_sources::{EffectiveLimits, LimitSources, TermsByName};

/// A limits file, in the format of [`limits::rules`].
#[derive(Debug)]
pub struct File {
    file: NamedFile,
    /// Where later versions of the file are activated, once the limiter is running.
    pub(super) sources: OnceLock<Arc<LimitSources>>,
}

impl File {
    pub(super) fn new(file: NamedFile) -> Self {
        let sources = OnceLock::new();
        Self { file, sources }
    }
}

impl Source for File {
    type Value = Table;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.file]
    }

    /// Validates a version and activates it in `sources`. A version that conflicts with the collection or needs a
    /// restart counts as a failed reload.
    fn build(&self, contents: &[Vec<u8>]) -> Result<Table, Vec<String>> {
        let named = |errors: ConfigErrors| -> Vec<String> {
            let errors = errors.0.iter();
            errors.map(|error| self.file.error(error)).collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| vec![self.file.error("not UTF-8")])?;
        // Reports errors with line numbers, which a table does not have.
        let (table, tables) = Tables::parse(text).map_err(named)?;
        Rules::read(table.clone(), tables).map_err(named)?;
        EffectiveLimits::of(table.clone(), TermsByName::new()).map_err(named)?;
        if let Some(sources) = self.sources.get() {
            sources.set_file(&table).map_err(named)?;
        }
        Ok(table)
    }
}
