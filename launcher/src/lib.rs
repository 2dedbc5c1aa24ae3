//! Starts the real programs, and asks them how they are: for the demonstration, the scenarios of `bench`, and tests.
//!
//! - [`programs`] finds or builds them, runs them as processes, and ends them; [`producer`] and [`limiter`] start one of these,
//!   [`mongod`] a MongoDB, [`redis`] a Redis;
//! - [`http`] is the client with which [`admin`] asks: readiness, lookups, metrics, and one sync;
//! - [`scrape`] reads metrics, and [`ledger`] says whether their counts of cookies add up;
//! - [`numbers`] writes figures as a person reads them;
//! - [`tools`] finds what a test needs, and skips the test without it.
//!
//! It knows the programs by their ports alone and links nothing of them, so that the demonstration is built quickly.

pub mod admin;
pub mod http;
pub mod ledger;
pub mod limiter;
pub mod mongod;
pub mod numbers;
pub mod producer;
pub mod programs;
pub mod redis;
pub mod scrape;
pub mod tools;
