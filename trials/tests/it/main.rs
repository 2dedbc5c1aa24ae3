//! System tests: the real programs on free loopback ports, with a real `mongod`, Redis or haproxy where needed.
//!
//! Each test starts its own processes through [`harness`] and waits on conditions with a deadline. A test that needs a missing
//! tool or permission is skipped with a message.

mod archive;
mod browser;
mod clock_jumps;
mod copies;
mod deletions;
mod documents;
mod edge;
mod faults;
mod following;
mod harness;
mod ledger;
mod limits;
mod lookups;
mod maintenance;
mod mongods;
mod node_reports;
mod process_wrapper;
mod recovery;
mod regions;
mod restarts;
mod revalidation;
mod store;
mod stream;
mod stream_client;
mod tcp_proxy;
mod tools;
