//! TLS 1.2 and 1.3, with certificates from PEM files that are reloaded when they change.
//!
//! New connections use the newest valid files; open connections keep theirs. Sessions are never resumed, so that none
//! outlives the certificates that verified it. Resumption would save nothing, because connections stay open for days.
//! Expired certificates are used, and shown by a metric: a process that some peers reject is better than one that does not start.

pub mod client;
mod pem;
pub mod server;
mod validity;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The application protocol of gRPC.
const HTTP2: &[u8] = b"h2";

/// The application protocol HTTP/1.1.
const HTTP1: &[u8] = b"http/1.1";

/// The cryptography provider, chosen explicitly so that features of other crates cannot change it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
