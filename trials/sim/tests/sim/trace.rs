//! A hash over everything that happened, in order and with its simulated time: two runs that agree in it took the
//! same way.

use std::{
    cell::RefCell,
    hash::{DefaultHasher, Hash, Hasher},
};

thread_local! {
    // All hosts of a run share its one thread.
    static TRACE: RefCell<DefaultHasher> = RefCell::new(DefaultHasher::new());
}

/// Adds an event.
pub(crate) fn note(what: &str, of: impl Hash) {
    TRACE.with_borrow_mut(|trace| (turmoil::sim_elapsed(), what, of).hash(trace));
}

/// The hash so far.
pub(crate) fn hash() -> u64 {
    TRACE.with_borrow(Hasher::finish)
}
