//! The record of a producer's epochs as bytes. Pure.
//!
//! Up to which epoch it is not to be trusted, then the name of the format, an entry for each epoch, the oldest first, zeroes, and a
//! checksum. A record that was torn, truncated or written by another program is [`Damaged`] as a whole, because an epoch that
//! cannot be read may hide any number of cookies.

/// How many epochs are kept, the current one included: a subscriber that missed more restarts is given no bound.
pub(super) const EPOCHS_MAX: usize = 16;

/// Where a process that could not take the record writes up to which epoch the record is not to be trusted, because
/// epochs that it does not know may lie between. The process that owns the record does not write here.
pub(super) const DISTRUSTED_AT: u64 = 0;

/// Where the rest begins, which its owner writes as a whole. It fits a page, so a write is never torn when its process is killed.
pub(super) const OWNED_AT: u64 = 8;

/// The size of a record in bytes.
pub(super) const RECORD_BYTES: usize = 8 + MAGIC.len() + EPOCHS_MAX * ENTRY_BYTES + 8;

const MAGIC: &[u8; 8] = b"cklives2";
const ENTRY_BYTES: usize = 40;

/// Identifies one boot of the machine; all zeroes when the system does not say.
pub(super) type BootId = [u8; 16];

/// What is known of the end of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It has no sequence above this one.
    AtMost(u64),
    /// This was its last sequence.
    Exact(u64),
    /// Nothing.
    Unknown,
}

/// One epoch of the producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) epoch: u64,
    pub(super) end: End,
    pub(super) boot: BootId,
}

/// The bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record is damaged")]
pub(super) struct Damaged;

/// What the owner of a record writes of these epochs, of which there are [`EPOCHS_MAX`] at most.
pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for Entry { epoch, end, boot } in entries {
        let (kind, end) = match end {
            End::AtMost(end) => (1_u64, *end),
            End::Exact(end) => (2, *end),
            End::Unknown => (3, 0),
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

/// Reads a record: the epochs that can be trusted, the oldest first. An empty file is a record without epochs.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Entry>, Damaged> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes.len() != RECORD_BYTES {
        return Err(Damaged);
    }
    let (distrusted, owned) = bytes.split_at(8);
    let (written, sum) = owned.split_at(owned.len() - 8);
    let entries = written.strip_prefix(MAGIC).ok_or(Damaged)?;
    if number(sum, 0) != fnv(written) {
        return Err(Damaged);
    }
    let entries = entries.chunks_exact(ENTRY_BYTES);
    // No epoch is 0.
    let entries = entries.take_while(|entry| number(entry, 0) != 0);
    let mut entries: Vec<_> = entries.map(decode_entry).collect::<Result<_, _>>()?;
    let distrusted = number(distrusted, 0);
    if let Some(at) = entries.iter().rposition(|entry| entry.epoch <= distrusted) {
        entries.drain(..=at);
    }
    Ok(entries)
}

fn decode_entry(bytes: &[u8]) -> Result<Entry, Damaged> {
    let end = match number(bytes, 16) {
        1 => End::AtMost(number(bytes, 8)),
        2 => End::Exact(number(bytes, 8)),
        3 => End::Unknown,
        _ => return Err(Damaged),
    };
    let mut boot = BootId::default();
    boot.copy_from_slice(&bytes[24..]);
    Ok(Entry {
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

/// FNV-1a in 64 bits: detects what was torn or overwritten, not what was forged.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    fnv_after(0xcbf2_9ce4_8422_2325, bytes)
}

/// The same, of bytes that follow others with this sum.
pub(crate) fn fnv_after(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<Entry> {
        let entry = |n: u64| Entry {
            epoch: 1_000 + n,
            end: match n % 3 {
                0 => End::AtMost(n),
                1 => End::Exact(n),
                _ => End::Unknown,
            },
            boot: [7; 16],
        };
        (0..count).map(entry).collect()
    }

    fn whole(entries: &[Entry]) -> Vec<u8> {
        [&[0; 8], &*encode(entries)].concat()
    }

    #[test]
    fn what_was_written_is_read() {
        for count in [0, 1, 3, 16] {
            assert_eq!(decode(&whole(&entries(count))), Ok(entries(count)));
        }
        assert_eq!(decode(&[]), Ok(Vec::new()));
    }

    #[test]
    fn torn_or_foreign_record_is_damaged() {
        let good = whole(&entries(5));
        for length in 1..RECORD_BYTES {
            assert_eq!(decode(&good[..length]), Err(Damaged), "{length} bytes");
        }
        for at in 8..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(decode(&bad), Err(Damaged), "byte {at}");
        }
        assert_eq!(decode(&[0; RECORD_BYTES]), Err(Damaged));
        assert_eq!(decode(&[0xff; RECORD_BYTES]), Err(Damaged));
        // The first half is new, the second old.
        let (half, mut torn) = (RECORD_BYTES / 2, whole(&entries(16)));
        torn[half..].copy_from_slice(&good[half..]);
        assert_eq!(decode(&torn), Err(Damaged));
    }

    #[test]
    fn epochs_up_to_the_distrusted_one_are_dropped() {
        let trusted = |distrusted: u64| {
            let record = [&distrusted.to_le_bytes(), &*encode(&entries(4))].concat();
            decode(&record).unwrap()
        };
        assert_eq!(trusted(999), entries(4));
        assert_eq!(trusted(1_001), entries(4)[2..]);
        assert_eq!(trusted(u64::MAX), []);
    }
}
