//! Tests of the producer's log under thousands of thread schedules, which the library shuttle explores.
//!
//! The log is compiled from the producer's source files with shuttle's locks and wake-ups. shuttle reports a thread that waits forever as
//! a deadlock. A failure prints its schedule.
//!
//! This file replaces `crate::locks`, `tokio` and `runtime` for the log. The clock is constant, so no append seals a chunk because of its
//! age. [`time::sleep`] only yields. An interval never fires, so it cannot hide a lost wake-up.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the scenarios use only a part of the log"
)]

mod scenarios;

/// Source files of the producer.
#[path = "../../../../producer/src"]
mod source {
    pub mod log;
}

extern crate self as runtime;
extern crate self as tokio;

pub use self::source::log;
pub use shuttle_tokio::select;

/// A constant clock.
#[must_use]
pub fn unix_micros() -> u64 {
    1_700_000_000_000_000
}

mod locks {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
}

/// Wake-ups.
pub mod sync {
    pub use shuttle_tokio::sync::{Notify, oneshot, watch};
}

/// Replacements for timers. Time does not pass.
pub mod time {
    use std::time::Duration;

    /// Policy for missed ticks; there are none.
    #[derive(Debug, Clone, Copy)]
    pub enum MissedTickBehavior {
        /// The policy that the log sets.
        Delay,
    }

    /// An interval that never fires.
    #[derive(Debug)]
    pub struct Interval;

    /// Returns an interval; the length is ignored.
    #[must_use]
    pub fn interval(_: Duration) -> Interval {
        Interval
    }

    impl Interval {
        /// Has no effect.
        pub fn set_missed_tick_behavior(&mut self, _: MissedTickBehavior) {}

        /// Never returns.
        pub async fn tick(&mut self) {
            std::future::pending().await
        }
    }

    /// Yields to other threads.
    pub async fn sleep(_: Duration) {
        shuttle::future::yield_now().await;
    }
}
