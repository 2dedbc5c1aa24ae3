//! cookiesync puts each match of a user's id and a buyer's into the database beside every exchange node. This crate is what
//! its programs share: the wire contract, and how each process starts, serves its admin port and stops.
//!
//! # The way of a cookie
//!
//! ```text
//!            PRODUCER                                      CONSUMER, one on each node
//! browser ─▶ edge ─▶ log ─▶ stream of each subscriber ─▶ subscription ─▶ batch ─▶ store ─▶ bidder
//!                    (shared by all)          HTTP/2      (bounded buffer) (newest wins)
//! ```
//!
//! 1. **Edge.** A DSP redirects a browser to the producer. [`edge`](../producer/edge/index.html) finds the cookie in the
//!    request: the user's id, the DSP's number, the buyer's uid. What is no cookie gets a 400 that says why.
//! 2. **Log.** It is encoded once, numbered, and appended to the open chunk of the [`log`](../producer/log/index.html),
//!    together with all others of the same read. Only then the browser gets its 200. A chunk is sealed when it is full or 10
//!    ms old, and held in memory as long as the log's bound allows: that is how long a node may be away and miss nothing.
//! 3. **Stream.** Each subscriber is a position in that log, so a further one costs a few bytes and no copy:
//!    [`streams`](../producer/streams/index.html) hands the chunk's very bytes to its HTTP/2 stream when there is room for
//!    them. One that falls behind its bound loses its oldest, exactly counted, and the others do not feel it.
//! 4. **Subscription.** In the consumer one [`subscription`](../consumer/subscription/index.html) for each producer checks
//!    that every sequence is there or declared lost, and pushes the chunk, unread, into a buffer that is bounded in bytes.
//! 5. **Batch.** For 200 ms a [`batch`](../consumer/batch/index.html) keeps the newest cookie of each user and DSP, repeats
//!    of what is stored are [left out](../consumer/suppression/index.html), and the [`sink`](../consumer/sink/index.html)
//!    writes it while the next is collected.
//! 6. **Store.** A [`store`](../consumer/store/index.html), MongoDB or embedded, makes it durable and then the cursors of
//!    its producers: whatever ends in between comes again, and changes nothing. The
//!    [`ledger`](../consumer/ledger/index.html) knows what became of each. At night
//!    [`maintenance`](../consumer/maintenance/index.html) lets expired ones go.
//!
//! [`bench`](../bench/index.html) drives all of it with real processes, and verifies every store. `README.md` says how to run
//! it, `ARCHITECTURE.md` where things are, `docs/` what it takes, what it promises, and each metric and setting.
//!
//! # What both sides promise each other
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
#[cfg(test)]
mod generated;
pub mod limits;
pub mod process;
pub mod wire;

/// Types and client generated from `proto/cookiesync/v1/cookiesync.proto`; a test keeps them to it.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/cookiesync.v1.rs");

    /// The compiled descriptor set, as gRPC reflection serves it.
    pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
}
