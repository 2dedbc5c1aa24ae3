//! A hash of all events of a run and their simulated times. Two runs with equal hashes were identical.

use std::{
    cell::RefCell,
    hash::{DefaultHasher, Hash, Hasher},
};

thread_local! {
    // All hosts of a run share its one thread.
    static TRACE: RefCell<DefaultHasher> = RefCell::new(DefaultHasher::new());
}

/// Adds an event.
pub(crate) fn record(event: &str, details: impl Hash) {
    TRACE.with_borrow_mut(|trace| (turmoil::sim_elapsed(), event, details).hash(trace));
}

/// The hash so far.
pub(crate) fn hash() -> u64 {
    TRACE.with_borrow(Hasher::finish)
}
