//! TLS 1.2 and 1.3, with certificates from PEM files that are reloaded when they change.
//!
//! New connections use the newest valid files; open connections keep theirs. Sessions are never resumed: connections
//! stay open for days, so resumption would save nothing, and no session outlives the certificates that it was verified
//! with. Expired certificates are logged but used, because a process that does not start is worse than one that some
//! peers reject.

pub mod client;
mod pem;
pub mod server;
mod validity;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The application protocol of gRPC.
const HTTP2: &[u8] = b"h2";

/// The cryptography provider, chosen here so that features of other crates do not affect it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
