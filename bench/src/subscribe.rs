//! `bench subscribe`: opens many independent streams in one process. Each stream checks that every cookie arrives or is
//! declared lost. `--fan-out` measures the cost of each additional stream for a producer.
//!
//! Each stream has its own connection, task and counters. Every chunk is decoded cookie by cookie; the clock is read once per
//! chunk.

mod args;
mod fan_out;
mod report;
mod security;
mod stream;
mod streams;

pub use self::{
    args::{Call, SubscribeArgs},
    fan_out::run as run_fan_out,
    stream::StreamCounts,
    streams::{SubscribeOutcome, run},
};
