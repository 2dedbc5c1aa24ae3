//! The producer accepts sync requests and streams their cookies (matches of a user id and a DSP's id for that user) to
//! every exchange node.
//!
//! The path of a cookie: [`edge`] parses it from a request. [`contracts`] decide whether it is recorded; a [`plan`] tells browsers from
//! which DSPs to get the next ones. [`inlet`] appends
//! it to the log, unless a rate limit queues or drops it. [`log`] encodes it into the open chunk, and seals the chunk when it is full or a few milliseconds old. [`streams`] hands the
//! bytes of the chunk to each subscriber's HTTP/2 stream, which [`server`] writes to its connection.
//!
//! [`app`] wires these modules; [`config`], [`security`], [`metrics`] and [`readiness`] support them. [`archive`] publishes the
//! log to an archive. [`epoch_history`]
//! records the progress of the log, for subscribers that reconnect after a restart. [`memory`] computes the maximum
//! memory.

pub mod api;
pub mod app;
pub mod archive;
pub mod config;
pub mod contracts;
pub mod dsps;
pub mod edge;
pub mod epoch_history;
pub mod inlet;
mod interval_limit;
mod locks;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod plan;
mod rate_limits;
pub mod readiness;
pub mod security;
pub mod server;
pub mod streams;
