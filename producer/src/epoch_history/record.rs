//! The record of a producer's epochs as bytes. Pure.
//!
//! A header, then a slot for each epoch, the oldest first; the rest is zeroes. Each slot has a checksum. A record that
//! was torn, truncated or written by another program is [`Damaged`] as a whole, because an epoch that cannot be read
//! may hide any number of cookies.

/// How many epochs are kept, the current one included: a subscriber that missed more restarts is given no bound.
pub(super) const EPOCHS_MAX: usize = 16;

/// Where a process that could not take the record writes up to which epoch the record is not to be trusted, because
/// epochs that it does not know may lie between. The process that owns the record does not write here.
pub(super) const DISTRUSTED_AT: u64 = 8;

/// Where the slots begin.
pub(super) const SLOTS_AT: u64 = HEADER_BYTES as u64;

/// The size of a record in bytes. It fits a page, so a write is never torn when its process is killed.
pub(super) const RECORD_BYTES: usize = HEADER_BYTES + EPOCHS_MAX * SLOT_BYTES;

/// The first bytes of a record.
pub(super) const MAGIC: &[u8; 8] = b"cklives1";
const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 48;

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

/// All slots, with the newest of `entries` that fit.
pub(super) fn encode_slots(entries: &[Entry]) -> Vec<u8> {
    let newest = &entries[entries.len().saturating_sub(EPOCHS_MAX)..];
    let mut bytes = Vec::with_capacity(EPOCHS_MAX * SLOT_BYTES);
    for (index, entry) in newest.iter().enumerate() {
        bytes.extend_from_slice(&encode_slot(index, entry));
    }
    bytes.resize(EPOCHS_MAX * SLOT_BYTES, 0);
    bytes
}

/// One slot; [`slot_at`] says where it goes.
pub(super) fn encode_slot(index: usize, entry: &Entry) -> [u8; SLOT_BYTES] {
    let (kind, end) = match entry.end {
        End::AtMost(end) => (1_u64, end),
        End::Exact(end) => (2, end),
        End::Unknown => (3, 0),
    };
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&entry.epoch.to_le_bytes());
    slot[8..16].copy_from_slice(&end.to_le_bytes());
    slot[16..24].copy_from_slice(&kind.to_le_bytes());
    slot[24..40].copy_from_slice(&entry.boot);
    let sum = checksum(index, &slot[..40]);
    slot[40..].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// The offset of a slot in the record.
pub(super) fn slot_at(index: usize) -> u64 {
    (HEADER_BYTES + index * SLOT_BYTES) as u64
}

/// Reads a record: the epochs that can be trusted, the oldest first. An empty file is a record without epochs.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Entry>, Damaged> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes.len() != RECORD_BYTES || !bytes.starts_with(MAGIC) {
        return Err(Damaged);
    }
    let (header, slots) = bytes.split_at(HEADER_BYTES);
    let mut entries = Vec::new();
    let mut is_over = false;
    for (index, slot) in slots.chunks_exact(SLOT_BYTES).enumerate() {
        if slot.iter().all(|byte| *byte == 0) {
            is_over = true;
        } else if is_over {
            return Err(Damaged);
        } else {
            entries.push(decode_slot(index, slot)?);
        }
    }
    let distrusted = number(header, 8);
    if let Some(at) = entries.iter().rposition(|entry| entry.epoch <= distrusted) {
        entries.drain(..=at);
    }
    Ok(entries)
}

fn decode_slot(index: usize, slot: &[u8]) -> Result<Entry, Damaged> {
    if number(slot, 40) != checksum(index, &slot[..40]) {
        return Err(Damaged);
    }
    let end = match number(slot, 16) {
        1 => End::AtMost(number(slot, 8)),
        2 => End::Exact(number(slot, 8)),
        3 => End::Unknown,
        _ => return Err(Damaged),
    };
    let mut boot = BootId::default();
    boot.copy_from_slice(&slot[24..40]);
    Ok(Entry {
        epoch: number(slot, 0),
        end,
        boot,
    })
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn checksum(index: usize, bytes: &[u8]) -> u64 {
    fnv(bytes) ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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

    fn encode(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(encode_slots(entries));
        bytes
    }

    fn at(offset: u64) -> usize {
        usize::try_from(offset).unwrap()
    }

    #[test]
    fn what_was_written_is_read_and_only_the_newest_are_kept() {
        for count in [0, 1, 3, 16] {
            assert_eq!(decode(&encode(&entries(count))), Ok(entries(count)));
        }
        assert_eq!(decode(&encode(&entries(20))), Ok(entries(20)[4..].to_vec()));
        assert_eq!(decode(&[]), Ok(Vec::new()));
    }

    #[test]
    fn slot_is_rewritten_in_its_place() {
        let mut all = entries(5);
        let mut bytes = encode(&all);
        all[4].end = End::Exact(77);
        let slot = at(slot_at(4));
        bytes[slot..slot + SLOT_BYTES].copy_from_slice(&encode_slot(4, &all[4]));
        assert_eq!(bytes, encode(&all));
    }

    #[test]
    fn torn_or_foreign_record_is_damaged() {
        let good = encode(&entries(5));
        for length in 1..RECORD_BYTES {
            assert_eq!(decode(&good[..length]), Err(Damaged), "{length} bytes");
        }
        for at in (0..good.len()).filter(|at| !(8..16).contains(at)) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(decode(&bad), Err(Damaged), "byte {at}");
        }
        assert_eq!(decode(&[0; RECORD_BYTES]), Err(Damaged));
        assert_eq!(decode(&[0xff; RECORD_BYTES]), Err(Damaged));
        // The first half of a slot is new, the second old.
        let entry = Entry {
            epoch: u64::MAX,
            ..entries(5)[2]
        };
        let (slot, mut torn) = (at(slot_at(2)), good);
        torn[slot..slot + 20].copy_from_slice(&encode_slot(2, &entry)[..20]);
        assert_eq!(decode(&torn), Err(Damaged));
    }

    #[test]
    fn swapped_slots_are_damaged() {
        let mut bytes = encode(&entries(2));
        let [first, second] = [0, 1].map(|index| at(slot_at(index)));
        bytes.copy_within(second..second + SLOT_BYTES, first);
        assert_eq!(decode(&bytes), Err(Damaged));
    }

    #[test]
    fn epochs_up_to_the_distrusted_one_are_dropped() {
        let trusted = |distrusted: u64| {
            let mut bytes = encode(&entries(4));
            bytes[at(DISTRUSTED_AT)..at(SLOTS_AT)].copy_from_slice(&distrusted.to_le_bytes());
            decode(&bytes).unwrap()
        };
        assert_eq!(trusted(999), entries(4));
        assert_eq!(trusted(1_001), entries(4)[2..]);
        assert_eq!(trusted(u64::MAX), []);
    }
}
