//! Reservations whose answer is held until their slot: bounded in all, for each token and for each counter.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::config;

/// Counts those who wait; clones share it.
#[derive(Debug, Clone)]
pub struct Waiting(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    most: config::Waiting,
    all: usize,
    of_tokens: HashMap<Arc<str>, usize>,
    of_counters: HashMap<Arc<str>, usize>,
}

/// Whose bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All that wait.
    All,
    /// Those of the token.
    Token,
    /// Those of a counter.
    Counter,
}

impl Full {
    /// All of them, with their labels.
    pub const ALL: [(Self, &str); 3] = [
        (Self::All, "all"),
        (Self::Token, "token"),
        (Self::Counter, "counter"),
    ];
}

/// Lets one wait; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    waiting: Waiting,
    token: Arc<str>,
    counters: Vec<Arc<str>>,
}

impl Waiting {
    /// With these bounds.
    #[must_use]
    pub fn new(most: config::Waiting) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            most,
            all: 0,
            of_tokens: HashMap::new(),
            of_counters: HashMap::new(),
        })))
    }

    /// With other bounds from now on; nobody who waits is sent away.
    pub fn bound(&self, most: config::Waiting) {
        self.shared().most = most;
    }

    /// A permit for one more, under the names of its limits and counters.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub fn enter(&self, token: &str, counters: Vec<Arc<str>>) -> Result<Permit, Full> {
        let mut shared = self.shared();
        let most = shared.most;
        let of =
            |counts: &HashMap<Arc<str>, usize>, name: &str| counts.get(name).copied().unwrap_or(0);
        if shared.all >= most.waiting {
            return Err(Full::All);
        }
        if of(&shared.of_tokens, token) >= most.waiting_per_token {
            return Err(Full::Token);
        }
        let mut names = counters.iter();
        if names.any(|name| of(&shared.of_counters, name) >= most.waiting_per_counter) {
            return Err(Full::Counter);
        }
        shared.all += 1;
        let token: Arc<str> = Arc::from(token);
        *shared.of_tokens.entry(Arc::clone(&token)).or_default() += 1;
        for name in &counters {
            *shared.of_counters.entry(Arc::clone(name)).or_default() += 1;
        }
        Ok(Permit {
            waiting: self.clone(),
            token,
            counters,
        })
    }

    /// How many wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared().all
    }

    /// The counters for which most wait, at most so many, the first with most.
    #[must_use]
    pub fn longest(&self, rows: usize) -> Vec<(Arc<str>, usize)> {
        let shared = self.shared();
        let counts = shared.of_counters.iter();
        let mut counts: Vec<_> = counts
            .map(|(name, count)| (Arc::clone(name), *count))
            .collect();
        drop(shared);
        counts.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        counts.truncate(rows);
        counts
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut shared = self.waiting.shared();
        shared.all -= 1;
        leave(&mut shared.of_tokens, &self.token);
        for name in &self.counters {
            leave(&mut shared.of_counters, name);
        }
    }
}

fn leave(counts: &mut HashMap<Arc<str>, usize>, name: &Arc<str>) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_holds_and_places_are_given_back() {
        let waiting = Waiting::new(config::Waiting {
            waiting: 3,
            waiting_per_token: 2,
            waiting_per_counter: 1,
        });
        let enter = |token: &str, counter: &str| waiting.enter(token, vec![Arc::from(counter)]);
        let first = enter("a", "x").unwrap();
        assert_eq!(enter("b", "x").err(), Some(Full::Counter));
        let second = enter("a", "y").unwrap();
        assert_eq!(enter("a", "z").err(), Some(Full::Token));
        let third = enter("b", "z").unwrap();
        assert_eq!(enter("c", "u").err(), Some(Full::All));
        assert_eq!(waiting.longest(1), [(Arc::from("x"), 1)]);
        drop((first, second, third));
        assert_eq!((waiting.count(), waiting.longest(9).len()), (0, 0));
        assert!(waiting.shared().of_tokens.is_empty());
    }
}
