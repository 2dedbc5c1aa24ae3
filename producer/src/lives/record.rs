//! The record of a producer's lives as bytes. Pure.
//!
//! A header, then a slot for each life, the oldest first; the rest are zeroes. A slot carries a checksum, so a record that was
//! torn, cut short or written by somebody else is [`Damaged`] as a whole: one life that cannot be read may hide any number
//! of cookies.

/// How many lives are kept, this one included: a subscriber that was away for more than these is told no bound.
pub(super) const LIVES_MAX: usize = 16;

/// Where the mark lies that lives leave which could not be recorded: lives up to this epoch are not believed, for others
/// may have run meanwhile. Whoever keeps the record does not write here.
pub(super) const MARK_AT: u64 = 8;

/// Where the slots begin.
pub(super) const SLOTS_AT: u64 = HEADER_BYTES as u64;

/// A record's size in bytes; one page holds it, so a write is never torn by the death of its process.
pub(super) const RECORD_BYTES: usize = HEADER_BYTES + LIVES_MAX * SLOT_BYTES;

/// What a record begins with.
pub(super) const MAGIC: &[u8; 8] = b"cklives1";
const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 48;

/// Tells one start of the machine from another; all zeroes when the system does not say.
pub(super) type BootId = [u8; 16];

/// What is known of where a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// No sequence of it is beyond this one.
    AtMost(u64),
    /// This was its last sequence.
    Exact(u64),
    /// Nothing.
    Unknown,
}

/// One life of the producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) epoch: u64,
    pub(super) end: End,
    pub(super) boot: BootId,
}

/// The bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record is damaged")]
pub(super) struct Damaged;

/// All slots, of the newest of `entries`, as many as there is room for.
pub(super) fn encode_slots(entries: &[Entry]) -> Vec<u8> {
    let newest = &entries[entries.len().saturating_sub(LIVES_MAX)..];
    let mut bytes = Vec::with_capacity(LIVES_MAX * SLOT_BYTES);
    for (index, entry) in newest.iter().enumerate() {
        bytes.extend_from_slice(&encode_slot(index, entry));
    }
    bytes.resize(LIVES_MAX * SLOT_BYTES, 0);
    bytes
}

/// One slot; where it belongs is [`slot_at`].
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

/// Where a slot begins in the record.
pub(super) fn slot_at(index: usize) -> u64 {
    (HEADER_BYTES + index * SLOT_BYTES) as u64
}

/// Reads a record: the lives that are believed, the oldest first. Nothing at all is a record without lives.
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
    let mark = number(header, 8);
    if let Some(at) = entries.iter().rposition(|entry| entry.epoch <= mark) {
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

/// FNV-1a in 64 bits: finds what was torn or overwritten, and is no defence against anybody.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
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
    fn torn_or_foreign_record_is_never_believed() {
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
        // Half of a slot's new bytes over its old ones.
        let entry = Entry {
            epoch: u64::MAX,
            ..entries(5)[2]
        };
        let (slot, mut torn) = (at(slot_at(2)), good);
        torn[slot..slot + 20].copy_from_slice(&encode_slot(2, &entry)[..20]);
        assert_eq!(decode(&torn), Err(Damaged));
    }

    #[test]
    fn slots_do_not_change_places() {
        let mut bytes = encode(&entries(2));
        let [first, second] = [0, 1].map(|index| at(slot_at(index)));
        bytes.copy_within(second..second + SLOT_BYTES, first);
        assert_eq!(decode(&bytes), Err(Damaged));
    }

    #[test]
    fn lives_up_to_the_mark_are_not_believed() {
        let marked = |mark: u64| {
            let mut bytes = encode(&entries(4));
            bytes[at(MARK_AT)..at(SLOTS_AT)].copy_from_slice(&mark.to_le_bytes());
            decode(&bytes).unwrap()
        };
        assert_eq!(marked(999), entries(4));
        assert_eq!(marked(1_001), entries(4)[2..]);
        assert_eq!(marked(u64::MAX), []);
    }
}
