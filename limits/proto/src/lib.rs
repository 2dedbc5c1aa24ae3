//! The contract of `limiter serve` over gRPC: messages, client and server.

#[cfg(test)]
mod generated;

/// Generated from `cookiesync/limiter/v1/limiter.proto`; a test keeps it to that.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/cookiesync.limiter.v1.rs");

    /// The compiled descriptor set, as gRPC reflection serves it.
    pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
}
