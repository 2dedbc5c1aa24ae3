//! Rate limits: reservations with any algorithm, under up to 16 limits at the same time.
//!
//! [`Limits::reserve`] decides on a call. The call may be made [now](Decision::Now), gets a [slot in the future](Decision::At), or is
//! [refused](Decision::Refused); a refused call uses no quota. The caller passes the time in nanoseconds, and waits for the slot: the
//! library reads no clock and does not block.
//!
//! ```
//! use std::time::Duration;
//! use limits::{Algorithm, Decision, Demand, Limits};
//!
//! // Up to 10,000 keys in all limits.
//! let mut limits = Limits::new(10_000);
//! // Each client: 2/s with bursts of 5. All clients together: 100/s with bursts of 10.
//! let client = limits.add(Algorithm::token_bucket("2/s", 5)?)?;
//! let total = limits.add(Algorithm::token_bucket("100/s", 10)?)?;
//!
//! let now = 1_700_000_000_000_000_000; // since the Unix epoch, so that windows align with minutes and hours
//! let demands = [
//!     Demand { limit: client, key: "alice", requests: 1 },
//!     Demand { limit: total, key: "", requests: 1 },
//! ];
//! for _ in 0..5 {
//!     assert_eq!(limits.reserve(&demands, now, Duration::ZERO), Decision::Now);
//! }
//! // The sixth call may wait up to a second. Its slot is half a second away.
//! let sixth = limits.reserve(&demands, now, Duration::from_secs(1));
//! assert_eq!(sixth, Decision::At { at: now + 500_000_000, limit: client });
//! // Without a wait, the seventh call is refused.
//! let seventh = limits.reserve(&demands, now, Duration::ZERO);
//! assert!(matches!(seventh, Decision::Refused { limit, .. } if limit == client));
//! # Ok::<(), limits::RateError>(())
//! ```
//!
//! - A maximum wait of zero *polices* calls; a longer one *shapes* them. [`Limits::peek`] returns the earliest slot and changes nothing.
//! - A call under several limits is admitted when all of them admit it. If it is refused, none of them counts it.
//! - Each key has its own quota. A global limit uses one key for all calls.
//! - With numbers or hashes as keys, a decision copies no strings.
//! - [`Limits`] changes with every decision: share it between threads under a lock, or use one per thread.
//! - Limits can be [changed](Limits::change_all) while calls wait, and waiting calls can be [rescheduled](Limits::reschedule).
//! - Calls that were made without a reservation can be [recorded](Limits::record).
//! - The usage of keys can be [saved](Limits::take_changes) and [restored](Limits::restore), in another process and under changed limits.
//! - [`rules`] parses limits files in TOML. The program `limiter` checks such files and replays recorded traffic through them.
//!
//! # Algorithms
//!
//! [`Algorithm`] lists them and helps to choose one. `docs/limits.md` shows the effect of four algorithms on the same traffic.
//!
//! # Guarantees
//!
//! - **Rates** are exact: 300/s is 300 per second, not one per 3,333,333 ns. Slots are rounded up to whole nanoseconds, and rounding
//!   errors do not accumulate.
//! - **Large calls**: a call with more requests than the limit ever admits at one time is refused as [`TooMany`](Refusal::TooMany). A call
//!   with no requests is admitted.
//! - **Time** should be monotonic. If it goes back, the latest time is used for all keys. The maximum time is in the year 2262.
//! - **Order**: a call gets the earliest slot that all its limits admit and that keeps existing slots admissible. Calls with the same
//!   demands get slots in call order. A call may get an earlier slot than a waiting call with another limit or with more requests.
//!   Existing slots never move.
//! - **Refused calls** do not count, except under limits with [`Limit::count_refused`].
//! - **Memory** is bounded. Idle keys, which are equivalent to new ones, are evicted for new keys. If no idle key is
//!   found among a few hundred, the new key is refused. A key of a token bucket takes about 100 bytes. A future
//!   slot with a gap before it takes 16 bytes within the table's memory bound; a key has up to 4,096 such slots (256
//!   under sliding logs and step windows). Beyond that, calls that would leave a gap are refused until a slot has
//!   passed. The hash of keys is seeded randomly.
//! - **Bounds**: up to 10^12 requests, and periods of up to ten years, so that no arithmetic overflows.
//!
//! # Cost
//!
//! A decision costs one lookup per limit, and no allocation for known keys. It takes 16 ns under one token bucket and 47 to 50 ns
//! under three; `governor` takes 28 ns under one (`cargo bench -p limits`: 1,000 keys, one thread, medians of three runs).

mod algorithm;
mod decision;
mod keys;
mod limits;
mod meter;
pub mod rate;
pub mod rules;

pub use algorithm::{ALGORITHMS, Algorithm, Alignment, LOG_MAX, STEPS_MAX, default_step};
pub use decision::{
    Decision, Demand, Limit, LimitId, RecordError, RecordOutcome, Refusal, Remaining, RestoreError,
};
pub use limits::{DEMANDS_MAX, Limits};
pub use meter::{CarryOver, KeyState};
pub use rate::{Rate, RateError};
