//! Tests of shared limits: the model of the ledger, the scripts compared with their models, simulations, and real servers that fail, are
//! replaced or have a bad link. Tests with a real server are skipped if its program is missing.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

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
