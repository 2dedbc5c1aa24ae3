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

/// A cookie of a burst, read as far as is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pushed<'a> {
    encoded: &'a [u8],
}

const PUSHED: &str = "nothing but cookies was put there";

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

    /// Keeps the cookies of which `goes` is true, in their order.
    pub(crate) fn retain(&mut self, mut goes: impl FnMut(Pushed<'_>) -> bool) {
        let (mut read, mut kept) = (0, 0);
        while read < self.encoded.len() {
            let (encoded, bytes) = wire::first_cookie(&self.encoded[read..]).expect(PUSHED);
            if goes(Pushed { encoded }) {
                if kept < read {
                    self.encoded.copy_within(read..read + bytes, kept);
                }
                kept += bytes;
            } else {
                self.count -= 1;
            }
            read += bytes;
        }
        self.encoded.truncate(kept);
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    pub(super) fn clear(&mut self) {
        self.encoded.clear();
        self.count = 0;
    }
}

impl<'a> Pushed<'a> {
    /// Its DSP.
    pub(crate) fn dsp_id(self) -> u32 {
        wire::cookie_dsp(self.encoded).expect(PUSHED)
    }

    /// All of it.
    pub(crate) fn cookie(self) -> CookieRef<'a> {
        wire::decode_cookie(self.encoded).expect(PUSHED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_are_those_that_go_in_their_order() {
        let cookie = |dsp_id, user_id| CookieRef {
            user_id,
            dsp_id,
            buyer_uid: "b",
            age_micros: 0,
        };
        let users = ["a", "bb", "", "dddd", "e"];
        for goes in 0..1_u32 << users.len() {
            let (mut burst, mut expected) = (Burst::default(), Burst::default());
            for (dsp_id, user) in (0..).zip(users) {
                burst.push(&cookie(dsp_id, user));
                if goes & 1 << dsp_id != 0 {
                    expected.push(&cookie(dsp_id, user));
                }
            }
            let mut seen = Vec::new();
            burst.retain(|cookie| {
                let whole = cookie.cookie();
                assert_eq!(whole.user_id, users[whole.dsp_id as usize]);
                seen.push(cookie.dsp_id());
                goes & 1 << cookie.dsp_id() != 0
            });
            assert_eq!(seen, [0, 1, 2, 3, 4]);
            assert_eq!(burst.encoded(), expected.encoded());
            assert_eq!(burst.count(), expected.count());
        }
    }
}
