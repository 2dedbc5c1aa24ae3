//! The producer: sync requests in, cookies out to every exchange node.
//!
//! The way of a cookie: [`edge`] reads a request and finds the cookie in it; [`log`] encodes it into the open
//! chunk, and seals the chunk when it is full or a few milliseconds old; [`streams`] is woken and hands the
//! chunk's bytes to each subscriber's HTTP/2 stream, which [`server`] writes to its connection. [`app`] puts
//! these together; [`config`], [`security`] and [`metrics`] serve them; [`readiness`] and [`status`] say how they are. [`lives`] records how far the log got, for a subscriber that
//! comes back after this process has ended. [`memory`] sums up what all of them may hold.

pub mod app;
mod bucket;
pub mod config;
pub mod edge;
mod epoch;
pub mod lives;
mod locks;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod readiness;
pub mod security;
pub mod server;
pub mod status;
pub mod streams;
