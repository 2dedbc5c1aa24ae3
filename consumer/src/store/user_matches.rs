//! The stored matches of one user, encoded in one allocation: for each, the DSP (4 bytes), the time of acceptance (8), the length of the
//! buyer uid (2), and the buyer uid.

use std::sync::Arc;

use proto::{
    limits::BUYER_UID_BYTES_MAX,
    units::{DspId, UnixMicros},
};

/// Bytes of a match before its buyer uid.
const HEAD_BYTES: usize = 14;

/// Maximum bytes of a match.
pub const MATCH_BYTES_MAX: usize = HEAD_BYTES + BUYER_UID_BYTES_MAX;

/// The stored matches of one user, at most one per DSP. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserMatches(Arc<[u8]>);

/// A stored match of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredMatch<'a> {
    /// The DSP.
    pub dsp_id: DspId,
    /// When it was accepted.
    pub accepted: UnixMicros,
    /// The buyer uid: UTF-8 without control characters.
    pub buyer_uid: &'a [u8],
}

impl UserMatches {
    /// The matches.
    pub fn iter(&self) -> impl Iterator<Item = StoredMatch<'_>> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (dsp_id, after) = rest.split_first_chunk()?;
            let (accepted, after) = after.split_first_chunk()?;
            let (length, after) = after.split_first_chunk()?;
            let (buyer_uid, after) =
                after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = after;
            Some(StoredMatch {
                dsp_id: DspId(u32::from_le_bytes(*dsp_id)),
                accepted: UnixMicros(u64::from_le_bytes(*accepted)),
                buyer_uid,
            })
        })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl<'a> FromIterator<StoredMatch<'a>> for UserMatches {
    fn from_iter<I: IntoIterator<Item = StoredMatch<'a>>>(matches: I) -> Self {
        let mut encoded = Vec::new();
        for StoredMatch {
            dsp_id,
            accepted,
            buyer_uid,
        } in matches
        {
            // Longer buyer uids and other bytes are rejected on arrival; only a foreign writer could store them.
            let text = String::from_utf8_lossy(buyer_uid);
            let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
            if usize::from(length) > BUYER_UID_BYTES_MAX {
                continue;
            }
            encoded.reserve(HEAD_BYTES + text.len());
            encoded.extend_from_slice(&dsp_id.0.to_le_bytes());
            encoded.extend_from_slice(&accepted.0.to_le_bytes());
            encoded.extend_from_slice(&length.to_le_bytes());
            encoded.extend_from_slice(text.as_bytes());
        }
        Self(encoded.into())
    }
}
