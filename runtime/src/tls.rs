//! TLS 1.2 and 1.3 for what speaks HTTP/2 here, with certificates from PEM files that may be replaced at any
//! time.
//!
//! New connections use the newest files that are good; open ones keep what they were opened with. Sessions are
//! never resumed: connections live for days, so it would save nothing, and no session outlives the certificates it
//! was checked against. An expired certificate is said (at start and when it happens) but used: a process that
//! does not start is worse than one that some refuse to talk to.

pub mod client;
mod pem;
pub mod server;
mod validity;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// What the other side must speak inside of TLS.
const HTTP2: &[u8] = b"h2";

/// The algorithms, chosen here, so that no other crate's features decide them for the process.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
