//! The producer: sync requests in, cookies out to every exchange node.
//!
//! The path of a cookie: [`edge`] reads a request and finds the cookie in it; [`log`] encodes it into the open chunk,
//! and seals the chunk when it is full or a few milliseconds old; [`streams`] is woken and hands the chunk's bytes to
//! each subscriber's HTTP/2 stream, which [`server`] writes to its connection. [`app`] wires these together;
//! [`config`], [`security`] and [`metrics`] serve them; [`readiness`] reports on them. [`epoch_history`]
//! records how far the log got, for subscribers that come back after this process has ended. [`memory`] adds up what
//! all of them may hold.

pub mod app;
pub mod config;
pub mod edge;
pub mod epoch_history;
mod locks;
pub mod log;
mod log_gate;
pub mod memory;
pub mod metrics;
pub mod readiness;
pub mod security;
pub mod server;
pub mod shaping;
pub mod streams;
