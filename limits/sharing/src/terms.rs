//! The times that all members of a group agree on, and what follows from them.
//!
//! All are microseconds. What is derived here is what the proof in `tests/model/mod.rs` needs, and is the same for members and server.

use std::time::Duration;

/// A whole limit: shares are millionths of it.
pub const WHOLE: u64 = 1_000_000;

/// Most members of a group, those that are remembered included.
pub const MEMBERS_MAX: u64 = 1000;

/// What all members of a group agree on. A server refuses members whose terms are others than those that it began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How often a member asks.
    pub refresh: u64,
    /// How long a lease lasts, counted by the member from before it asked.
    pub ttl: u64,
    /// How long a member waits for an answer; one that comes later is not used.
    pub timeout: u64,
    /// How long a member that nobody hears of goes on with its safe share.
    pub forget_after: u64,
    /// How many members there are at most; with 0 nobody knows.
    pub members_max: u64,
}

impl Terms {
    /// The same, if its times fit together.
    ///
    /// # Errors
    /// What does not fit.
    pub fn checked(self) -> Result<Self, &'static str> {
        let is_renewed = (3 * self.refresh..=10 * self.refresh).contains(&self.ttl);
        let is_known = (20 * self.ttl..=30 * 86_400_000_000).contains(&self.forget_after);
        let is_in_time = (1..=self.refresh / 2).contains(&self.timeout);
        let rules = [
            (
                (10_000..=60_000_000).contains(&self.refresh),
                "refresh is 10ms to 1min",
            ),
            // A later answer comes too late for the next question.
            (is_in_time, "timeout is at most half of refresh"),
            (
                is_renewed,
                "ttl is at least three times refresh, and at most ten times",
            ),
            // Else a member would be forgotten while it is only slow.
            (
                is_known,
                "forget_after is at least 20 times ttl, and at most 30 days",
            ),
            (
                self.members_max <= MEMBERS_MAX,
                "members_max is at most 1000",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(rule),
            None => Ok(self),
        }
    }

    /// By how much the server's clock may be set forward within one lease without anybody noticing; and beyond that, room for clocks
    /// that run at different speeds.
    pub(crate) fn margin(&self) -> u64 {
        2 * self.refresh
    }

    /// How long the server takes a lease for held after it was given.
    #[must_use]
    pub fn held_for(&self) -> u64 {
        self.ttl + self.margin()
    }

    /// After this time without a word of a member the server keeps its safe share free.
    #[must_use]
    pub fn silence(&self) -> u64 {
        4 * self.refresh
    }

    /// How long after its question a member whose lease was not renewed takes its safe share. Before, it takes no more than it had.
    ///
    /// Nobody else's lease that was given while the server did not keep the safe share free lasts until then, even if clocks differ
    /// by 2 %.
    #[must_use]
    pub fn safe_after(&self) -> u64 {
        (self.held_for() + self.silence() + self.timeout) / 49 * 50 + 50
    }

    /// How long after its start a member that was never answered takes its floor. Until [`safe_after`](Self::safe_after) others may be using
    /// what an earlier process of its name left; and the last question of that one may be on its way for as long.
    pub(crate) fn floor_after(&self) -> u64 {
        2 * self.safe_after()
    }

    /// What a member may use that never reached the server: nothing, or its part, which is kept free for it.
    #[must_use]
    pub fn floor(&self) -> u64 {
        WHOLE.checked_div(self.members_max).unwrap_or(0)
    }

    /// Of how many microseconds a time is.
    #[must_use]
    pub fn micros(time: Duration) -> u64 {
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    }
}
