//! The whole system: real processes on loopback ports of their own, a real `mongod`, a client in another
//! language, and sentences about what holds between them.

mod abuse;
mod admin;
mod clock_jumps;
mod connections;
mod cut;
mod documents;
mod drain;
mod e2e;
mod edge;
mod fanout;
mod faults;
mod full_disk;
mod get_cookies;
mod harness;
mod http_client;
mod languages;
mod ledger;
mod load;
mod maintenance;
mod mongods;
mod newest_wins;
mod night;
mod outages;
mod peers;
mod refusals;
mod reports;
mod restarts;
mod security;
mod settings;
mod store;
mod stream_client;
mod subscribe;
mod syncs;
mod wrapped;
