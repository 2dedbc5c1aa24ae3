//! `limiter serve` with real processes and sockets.

#[path = "serve/clients.rs"]
mod clients;
#[cfg(feature = "mongodb")]
#[path = "serve/collection.rs"]
mod collection;
#[path = "serve/from_call.rs"]
mod from_call;
#[path = "serve/harness.rs"]
mod harness;
#[path = "serve/kills.rs"]
mod kills;
#[path = "serve/port.rs"]
mod port;
#[path = "serve/restarts.rs"]
mod restarts;
/// A Redis or Valkey server.
#[path = "../../sharing/tests/it/server/mod.rs"]
mod server;
#[path = "serve/shared_limits.rs"]
mod shared_limits;
#[path = "serve/slots.rs"]
mod slots;
#[path = "serve/untrusted_clients.rs"]
mod untrusted_clients;
