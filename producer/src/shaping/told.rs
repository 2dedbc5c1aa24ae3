//! What is told of limits, to pages, scrapes and probes.

use std::collections::BTreeMap;

use super::{Shaping, Summary};

impl Shaping {
    /// What was counted of each limit, and what it holds: of one moment.
    ///
    /// Holds the lock that all connections share while it adds up every DSP of the file, with a few allocations for each and
    /// for each of its rules: for a page and a scrape, not for a cookie.
    pub(crate) fn summaries(&self) -> BTreeMap<String, Summary> {
        let now = self.now();
        self.state().shaper.summaries(now)
    }

    /// How many cookies are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.state().shaper.held()
    }

    /// Which version of the file is in force, from 1.
    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// Why the file as it is now is not in force.
    pub(crate) fn refused(&self) -> Option<String> {
        self.shared.file.refused()
    }

    /// In one line, for `/readyz`.
    pub(crate) fn state_in_words(&self) -> String {
        let mut words = format!("version {} is in force", self.version());
        if let Some(why) = self.refused() {
            words += &format!(", the newest is refused: {why}");
        }
        if let Some(sharing) = self.sharing() {
            words += &format!("; {}", sharing.in_words());
        }
        words
    }
}
