//! What the program `limiter` does: limits in a file checked and served to other processes, and recorded traffic
//! replayed through them.

pub mod args;
pub mod picture;
pub mod replay;
pub mod report;
pub mod serve;
pub mod trace;
