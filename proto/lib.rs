//! What cookiesync's processes share: the wire contract between producer and reader, and how each process
//! starts, serves its admin port and stops.
//!
//! What both sides promise each other:
//!
//! - A producer numbers its cookies densely within an epoch, from 1. On a stream, each [`v1::Chunk`] begins
//!   where the previous chunk or [`v1::Gap`] ended, plus one; a reader that sees anything else has found a
//!   bug and reconnects from its cursor.
//! - [`v1::Hello`] is always first; [`v1::Goodbye`] is last when the producer drains.
//! - A cursor names the newest sequence a reader *has*. Cursors compare only within one epoch.
//! - What a stream sends at once is never smaller than [`limits::SMALL_FRAME_BYTES`], and no message larger than
//!   [`limits::MESSAGE_BYTES_MAX`].
//! - Readers announce fixed windows and large frames ([`client`]), and use one connection per stream.
//!
//! [`wire`] is the hand-written form of the bytes that are many: cookies and chunks. Everything else goes
//! through the generated types in [`v1`].

pub mod client;
pub mod limits;
pub mod process;
pub mod wire;

/// Types and client generated from `proto/cookiesync/v1/cookiesync.proto`.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("cookiesync.v1");

    /// The compiled descriptor set, as gRPC reflection serves it.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
