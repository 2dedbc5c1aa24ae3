//! The library of the program `limiter`: it validates, replays and serves rate limits.

pub mod args;
pub mod replay;
pub mod serve;
pub mod trace;
