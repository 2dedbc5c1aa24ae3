//! The whole system: real processes on loopback ports of their own, a real `mongod`, a client in another
//! language, and sentences about what holds between them.

mod clock_jumps;
mod documents;
mod edge;
mod faults;
mod harness;
mod ledger;
mod limits;
mod maintenance;
mod mongods;
mod process_wrapper;
mod restarts;
mod store;
mod stream;
mod stream_client;
mod tcp_proxy;
mod tools;
