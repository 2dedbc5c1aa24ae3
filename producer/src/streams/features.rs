//! What of the contract the connected readers do not understand.
//!
//! Whatever needs a feature must not begin while a reader without it is connected: its store would be wrong, and nothing would
//! say so. Each open stream of either call counts, from before it reads the log until its body is dropped, also while another
//! one of its name takes its place.
//!
//! What asks pays one load of an atomic. What was appended a moment before such a reader came, and what it resumes from, it
//! gets all the same.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

pub use proto::v1::Feature;
use tokio::sync::watch;

use super::call::Call;

/// Most names that [`Lacking`] holds.
const NAMES_MAX: usize = 5;

/// Whether all connected readers understand a feature; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Understanding {
    age: Arc<Readers>,
}

/// The streams that lack one feature.
#[derive(Debug, Default)]
struct Readers {
    /// As many as `names` hold.
    count: AtomicUsize,
    /// Told of every change of `count`.
    changes: watch::Sender<usize>,
    /// Streams by the name and call of their subscriber.
    names: Mutex<BTreeMap<(String, Call), usize>>,
}

/// The connected readers that do not understand a feature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// How many streams they have.
    pub count: usize,
    /// The first names of them, in order; at most five, each without control characters.
    pub names: Vec<String>,
    /// How many more names there are.
    pub unnamed: usize,
}

/// A stream that is open; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Presence(Option<(Arc<Readers>, (String, Call))>);

impl Understanding {
    /// Whether a reader is connected that does not understand this. Costs one load of an atomic.
    #[must_use]
    pub fn is_lacking(&self, feature: Feature) -> bool {
        let readers = self.of(feature);
        readers.is_some_and(|readers| readers.count.load(Ordering::Relaxed) > 0)
    }

    /// Who is connected and does not understand this.
    #[must_use]
    pub fn lacking(&self, feature: Feature) -> Lacking {
        let Some(readers) = self.of(feature) else {
            return Lacking::default();
        };
        let names = readers.names.lock();
        let names = names.unwrap_or_else(PoisonError::into_inner);
        let mut different: Vec<_> = names.keys().map(|(name, _)| name).collect();
        different.dedup();
        Lacking {
            count: names.values().sum(),
            unnamed: different.len().saturating_sub(NAMES_MAX),
            names: different.into_iter().take(NAMES_MAX).cloned().collect(),
        }
    }

    /// Tells of every change of the number of streams whose readers do not understand this.
    ///
    /// # Panics
    /// For [`Feature::Unspecified`].
    #[must_use]
    pub fn changes(&self, feature: Feature) -> watch::Receiver<usize> {
        let readers = self.of(feature).expect("a feature that there is");
        readers.changes.subscribe()
    }

    /// Notes a stream that is about to read the log. Features that are not known here are ignored.
    pub(crate) fn enter(&self, call: Call, name: &str, understands: &[i32]) -> Presence {
        if understands.contains(&Feature::CookieAge.into()) {
            return Presence(None);
        }
        let reader = (name.to_owned(), call);
        self.age.change(|names| {
            *names.entry(reader.clone()).or_default() += 1;
        });
        Presence(Some((Arc::clone(&self.age), reader)))
    }

    /// Who lacks it; `None` for what is not a feature.
    fn of(&self, feature: Feature) -> Option<&Readers> {
        match feature {
            Feature::Unspecified => None,
            Feature::CookieAge => Some(&self.age),
        }
    }
}

impl Readers {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<(String, Call), usize>)) {
        let names = self.names.lock();
        let mut names = names.unwrap_or_else(PoisonError::into_inner);
        change(&mut names);
        let count = names.values().sum();
        self.count.store(count, Ordering::Relaxed);
        self.changes.send_replace(count);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let Some((readers, reader)) = self.0.take() else {
            return;
        };
        readers.change(|names| {
            if let Some(streams) = names.get_mut(&reader) {
                *streams -= 1;
                if *streams == 0 {
                    names.remove(&reader);
                }
            }
        });
    }
}

/// Its names: `a, b and 3 more`.
impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.unnamed {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Feature = Feature::CookieAge;

    #[test]
    fn stream_that_does_not_say_so_counts_while_it_is_open() {
        let readers = Understanding::default();
        let mut changes = readers.changes(AGE);
        let new = readers.enter(Call::Subscribe, "new", &[99, AGE.into()]);
        assert!(!readers.is_lacking(AGE) && !changes.has_changed().unwrap());
        let old = readers.enter(Call::Subscribe, "old", &[]);
        let unknown = readers.enter(Call::GetCookies, "old", &[0, 99]);
        assert!(readers.is_lacking(AGE));
        assert_eq!(*changes.borrow_and_update(), 2);
        let lacking = readers.lacking(AGE);
        assert_eq!((lacking.count, lacking.to_string()), (2, "old".to_owned()));
        drop((new, old));
        assert_eq!(readers.lacking(AGE).count, 1);
        drop(unknown);
        assert!(!readers.is_lacking(AGE));
        assert_eq!(*changes.borrow_and_update(), 0);
        assert_eq!(readers.lacking(AGE), Lacking::default());
        assert!(!readers.is_lacking(Feature::Unspecified));
    }

    #[test]
    fn one_that_takes_a_place_and_the_one_before_both_count() {
        let readers = Understanding::default();
        let before = readers.enter(Call::Subscribe, "a", &[]);
        let after = readers.enter(Call::Subscribe, "a", &[]);
        assert_eq!(readers.lacking(AGE).count, 2);
        drop(before);
        assert_eq!(readers.lacking(AGE).names, ["a"]);
        drop(after);
        assert!(!readers.is_lacking(AGE));
    }

    #[test]
    fn names_are_bounded() {
        let readers = Understanding::default();
        let _present: Vec<_> = (0..9)
            .map(|number| readers.enter(Call::Subscribe, &format!("node-{number}"), &[]))
            .collect();
        let lacking = readers.lacking(AGE);
        let shown = "node-0, node-1, node-2, node-3, node-4 and 4 more";
        assert_eq!((lacking.count, &*lacking.to_string()), (9, shown));
    }
}
