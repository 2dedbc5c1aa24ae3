//! Encoded cookies that are about to be appended to the log: those of one read of one connection.

use proto::{
    limits::CHUNK_BYTES_MIN,
    wire::{self, CookieRef},
};

/// Encoded cookies that are not in the log yet.
///
/// They are appended together, so that pipelined requests share one lock; a burst always fits a chunk.
#[derive(Debug, Default)]
pub struct Burst {
    encoded: Vec<u8>,
    count: u32,
}

/// A burst with this many bytes is full. It leaves room for one more of the largest cookies, and for the
/// headers, in the smallest chunk that can be configured.
const FULL_BYTES: usize = CHUNK_BYTES_MIN / 2;

impl Burst {
    /// Encodes one more cookie.
    ///
    /// # Panics
    /// When the burst [is full](Self::is_full): append it first.
    pub fn push(&mut self, cookie: &CookieRef<'_>) {
        assert!(!self.is_full(), "a full burst is appended first");
        wire::put_cookie(&mut self.encoded, cookie);
        self.count += 1;
    }

    /// Whether it must be appended before another cookie is pushed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.encoded.len() >= FULL_BYTES
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many cookies it holds.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    pub(super) fn clear(&mut self) {
        self.encoded.clear();
        self.count = 0;
    }
}
