//! The messages between the members of a group and the server, which keeps a ledger of their shares.

/// A member's request for shares of its limits, or to leave the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Name of the member. A later process of the same name replaces the earlier one.
    pub member: String,
    /// Distinguishes the processes of one name: a later process has a larger number.
    pub instance: u64,
    /// Sequence number of the request, from 1.
    pub number: u64,
    /// Number of the request whose grant the member uses; 0 if it uses none.
    pub applied: u64,
    /// Whether the member leaves the group and uses nothing from now on.
    pub leaves: bool,
    /// The limits that the member uses or needs.
    pub limits: Vec<LimitRequest>,
}

/// A member's use of one limit, and its demand, in millionths of the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRequest {
    /// Name of the limit.
    pub limit: String,
    /// Share in use.
    pub in_use: u64,
    /// Fallback share: the share that the member uses once the server has not responded for
    /// [`fallback_after`](crate::terms::Terms::fallback_after).
    pub fallback: u64,
    /// Share that the member could use.
    pub demand: u64,
}

/// The server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseReply {
    /// The member's new shares.
    Granted(Grant),
    /// The server has already processed a later request of this member.
    Stale,
    /// A later process uses the member's name. Contains its instance number.
    Replaced(u64),
    /// The group has reached `members_max`.
    Full,
    /// The group uses different settings.
    TermsMismatch,
}

/// The shares of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Whether the server is still learning which members exist. Until then no share increases.
    pub is_learning: bool,
    /// Number of members, including those that stopped sending requests.
    pub members: u64,
    /// One share per limit, in the order of the request.
    pub shares: Vec<LimitShare>,
}

/// A share of a limit, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitShare {
    /// Share until the lease expires.
    pub lease: u64,
    /// Share after the lease has expired.
    pub fallback: u64,
    /// Sum of all members' shares: the reported share of members with a recent request, the maximum share of the others.
    pub total: u64,
    /// Share reserved for members that the server does not know.
    pub reserved: u64,
}
