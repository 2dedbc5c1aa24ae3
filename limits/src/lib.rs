//! Rate limits: one reservation for every algorithm, over any number of limits at once.
//!
//! [`Limits::reserve`] decides on a call: it may go [now](Decision::Now), [at a moment](Decision::At) that is not far off, or
//! it is [refused](Decision::Refused), and then no limit has counted it. Time is a number of nanoseconds that the caller hands
//! in, and nothing here waits: the caller sees to it that the call goes at the moment that it is told.
//!
//! ```
//! use std::time::Duration;
//! use limits::{Algorithm, Decision, Demand, Limits};
//!
//! // Room for 10,000 keys in all limits together.
//! let mut limits = Limits::new(10_000);
//! // Each client: 2 a second, 5 at once after a pause. All of them together: 100 a second.
//! let client = limits.add(Algorithm::token_bucket("2/s", 5)?)?;
//! let whole = limits.add(Algorithm::token_bucket("100/s", 10)?)?;
//!
//! let now = 1_700_000_000_000_000_000; // since the Unix epoch, so that windows begin with minutes and hours
//! let demands = [
//!     Demand { limit: client, key: "alice", requests: 1 },
//!     Demand { limit: whole, key: "", requests: 1 },
//! ];
//! for _ in 0..5 {
//!     assert_eq!(limits.reserve(&demands, now, Duration::ZERO), Decision::Now);
//! }
//! // The sixth may wait for up to a second, and waits for half of one.
//! let sixth = limits.reserve(&demands, now, Duration::from_secs(1));
//! assert_eq!(sixth, Decision::At { at: now + 500_000_000, limit: client });
//! // Nobody waits for longer than the maximum wait: with none, all that would have to wait is refused.
//! let seventh = limits.reserve(&demands, now, Duration::ZERO);
//! assert!(matches!(seventh, Decision::Refused { limit, .. } if limit == client));
//! # Ok::<(), limits::RateError>(())
//! ```
//!
//! - A maximum wait of zero *polices*; a longer one *shapes*. [`Limits::peek`] tells the moment and changes nothing.
//! - Several limits of a call hold together: it goes when all let it, and of a refused one none has counted anything.
//! - Each key has an allowance of its own. A limit of all calls together has one key for all of them.
//! - Keys of real programs come and go: number them, or hand in a hash of them, so that a decision copies no text.
//! - It is one table, changed by each decision: threads share it under a lock, or each has one.
//! - A limit can be [changed](Limits::change_all) while calls wait, and these can be [planned anew](Limits::replan).
//! - Calls that were made without asking can be [counted](Limits::record_all).
//! - What keys have used can be [saved](Limits::take_changes) and [restored](Limits::restore), in another process and under changed limits.
//! - [`rules`] reads limits from TOML. The program `limiter` checks such files, and replays recorded traffic through them.
//!
//! # Which algorithm
//!
//! | algorithm | what passes | for |
//! |---|---|---|
//! | [`TokenBucket`](Algorithm::TokenBucket) (GCRA) | the rate, and a burst after a pause; with a burst of 1, one each interval | nearly everything |
//! | [`LeakyBucket`](Algorithm::LeakyBucket) | one each interval, of which so many may wait if there is a maximum wait | smoothing |
//! | [`SteppedBucket`](Algorithm::SteppedBucket) | as many as there are tokens, which come all at once | to mirror a partner that does it so |
//! | [`FixedWindow`](Algorithm::FixedWindow) | so many a minute by the clock; twice as many around its edge | to mirror, and for quotas |
//! | [`SlidingLog`](Algorithm::SlidingLog) | exactly so many in any window; 8 bytes for each | small limits that must be exact |
//! | [`SlidingCounter`](Algorithm::SlidingCounter) | about so many in any window | large limits that need not be |
//! | [`StepWindow`](Algorithm::StepWindow) | so many in any window, in steps | to mirror, when calls are told late |
//! | [`WarmUp`](Algorithm::WarmUp) | a third of the rate after a pause, then the rate | what is slow when cold |
//!
//! `docs/limits.md` shows what each does to the same traffic.
//!
//! # What is defined
//!
//! - **Rates** are exact: 300 a second are 300 per second, not one each 3,333,333 ns. Moments are rounded up to whole
//!   nanoseconds, and that does not add up.
//! - **Large calls**: one for more requests than the limit ever lets go at once is refused as
//!   [`TooMany`](Refusal::TooMany); one for no requests passes.
//! - **Time** must not go back. If it does, it stands still here, for all keys, until it has caught up. It ends in the year 2262.
//! - **Order**: a call gets the earliest moment at which all its limits permit it and every call that already has a moment. Calls
//!   that ask for the same get moments in the order in which they ask; another may go before a call that waits for some other limit,
//!   or for more requests. No call loses the moment that it was given.
//! - **Refused calls** do not count, unless a limit says so ([`Limit::count_refused`]).
//! - **Memory** is bounded: idle keys, which are the same as unknown ones, make room. When none is found among some hundred, new
//!   keys are refused. A token bucket takes some 100 bytes with its key. While there is room before moments that were
//!   given out, they are remembered, 16 bytes each: at most 4,096 for each key (256 in logs and step windows), and within the bytes of the table. A call that needs one
//!   more is refused until the first of them is over. The table has a seed of its own.
//! - **Numbers** are at most 10^12 requests and ten years, so that nothing overflows.
//!
//! # Cost
//!
//! A lookup for each limit, and no allocation for known keys. A decision takes 16 ns under one token bucket and 47 to 50 ns under three,
//! where `governor` takes 28 ns under one (`cargo bench -p limits`: 1,000 keys, one thread, medians of three runs).

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
