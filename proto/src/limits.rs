//! Limits of the protocol, for both sides.

use std::time::Duration;

/// Maximum bytes of a user id.
pub const USER_ID_BYTES_MAX: usize = 64;

/// Maximum bytes of a buyer uid, after percent-decoding.
pub const BUYER_UID_BYTES_MAX: usize = 256;

/// Maximum time between events of a stream. A client may close a stream after three times as long without an event.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(10);

/// Maximum bytes of the name of a subscriber or the id of a producer.
pub const SUBSCRIBER_NAME_BYTES_MAX: usize = 256;

/// Maximum cursors in a `SubscribeRequest`.
pub const CURSORS_MAX: usize = 1024;

/// Maximum number of DSPs with a contract, and thus in a `TimesToLive`.
pub const CONTRACTS_MAX: usize = 1024;

/// Maximum age of a cookie in microseconds: 7 days. Decoders clamp larger ages to it.
pub const AGE_MICROS_MAX: u64 = 7 * 24 * 3600 * 1_000_000;

/// Maximum age of the time that an API client sets for a match or a deletion, in microseconds: 25 hours. Older requests
/// are rejected, because they could restore a deleted cookie.
pub const DELETION_HORIZON_MICROS: u64 = 25 * 3600 * 1_000_000;

/// Maximum time that the clock of a sender may be ahead of the receiver's, in microseconds: 5 minutes. Later times are clamped or
/// rejected.
pub const CLOCK_AHEAD_MICROS_MAX: u64 = 5 * 60 * 1_000_000;

/// Maximum bytes of a request message or node report, enough for [`CURSORS_MAX`] cursors.
pub const REQUEST_BYTES_MAX: usize = 512 * 1024;

/// Default bytes of a chunk's message, including its length prefix.
///
/// One chunk is then one HTTP/2 frame, and one system call, for a client that accepts 64 KiB frames.
pub const CHUNK_BYTES_DEFAULT: usize = 64 * 1024;

/// Maximum chunk size that can be configured; clients must accept messages of this size.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Minimum chunk size that can be configured: a few cookies of maximum size.
pub const CHUNK_BYTES_MIN: usize = 4 * 1024;

/// Minimum bytes of a DATA frame that h2 (0.4.16 and later) does not count as small. h2 closes a connection with too many
/// small unread frames.
pub const SMALL_FRAME_BYTES: usize = 256;

/// Maximum message size that a client must accept: a chunk of [`CHUNK_BYTES_MAX`] plus the largest cookie, rounded up.
pub const MESSAGE_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX;

/// Maximum HTTP/2 flow-control window that our clients announce, in bytes.
///
/// Windows are large and fixed. With an adaptive window, h2's small-frame budget shrinks, and a client that pauses for 20 ms is
/// disconnected.
pub const RECEIVE_WINDOW_BYTES: u32 = 32 * 1024 * 1024;

/// Maximum bytes in flight to a client with windows of this size: the window plus two chunks that wait to be sent.
pub const fn in_flight_bytes_max(window_bytes: u32) -> usize {
    window_bytes as usize + 2 * CHUNK_BYTES_MAX
}

/// Default bytes to resend to a subscriber that resumes by name without a cursor: the maximum in flight with our largest window.
pub const REWIND_BYTES_DEFAULT: usize = in_flight_bytes_max(RECEIVE_WINDOW_BYTES);

/// Maximum HTTP/2 frame size that our clients announce. It determines the bytes per system call.
pub const RECEIVE_FRAME_BYTES: u32 = 1024 * 1024;
