//! The contract's numbers, in one place for both sides.

use std::time::Duration;

/// Longest user id, in bytes, that this contract allows.
pub const USER_ID_BYTES_MAX: usize = 64;

/// Longest buyer uid after percent-decoding, in bytes, that this contract allows.
pub const BUYER_UID_BYTES_MAX: usize = 256;

/// Longest time a producer may let a stream be silent; a reader may give a stream up that is silent for three
/// times as long.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(10);

/// Longest name of a subscriber, in bytes.
pub const SUBSCRIBER_NAME_BYTES_MAX: usize = 256;

/// Most cursors in one `SubscribeRequest`.
pub const CURSORS_MAX: usize = 1024;

/// Longest time between a cookie's acceptance and its chunk's, in microseconds: 7 days. More is read as that, so that no
/// message makes a cookie look older.
pub const AGE_MICROS_MAX: u64 = 7 * 24 * 3600 * 1_000_000;

/// Largest request message the gRPC side accepts: room for [`CURSORS_MAX`] cursors.
pub const REQUEST_BYTES_MAX: usize = 512 * 1024;

/// Default size of a chunk's message on the wire, length prefix included.
///
/// Chosen so that one chunk is one HTTP/2 frame, hence one system call, for a receiver that accepts 64 KiB
/// frames.
pub const CHUNK_BYTES_DEFAULT: usize = 64 * 1024;

/// Largest chunk size that may be configured: a receiver must be ready for a message of this size.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Smallest chunk size that may be configured: a few of the largest cookies.
pub const CHUNK_BYTES_MIN: usize = 4 * 1024;

/// Smallest DATA frame that h2 (0.4.16 and later) receives free of charge; every smaller one that waits
/// unread is charged against a budget whose end kills the connection.
pub const SMALL_FRAME_BYTES: usize = 256;

/// Largest message a receiver must accept: a chunk of [`CHUNK_BYTES_MAX`] and the largest cookie, rounded up.
pub const MESSAGE_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX;

/// Largest HTTP/2 flow-control windows our own receivers announce, in bytes.
///
/// Large and fixed: an adaptive window lets h2's small-frame budget shrink with it, and a reader that pauses
/// for 20 ms is then cut off.
pub const RECEIVE_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// All that can be on its way to a client with windows of this size when a connection breaks, in the window and in
/// what waits to be sent.
#[must_use]
pub const fn in_flight_bytes_max(window_bytes: u32) -> usize {
    window_bytes as usize + 2 * CHUNK_BYTES_MAX
}

/// How far before its position a queue that is found by its name alone starts again, at most: as far as the largest of
/// our own windows needs.
pub const REWIND_BYTES_DEFAULT: usize = in_flight_bytes_max(RECEIVE_WINDOW_BYTES);

/// Largest HTTP/2 frame our own receivers announce; the receiver decides the bytes per system call.
pub const RECEIVE_FRAME_BYTES: u32 = 1024 * 1024;
