//! The file of limits.

use limits::rules::{ConfigErrors, Document};
use runtime::reload::{NamedFile, Source};

use super::limit_sources::{Named, Plan};

/// A file of limits, in the form that [`limits::rules`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

impl Source for File {
    type Value = Document;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Document, Vec<String>> {
        let named = |errors: Vec<String>| -> Vec<String> {
            let errors = errors.iter();
            errors.map(|error| self.0.error(error)).collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| named(vec!["is not text".to_owned()]))?;
        let wrong = |errors: ConfigErrors| named(errors.0);
        let document = Document::parse(text).map_err(wrong)?;
        Plan::of(document.clone(), Named::new()).map_err(wrong)?;
        Ok(document)
    }
}
