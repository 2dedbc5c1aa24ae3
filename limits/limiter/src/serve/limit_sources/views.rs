//! Documents that are made of one version of all limits: once for all who read the same, and kept with that version.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// Most bytes that are kept of one version.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Which limits a document has; `None`: all.
pub type Names = Option<BTreeSet<String>>;

/// What a document is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// Those who look at limits.
    List,
    /// Those who keep to them by themselves.
    Feed,
}

/// A document.
#[derive(Debug, Clone)]
pub struct View {
    /// JSON.
    pub body: Bytes,
    /// Differs when the body does.
    pub etag: Arc<str>,
}

/// All that are kept.
#[derive(Debug, Default)]
pub(super) struct Views {
    kept: Mutex<HashMap<(What, Names), View>>,
    /// One is made at a time.
    pub(super) making: Arc<tokio::sync::Mutex<()>>,
}

impl View {
    pub(super) fn of(body: Vec<u8>) -> Self {
        Self {
            etag: Arc::from(etag(&body)),
            body: Bytes::from(body),
        }
    }
}

impl Views {
    pub(super) fn get(&self, what: &(What, Names)) -> Option<View> {
        self.kept().get(what).cloned()
    }

    pub(super) fn keep(&self, what: (What, Names), view: View) {
        let mut kept = self.kept();
        let bytes: usize = kept.values().map(|view| view.body.len()).sum();
        if bytes + view.body.len() > KEPT_BYTES_MAX {
            kept.clear();
        }
        kept.insert(what, view);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<(What, Names), View>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entity tag of this content, in its quotes.
#[must_use]
pub fn etag(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    let hex: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let views = Views::default();
        let of = |name: &str| (What::List, Some(BTreeSet::from([name.to_owned()])));
        for name in ["a", "b"] {
            views.keep(of(name), View::of(vec![b' '; KEPT_BYTES_MAX / 2]));
        }
        assert!(views.get(&of("a")).is_some() && views.get(&of("b")).is_some());
        views.keep(of("c"), View::of(vec![b' ']));
        assert!(views.get(&of("a")).is_none() && views.get(&of("c")).is_some());
    }
}
