//! The file of limits.

use limits::rules::{Document, Mistakes};
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
        let named = |mistakes: Vec<String>| -> Vec<String> {
            let mistakes = mistakes.iter();
            mistakes.map(|mistake| self.0.mistake(mistake)).collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| named(vec!["is not text".to_owned()]))?;
        let wrong = |mistakes: Mistakes| named(mistakes.0);
        let document = Document::parse(text).map_err(wrong)?;
        Plan::of(document.clone(), Named::new()).map_err(wrong)?;
        Ok(document)
    }
}
