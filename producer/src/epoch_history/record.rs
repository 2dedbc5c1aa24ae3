//! Binary format of the epoch history. Does no I/O.
//!
//! It contains a magic number, one entry per epoch from the oldest to the newest, zeros, and a checksum. It is written in one
//! call and fits a page, so a killed process leaves no partial write. A partly invalid record is rejected entirely, because
//! an unreadable epoch may contain any number of cookies.

use proto::units::{Epoch, Sequence};

/// Maximum number of epochs, including the current one. A subscriber that missed more restarts gets no bound.
pub(super) const EPOCHS_MAX: usize = 16;

/// Size of a record in bytes.
pub(super) const RECORD_BYTES: usize = MAGIC.len() + EPOCHS_MAX * ENTRY_BYTES + 8;

const MAGIC: &[u8; 8] = b"cklives3";
const ENTRY_BYTES: usize = 24;

/// One epoch of the producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordEntry {
    /// Never 0.
    pub(super) epoch: Epoch,
    /// Upper bound of its sequence numbers.
    pub(super) end: Sequence,
    /// Whether `end` is its last sequence number.
    pub(super) is_exact: bool,
}

/// Encodes up to [`EPOCHS_MAX`] entries.
pub(super) fn encode(entries: &[RecordEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.extend(MAGIC);
    for entry in entries {
        for number in [entry.epoch.0, entry.end.0, entry.is_exact.into()] {
            bytes.extend(number.to_le_bytes());
        }
    }
    bytes.resize(RECORD_BYTES - 8, 0);
    bytes.extend(fnv(&bytes).to_le_bytes());
    bytes
}

/// Decodes the entries of a record, oldest first; `None` if it is corrupt. An empty file has none.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<RecordEntry>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let (written, sum) = bytes.split_last_chunk()?;
    if bytes.len() != RECORD_BYTES || u64::from_le_bytes(*sum) != fnv(written) {
        return None;
    }
    let (words, _) = written.strip_prefix(MAGIC)?.as_chunks();
    let numbers: Vec<u64> = words.iter().map(|it| u64::from_le_bytes(*it)).collect();
    let (entries, _) = numbers.as_chunks();
    let entries = entries.iter().map(|&[epoch, end, is_exact]| RecordEntry {
        epoch: Epoch(epoch),
        end: Sequence(end),
        is_exact: is_exact == 1,
    });
    Some(entries.take_while(|entry| entry.epoch.0 != 0).collect())
}

/// 64-bit FNV-1a: detects torn or overwritten data, but not forgery.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    fnv_after(0xcbf2_9ce4_8422_2325, bytes)
}

/// Continues a checksum over more bytes.
pub(crate) fn fnv_after(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<RecordEntry> {
        let entry = |n: u64| RecordEntry {
            epoch: Epoch(1_000 + n),
            end: Sequence(n),
            is_exact: n % 2 == 1,
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn encoded_entries_are_decoded() {
        for count in [0, 1, 3, 16] {
            assert_eq!(decode(&encode(&entries(count))), Some(entries(count)));
        }
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    #[test]
    fn torn_or_foreign_record_is_corrupt() {
        let valid = encode(&entries(5));
        for length in 1..RECORD_BYTES {
            assert_eq!(decode(&valid[..length]), None, "{length} bytes");
        }
        for at in 0..valid.len() {
            let mut corrupt = valid.clone();
            corrupt[at] ^= 0x10;
            assert_eq!(decode(&corrupt), None, "byte {at}");
        }
        assert_eq!(decode(&[0; RECORD_BYTES]), None);
        assert_eq!(decode(&[0xff; RECORD_BYTES]), None);
        // The first half is new, the second old.
        let (half, mut torn) = (RECORD_BYTES / 2, encode(&entries(16)));
        torn[half..].copy_from_slice(&valid[half..]);
        assert_eq!(decode(&torn), None);
    }
}
