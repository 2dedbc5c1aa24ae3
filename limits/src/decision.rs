//! What is asked of limits, and what they answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::algorithm::Algorithm;

/// A limit, as [`Limits::add`](crate::Limits::add) numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub(crate) u32);

impl LimitId {
    /// Its place in the order in which limits were added, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A limit as it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The algorithm and its numbers.
    pub algorithm: Algorithm,
    /// Whether refused calls count too, as some partners have it: who goes on asking never gets through.
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

/// What a call asks of one limit.
#[derive(Debug, Clone, Copy)]
pub struct Demand<K> {
    /// The limit.
    pub limit: LimitId,
    /// Whose: each key has an allowance of its own.
    pub key: K,
    /// How many requests the call is for. Of none, nothing is asked.
    pub requests: u64,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may go now.
    Now,
    /// It may go later, and not before.
    At {
        /// When, in nanoseconds of the clock that `now` was of.
        at: u64,
        /// The limit that it waits for: of several the one that makes it wait longest.
        rule: LimitId,
    },
    /// It may not go, and no limit counted it.
    Refused {
        /// The limit that refuses it: of several that would have made it wait, the one that would have done so longest.
        rule: LimitId,
        /// Why.
        why: Refusal,
    },
}

/// Why a call may not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It would have to wait for longer than allowed. After this time it would not, if nobody else asked meanwhile.
    Wait {
        /// How long to wait before it is asked again.
        retry_after: Duration,
    },
    /// It is for more requests than the limit ever lets go at once.
    TooMany {
        /// Most requests of one call.
        most: u64,
    },
    /// No key can be added: those that there is room for, of all limits together, are in use, or so many that no idle one was found.
    NoRoom,
}

impl Decision {
    /// When the call may go; `None` when it is refused. `now` is what was asked for.
    #[must_use]
    pub fn at(self, now: u64) -> Option<u64> {
        match self {
            Self::Now => Some(now),
            Self::At { at, .. } => Some(at),
            Self::Refused { .. } => None,
        }
    }
}

/// What a limit leaves to one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Requests that could go at once now.
    pub requests: u64,
    /// When one more could; now where as many could as ever.
    pub more_at: u64,
}

/// What became of calls that were told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// They count.
    Counted,
    /// They were made so long ago that they have no effect on any limit.
    TooOld,
}

/// Why calls were not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They are said to have been made in the future.
    #[error("the time of a call is in the future")]
    TooEarly,
    /// There is no room for the key.
    #[error("all keys are in use that there is room for")]
    NoRoom,
}

/// Why a state was not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It is the state of another algorithm, or the limit that it was saved under is invalid.
    #[error("the state does not fit its limit")]
    Unfit,
    /// There is no room for the key.
    #[error("all keys are in use that there is room for")]
    NoRoom,
}
