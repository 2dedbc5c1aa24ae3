//! What members ask, and what the server answers.

/// A member's question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its name. A later process of the same name takes its place; the earlier one has ended.
    pub member: String,
    /// Which process of that name: a later one has a larger number.
    pub instance: u64,
    /// The number of the question, from 1.
    pub number: u64,
    /// The grant that it goes by; 0 for none.
    pub applied: u64,
    /// Whether it leaves, and uses nothing any more.
    pub leaves: bool,
    /// Of each of its limits.
    pub limits: Vec<Ask>,
}

/// What a member uses of a limit, and wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The limit.
    pub limit: String,
    /// What it uses.
    pub held: u64,
    /// What it uses after a while if it gets no more answers.
    pub safe: u64,
    /// What it could use.
    pub demand: u64,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What the member may use.
    Granted(Granted),
    /// A later question was answered before.
    Stale,
    /// A later process has its name: this one.
    Replaced(u64),
    /// There are as many members as there may be.
    Full,
    /// The group has other terms.
    OtherTerms,
}

/// What a member may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Whether the server learns who is there, so that nothing rises.
    pub is_learning: bool,
    /// How many members there are, those that are remembered included.
    pub members: u64,
    /// For each limit, in the order of the question.
    pub shares: Vec<Share>,
}

/// A share of a limit, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// While the lease lasts.
    pub lease: u64,
    /// After it.
    pub safe: u64,
    /// What all members use: those of which something was heard lately, by what they said.
    pub sum: u64,
    /// What is kept free for members that the server does not know.
    pub unknown: u64,
}
