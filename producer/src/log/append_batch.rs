//! A batch of encoded cookies, usually those of one read of one connection, that is appended to the log under one lock.

use proto::{
    limits::CHUNK_BYTES_MIN,
    units::{DspId, UnixMicros},
    wire::{self, CookieRef},
};

/// Encoded cookies that are not in the log yet.
///
/// Appending them together lets pipelined requests share one lock. A batch always fits a chunk.
#[derive(Debug, Default)]
pub struct AppendBatch {
    encoded: Vec<u8>,
    count: u32,
    /// The time that ages refer to; `None` if each cookie is accepted when it is appended.
    aged_at: Option<UnixMicros>,
}

/// A cookie of a batch, decoded on demand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagedCookie<'a> {
    encoded: &'a [u8],
}

const ENCODED: &str = "a batch contains only encoded cookies";

/// A batch of this size is full. One more cookie of the maximum size and the chunk headers still fit the smallest chunk that
/// can be configured.
const FULL_BYTES: usize = CHUNK_BYTES_MIN / 2;

impl AppendBatch {
    /// Encodes a cookie into the batch.
    ///
    /// # Panics
    /// When the batch [is full](Self::is_full): append it first.
    pub fn push(&mut self, cookie: &CookieRef<'_>) {
        assert!(!self.is_full(), "a full batch is appended first");
        wire::put_cookie(&mut self.encoded, cookie);
        self.count += 1;
    }

    /// Encodes a cookie that was accepted at `accepted`. `now` is the current time of the log.
    ///
    /// # Panics
    /// Like [`push`](Self::push).
    pub fn push_accepted(&mut self, cookie: &CookieRef<'_>, accepted: UnixMicros, now: UnixMicros) {
        let age_micros = self.aged_at.get_or_insert(now).since(accepted);
        self.push(&CookieRef {
            age_micros,
            ..*cookie
        });
    }

    /// The time that the ages of its cookies refer to, if any has one.
    pub(crate) fn aged_at(&self) -> Option<UnixMicros> {
        self.aged_at
    }

    /// Whether it must be appended before another cookie is pushed.
    pub fn is_full(&self) -> bool {
        self.encoded.len() >= FULL_BYTES
    }

    /// Whether the batch has no cookies.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of cookies.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Keeps the cookies for which `keep` returns true, in order.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(StagedCookie<'_>) -> bool) {
        let (mut read, mut kept) = (0, 0);
        while read < self.encoded.len() {
            let (encoded, bytes) = wire::first_cookie(&self.encoded[read..]).expect(ENCODED);
            if keep(StagedCookie { encoded }) {
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
        (self.count, self.aged_at) = (0, None);
    }
}

impl<'a> StagedCookie<'a> {
    /// The DSP id, without decoding the rest.
    pub(crate) fn dsp_id(self) -> DspId {
        wire::cookie_dsp(self.encoded).expect(ENCODED)
    }

    /// The decoded cookie.
    pub(crate) fn cookie(self) -> CookieRef<'a> {
        let record = wire::decode_record(self.encoded).expect(ENCODED);
        record.cookie().expect("a batch contains no deletions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retain_keeps_the_selected_cookies_in_order() {
        let cookie = |dsp_id, user_id| CookieRef {
            user_id,
            dsp_id: DspId(dsp_id),
            buyer_uid: "b",
            age_micros: 0,
        };
        let users = ["a", "bb", "", "dddd", "e"];
        for selected in 0..1_u32 << users.len() {
            let (mut batch, mut expected) = (AppendBatch::default(), AppendBatch::default());
            for (dsp_id, user) in (0..).zip(users) {
                batch.push(&cookie(dsp_id, user));
                if selected & 1 << dsp_id != 0 {
                    expected.push(&cookie(dsp_id, user));
                }
            }
            let mut seen = Vec::new();
            batch.retain(|cookie| {
                let decoded = cookie.cookie();
                assert_eq!(decoded.user_id, users[decoded.dsp_id.0 as usize]);
                seen.push(cookie.dsp_id().0);
                selected & 1 << cookie.dsp_id().0 != 0
            });
            assert_eq!(seen, [0, 1, 2, 3, 4]);
            assert_eq!(batch.encoded(), expected.encoded());
            assert_eq!(batch.count(), expected.count());
        }
    }
}
