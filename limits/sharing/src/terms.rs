//! The settings that must be equal on all members of a group, and the times derived from them.
//!
//! All times are in microseconds. Members and server derive the same values; the proof in `tests/it/model/mod.rs` depends on them.

use std::time::Duration;

/// An entire limit: shares are in millionths.
pub const WHOLE: u64 = 1_000_000;

/// The settings of a group. The server rejects members whose settings differ from those of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Interval between a member's requests.
    pub refresh: u64,
    /// How long a member waits for a reply. It ignores later replies.
    pub timeout: u64,
    /// How long a member keeps its fallback share without a reply from the server.
    pub forget_after: u64,
    /// Maximum number of members; 0 if unknown.
    pub members_max: u64,
}

impl Terms {
    /// Returns the settings if they are consistent.
    ///
    /// # Errors
    /// The first constraint that they violate.
    pub fn checked(self) -> Result<Self, &'static str> {
        let is_known = (20 * self.ttl()..=30 * 86_400_000_000).contains(&self.forget_after);
        let is_in_time = (1..=self.refresh / 2).contains(&self.timeout);
        let rules = [
            (
                (10_000..=60_000_000).contains(&self.refresh),
                "invalid refresh: use 10ms to 1min",
            ),
            // A reply must arrive before the next request is sent.
            (is_in_time, "invalid timeout: use at most half of refresh"),
            // Otherwise the server would remove members that are only slow.
            (
                is_known,
                "invalid forget_after: use at least 60 times refresh, up to 30 days",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(rule),
            None => Ok(self),
        }
    }

    /// Duration of a lease. The member counts it from before it sends the request.
    pub fn ttl(&self) -> u64 {
        3 * self.refresh
    }

    /// How far the server's clock may jump forward undetected during a lease, plus tolerance for clocks of different speeds.
    pub(crate) fn margin(&self) -> u64 {
        2 * self.refresh
    }

    /// How long the server reserves a lease after granting it.
    pub fn reserved_for(&self) -> u64 {
        self.ttl() + self.margin()
    }

    /// Time without a request after which the server reserves the member's fallback share.
    pub fn silence_max(&self) -> u64 {
        4 * self.refresh
    }

    /// A member uses its fallback share this long after its last request that got a reply. Before that, it uses at most its expired lease.
    ///
    /// By then, all leases that the server granted before it reserved the fallback share have expired, even if clock
    /// speeds differ by 2%.
    pub fn fallback_after(&self) -> u64 {
        (self.reserved_for() + self.silence_max() + self.timeout) / 49 * 50 + 50
    }

    /// A member that never received a reply uses its guaranteed share this long after its start. Until
    /// [`fallback_after`](Self::fallback_after), other members may use the share of a previous process of its name, and
    /// the last request of that process may still be in transit.
    pub(crate) fn guaranteed_after(&self) -> u64 {
        2 * self.fallback_after()
    }

    /// Share that is reserved for each member at all times: 1/`members_max`, or 0 if that is unknown.
    pub fn guaranteed_share(&self) -> u64 {
        WHOLE.checked_div(self.members_max).unwrap_or(0)
    }

    /// A duration in microseconds.
    pub fn micros(time: Duration) -> u64 {
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    }
}
