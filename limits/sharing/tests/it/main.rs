//! Shared limits: the ledger's model alone, the scripts compared with it on a real server, simulations, and members with real servers that
//! are killed, paused, replaced, emptied, or reached over a bad link. Tests with a server are skipped without its program.

#![allow(
    clippy::unwrap_used,
    reason = "a test, in which all that fails is a failure"
)]

mod busy;
mod exact;
mod failover;
mod lease;
mod ledger;
mod login;
mod model;
mod scripts;
mod server;
mod simulation;
mod tools;
mod world;
