//! Four members with real servers that are killed, paused, replaced, emptied, or reached over a bad link: shares never exceed the limit, and
//! exact limits are never exceeded. Skipped without a server program.

#![allow(
    clippy::unwrap_used,
    reason = "a test, in which all that fails is a failure"
)]

mod busy;
mod exact;
mod failover;
mod lease;
mod login;
#[path = "../server/mod.rs"]
mod server;
mod tools;
mod world;
