//! The contract between a producer and anyone who reads its stream: messages, limits, and the bytes that are many.
//!
//! A reader needs this crate and nothing else of cookiesync: open a stream with [`client::subscribe`], keep the bytes of each
//! message, walk them with [`wire::StreamMessage::decode`], and remember the last sequence as the cursor of the next call.
//!
//! ```no_run
//! use cookiesync_proto::{client, v1::SubscribeRequest, wire::StreamMessage};
//!
//! # async fn read() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = client::endpoint("http://127.0.0.1:7676")?.connect().await?;
//! let request = SubscribeRequest {
//!     subscriber: "my-node".to_owned(),
//!     supports_age: true,
//!     ..SubscribeRequest::default()
//! };
//! let mut messages = client::subscribe(channel, request).await?.into_inner();
//! while let Some(message) = messages.message().await? {
//!     if let StreamMessage::Chunk(chunk) = StreamMessage::decode(message)? {
//!         for cookie in chunk.cookies() {
//!             let cookie = cookie?;
//!             let at = cookie.accepted_unix_micros(chunk.header().accepted_unix_micros);
//!             println!("{} is {} at {} since {at}", cookie.user_id, cookie.buyer_uid, cookie.dsp_id);
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What both sides promise each other
//!
//! - A producer numbers its cookies densely within an epoch, from 1. On a stream, each [`v1::Chunk`] begins
//!   where the previous chunk or [`v1::Gap`] ended, plus one; a reader that sees anything else has found a
//!   bug and reconnects from its cursor.
//! - [`v1::Hello`] is always first; [`v1::Goodbye`] is last when the producer drains.
//! - A cursor names the newest sequence a reader *has*. Cursors compare only within one epoch ([`cursor`]).
//! - Of two cookies of one user and DSP the [`newest`] counts, which need not be the one that came last: each may have an
//!   age, and a reader that acts on it says so in its request (`supports_age`).
//! - Every id is legal, as [`ids`] says.
//! - What a stream sends at once is never smaller than [`limits::SMALL_FRAME_BYTES`], and no message larger than
//!   [`limits::MESSAGE_BYTES_MAX`].
//! - Readers announce fixed windows and large frames ([`client`]), and use one connection per stream.
//!
//! [`wire`] is the hand-written form of cookies and chunks. Everything else goes through the generated types in [`v1`].

pub mod client;
pub mod cursor;
pub mod ids;
pub mod limits;
pub mod newest;
pub mod wire;

/// Types and client, which `build.rs` generates from `proto/cookiesync/v1/cookiesync.proto`.
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
    pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");
}
