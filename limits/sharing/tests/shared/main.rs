//! Four processes' worth of members, and real servers, which are killed, paused, replaced, come back empty, or are reached by a bad link: at every instant
//! the shares are at most the whole, and no exact limit gives more than it has. Without a server program, nothing is tested.

#![allow(
    clippy::unwrap_used,
    reason = "a test, in which all that fails is a failure"
)]

mod busy;
mod cluster;
mod exact;
mod failover;
mod lease;
mod login;
#[path = "../server/mod.rs"]
mod server;
mod tools;
mod world;
