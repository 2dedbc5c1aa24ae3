//! The library of the program `limiter`: validation, replay and serving of rate limits.

pub mod args;
pub mod chart;
pub mod replay;
pub mod report;
pub mod serve;
pub mod trace;
