//! The clocks of the hosts, which differ by constant offsets.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

thread_local! {
    // All hosts of a run share its one thread.
    static CLOCKS: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Sets the time by which the clock of a host is ahead.
pub(crate) fn set(host: &str, ahead: Duration) {
    let micros = u64::try_from(ahead.as_micros()).expect("seconds");
    CLOCKS.with_borrow_mut(|clocks| clocks.insert(host.to_owned(), micros));
}

/// Uses the clock of a host until the next call.
pub(crate) fn enter(host: &str) {
    let ahead = CLOCKS.with_borrow(|clocks| clocks.get(host).copied());
    runtime::simulated_clock::AHEAD.set(ahead.unwrap_or(0));
}
