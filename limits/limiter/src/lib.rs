//! The library of the program `limiter`: it validates, replays and serves rate limits.

pub mod args;
pub mod chart;
pub mod replay;
pub mod report;
pub mod serve;
pub mod trace;
