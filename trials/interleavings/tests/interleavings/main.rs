//! The producer's log, compiled from the producer's own source files, on locks and wake-ups that shuttle schedules.
//!
//! The tests run each scenario some thousand times, each time with a different order of the steps of its threads.
//! A thread that waits forever is found as a deadlock, and a failure prints the order that led to it.
//!
//! The log names `crate::locks`, `tokio` and `runtime`; here all are this file. No time passes: the clock that orders
//! cookies stands still, so no append seals a chunk for its age; [`time::sleep`] only lets others run, and an interval
//! never ends, so that the next beat cannot make up for a lost wake-up.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the sources are those of a library, of which scenarios use a part"
)]

mod scenarios;

/// The sources of the producer.
#[path = "../../../../producer/src"]
mod source {
    pub mod log;
}

extern crate self as runtime;
extern crate self as tokio;

pub use self::source::log;
pub use shuttle_tokio::select;

/// A clock that stands still.
#[must_use]
pub fn unix_micros() -> u64 {
    1_700_000_000_000_000
}

mod locks {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
}

/// Wake-ups.
pub mod sync {
    pub use shuttle_tokio::sync::{Notify, watch};
}

/// Time that does not pass.
pub mod time {
    use std::time::Duration;

    /// What an interval does when it is late: it never is.
    #[derive(Debug, Clone, Copy)]
    pub enum MissedTickBehavior {
        /// As the log asks for.
        Delay,
    }

    /// An interval that never ends.
    #[derive(Debug)]
    pub struct Interval;

    /// An interval of any length.
    #[must_use]
    pub fn interval(_: Duration) -> Interval {
        Interval
    }

    impl Interval {
        /// Changes nothing.
        pub fn set_missed_tick_behavior(&mut self, _: MissedTickBehavior) {}

        /// Never ends.
        pub async fn tick(&mut self) {
            std::future::pending().await
        }
    }

    /// Lets others run.
    pub async fn sleep(_: Duration) {
        shuttle::future::yield_now().await;
    }
}
