//! The file of limits.

use limits::rules::{Document, Mistakes, Rules};
use runtime::reload::{NamedFile, Source};

use super::engine;

/// A file of limits, in the form that [`limits::rules`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// What the file says.
#[derive(Debug)]
pub struct Written {
    /// As it is written.
    pub document: Document,
    /// What it means, by itself.
    pub rules: Rules,
}

impl Source for File {
    type Value = Written;
    const NAME: &'static str = "limits";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Written, Vec<String>> {
        let named = |mistakes: Vec<String>| -> Vec<String> {
            let mistakes = mistakes.iter();
            mistakes.map(|mistake| self.0.mistake(mistake)).collect()
        };
        let text = std::str::from_utf8(&contents[0]);
        let text = text.map_err(|_| named(vec!["is not text".to_owned()]))?;
        let wrong = |mistakes: Mistakes| named(mistakes.0);
        let document = Document::parse(text).map_err(wrong)?;
        let rules = document.rules().map_err(wrong)?;
        let mistakes = engine::mistakes(&rules);
        if mistakes.is_empty() {
            Ok(Written { document, rules })
        } else {
            Err(named(mistakes))
        }
    }
}
