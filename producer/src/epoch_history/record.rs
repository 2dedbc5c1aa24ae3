//! Binary format of the record. Pure.
//!
//! It contains the epoch up to which it is untrusted, a magic number, one entry per epoch from the oldest to the newest, zeros, and
//! a checksum. A partly invalid record is rejected entirely, because an unreadable epoch may have any number of cookies.

/// Maximum number of epochs, including the current one. A subscriber that missed more restarts gets no bound.
pub(super) const EPOCHS_MAX: usize = 16;

/// Offset of the epoch up to which the record is untrusted. Written by a process that cannot lock the record, and whose epoch is
/// therefore not recorded; never by the owner of the record.
pub(super) const UNTRUSTED_OFFSET: u64 = 0;

/// Offset of the rest, which the owner writes in one call. It fits a page, so killing the process does not tear a
/// write.
pub(super) const OWNED_OFFSET: u64 = 8;

/// Size of a record in bytes.
pub(super) const RECORD_BYTES: usize = 8 + MAGIC.len() + EPOCHS_MAX * ENTRY_BYTES + 8;

const MAGIC: &[u8; 8] = b"cklives2";
const ENTRY_BYTES: usize = 40;

/// Id of one boot of the machine; all zeros if unknown.
pub(super) type BootId = [u8; 16];

/// The known part of an epoch's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochEnd {
    /// Upper bound of its sequences.
    AtMost(u64),
    /// Its last sequence.
    Exact(u64),
    Unknown,
}

/// One epoch of the producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordEntry {
    pub(super) epoch: u64,
    pub(super) end: EpochEnd,
    pub(super) boot: BootId,
}

/// The bytes are not a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("corrupt record")]
pub(super) struct CorruptRecord;

/// Encodes up to [`EPOCHS_MAX`] entries, as written at [`OWNED_OFFSET`].
pub(super) fn encode(entries: &[RecordEntry]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for RecordEntry { epoch, end, boot } in entries {
        let (kind, end) = match end {
            EpochEnd::AtMost(end) => (1_u64, *end),
            EpochEnd::Exact(end) => (2, *end),
            EpochEnd::Unknown => (3, 0),
        };
        for number in [*epoch, end, kind] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(boot);
    }
    bytes.resize(MAGIC.len() + EPOCHS_MAX * ENTRY_BYTES, 0);
    bytes.extend(fnv(&bytes).to_le_bytes());
    bytes
}

/// Decodes the trusted entries of a record, oldest first. An empty file has none.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<RecordEntry>, CorruptRecord> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes.len() != RECORD_BYTES {
        return Err(CorruptRecord);
    }
    let (untrusted_until, owned) = bytes.split_at(8);
    let (written, sum) = owned.split_at(owned.len() - 8);
    let entries = written.strip_prefix(MAGIC).ok_or(CorruptRecord)?;
    if number(sum, 0) != fnv(written) {
        return Err(CorruptRecord);
    }
    let entries = entries.chunks_exact(ENTRY_BYTES);
    // No epoch is 0.
    let entries = entries.take_while(|entry| number(entry, 0) != 0);
    let mut entries: Vec<_> = entries.map(decode_entry).collect::<Result<_, _>>()?;
    let untrusted_until = number(untrusted_until, 0);
    if let Some(at) = entries
        .iter()
        .rposition(|entry| entry.epoch <= untrusted_until)
    {
        entries.drain(..=at);
    }
    Ok(entries)
}

fn decode_entry(bytes: &[u8]) -> Result<RecordEntry, CorruptRecord> {
    let end = match number(bytes, 16) {
        1 => EpochEnd::AtMost(number(bytes, 8)),
        2 => EpochEnd::Exact(number(bytes, 8)),
        3 => EpochEnd::Unknown,
        _ => return Err(CorruptRecord),
    };
    let mut boot = BootId::default();
    boot.copy_from_slice(&bytes[24..]);
    Ok(RecordEntry {
        epoch: number(bytes, 0),
        end,
        boot,
    })
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
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
            epoch: 1_000 + n,
            end: match n % 3 {
                0 => EpochEnd::AtMost(n),
                1 => EpochEnd::Exact(n),
                _ => EpochEnd::Unknown,
            },
            boot: [7; 16],
        };
        (0..count).map(entry).collect()
    }

    fn record(entries: &[RecordEntry]) -> Vec<u8> {
        [&[0; 8], &*encode(entries)].concat()
    }

    #[test]
    fn encoded_entries_are_decoded() {
        for count in [0, 1, 3, 16] {
            assert_eq!(decode(&record(&entries(count))), Ok(entries(count)));
        }
        assert_eq!(decode(&[]), Ok(Vec::new()));
    }

    #[test]
    fn torn_or_foreign_record_is_corrupt() {
        let valid = record(&entries(5));
        for length in 1..RECORD_BYTES {
            assert_eq!(
                decode(&valid[..length]),
                Err(CorruptRecord),
                "{length} bytes"
            );
        }
        for at in 8..valid.len() {
            let mut corrupt = valid.clone();
            corrupt[at] ^= 0x10;
            assert_eq!(decode(&corrupt), Err(CorruptRecord), "byte {at}");
        }
        assert_eq!(decode(&[0; RECORD_BYTES]), Err(CorruptRecord));
        assert_eq!(decode(&[0xff; RECORD_BYTES]), Err(CorruptRecord));
        // The first half is new, the second old.
        let (half, mut torn) = (RECORD_BYTES / 2, record(&entries(16)));
        torn[half..].copy_from_slice(&valid[half..]);
        assert_eq!(decode(&torn), Err(CorruptRecord));
    }

    #[test]
    fn untrusted_epochs_are_dropped() {
        let trusted = |untrusted_until: u64| {
            let record = [&untrusted_until.to_le_bytes(), &*encode(&entries(4))].concat();
            decode(&record).unwrap()
        };
        assert_eq!(trusted(999), entries(4));
        assert_eq!(trusted(1_001), entries(4)[2..]);
        assert_eq!(trusted(u64::MAX), []);
    }
}
