//! The whole system: real processes on loopback ports of their own, a real `mongod`, a client in another
//! language, and sentences about what holds between them.

mod clock_jumps;
mod cut;
mod documents;
mod edge;
mod faults;
mod harness;
mod ledger;
mod limits;
mod mongods;
mod night;
mod restarts;
mod store;
mod stream;
mod stream_client;
mod tools;
mod wrapped;
