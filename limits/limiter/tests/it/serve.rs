//! Tests of `limiter serve` with real processes and sockets.

mod clients;
#[cfg(feature = "mongodb")]
mod collection;
mod from_call;
mod harness;
mod kills;
mod port;
mod restarts;
/// A Redis or Valkey server.
#[path = "../../../sharing/tests/it/server/mod.rs"]
mod server;
mod shared_limits;
mod slots;
mod untrusted_clients;
