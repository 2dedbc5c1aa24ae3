//! The types of a reservation: limits, demands, decisions and errors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::algorithm::Algorithm;

/// Id of a limit, assigned by [`Limits::add`](crate::Limits::add).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub(crate) u32);

impl LimitId {
    /// The number of limits that were added before this one.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The configuration of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The algorithm with its parameters.
    pub algorithm: Algorithm,
    /// Whether refused calls use quota, as some partner APIs do. A client that keeps retrying is then never admitted.
    pub count_refused: bool,
}

impl From<Algorithm> for Limit {
    fn from(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            count_refused: false,
        }
    }
}

/// The requests of a call under one limit.
#[derive(Debug, Clone, Copy)]
pub struct Demand<K> {
    /// The limit.
    pub limit: LimitId,
    /// The key; each key has its own quota.
    pub key: K,
    /// The number of requests. A demand for 0 requests is ignored.
    pub requests: u64,
}

/// The decision on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The call may be made now.
    Now,
    /// The call has a reserved slot in the future.
    At {
        /// The slot, in nanoseconds of the caller's clock.
        at: u64,
        /// The binding limit: the one with the longest wait.
        limit: LimitId,
    },
    /// The call is refused, and no limit counted it unless [`Limit::count_refused`] is set.
    Refused {
        /// The limit that refuses it. If several limits require a wait, this is the one with the longest wait.
        limit: LimitId,
        /// The reason.
        reason: Refusal,
    },
}

/// The reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The wait would exceed the maximum wait.
    Wait {
        /// Time after which the same call is admitted, if no other calls are made until then.
        retry_after: Duration,
    },
    /// The call has more requests than the limit ever admits at one time.
    TooMany {
        /// Maximum number of requests of one call.
        max: u64,
    },
    /// The key table is full, and no idle key was found to evict.
    TableFull,
}

impl Decision {
    /// The slot of the call: `now` or later, or `None` if it is refused. `now` is the time of the reservation.
    pub fn at(self, now: u64) -> Option<u64> {
        match self {
            Self::Now => Some(now),
            Self::At { at, .. } => Some(at),
            Self::Refused { .. } => None,
        }
    }
}

/// The remaining quota of a key under one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Maximum number of requests that one call could make now.
    pub requests: u64,
    /// When one more request could be made; now if no quota is in use.
    pub more_at: u64,
}

/// The effect of reported calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The calls use quota.
    Counted,
    /// The calls are too old to affect any limit.
    TooOld,
}

/// The reason why reported calls were rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The time of the calls is in the future.
    #[error("the time of a call is in the future")]
    TooEarly,
    /// The key table is full.
    #[error("the key table is full")]
    TableFull,
}

/// The reason why a saved state was not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The state belongs to another algorithm, or its limit is invalid.
    #[error("the state does not match its limit")]
    Mismatch,
    /// The key table is full.
    #[error("the key table is full")]
    TableFull,
}
