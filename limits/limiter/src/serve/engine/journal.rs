//! What happened since the newest snapshot: a record for each change, in a file before the change is answered.
//!
//! A record is its length, its CRC-32, and an [`Event`] in the form of postcard. What was written outlives the process, however it ends; where the machine
//! fails, what was not synced is lost, and reading ends with the first record that is not whole.

use std::{
    fs::File,
    io::{self, Write as _},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::Said;

/// Bytes of a journal after which a snapshot takes its place, unless the one before it is larger.
const BYTES_MIN: usize = 16 << 20;

/// A change of what is used or learned.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Event<'a> {
    /// The limits that the call names, each with a counter.
    #[serde(borrow)]
    pub(super) of: Vec<(&'a str, &'a str)>,
    pub(super) requests: u64,
    pub(super) now: u64,
    pub(super) change: Change<'a>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Change<'a> {
    /// The requests go at this moment.
    Reserved { at: u64 },
    /// The requests were refused, which counts under some rule.
    Refused,
    /// The requests were made at this moment.
    Counted { at: u64 },
    /// A partner answered.
    Heard(Said),
    /// A server let the requests go at this moment; whether they count here as well.
    LetGo { at: u64, is_counted: bool },
    /// Other limits are in force; where they came from.
    Sources(&'a [u8]),
}

impl<'a> Event<'a> {
    /// Where the limits came from that are in force from then on.
    pub(super) fn sources(&self) -> Option<&'a [u8]> {
        match self.change {
            Change::Sources(sources) => Some(sources),
            _ => None,
        }
    }
}

/// The journal that goes on.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// None while nothing is kept.
    file: Option<File>,
    bytes: usize,
    bytes_max: usize,
    /// Why it cannot be written any more.
    error: Option<io::Error>,
    /// Room for a record.
    record: Vec<u8>,
    /// Told when a snapshot should take the place of the journal.
    pub(super) snapshot_wanted: Arc<Notify>,
}

impl Journal {
    /// Goes on in this file, after a snapshot of so many bytes.
    pub(super) fn begin(&mut self, file: File, snapshot_bytes: usize) {
        self.file = Some(file);
        self.bytes = 0;
        self.bytes_max = BYTES_MIN.max(snapshot_bytes);
        self.error = None;
    }

    pub(super) fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    pub(super) fn append(&mut self, event: &Event<'_>) {
        let Some(file) = &mut self.file else { return };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        record.extend([0; 8]);
        let mut record = postcard::to_extend(event, record).expect("memory takes all");
        let body = &record[8..];
        let length = u32::try_from(body.len()).expect("names are bounded");
        let checksum = crc32fast::hash(body);
        record[..4].copy_from_slice(&length.to_le_bytes());
        record[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.error = file.write_all(&record).err();
        let was_full = self.bytes > self.bytes_max;
        self.bytes += record.len();
        self.record = record;
        if self.error.is_some() || (!was_full && self.bytes > self.bytes_max) {
            self.snapshot_wanted.notify_one();
        }
    }
}

/// The events since a snapshot whose journal has this number.
pub(super) fn since(number: u64, journals: &[(u64, Vec<u8>)]) -> impl Iterator<Item = Event<'_>> {
    let later = journals.iter().filter(move |(it, _)| *it >= number);
    later.flat_map(|(_, bytes)| events(bytes))
}

/// The bytes of the journals since that snapshot which are not read, as the first of them are damaged. A last record that is cut, as when the process was
/// killed meanwhile, is none of them.
pub(super) fn damaged(number: u64, journals: &[(u64, Vec<u8>)]) -> usize {
    let later = journals.iter().filter(|(it, _)| *it >= number);
    let rests = later.map(|(_, bytes)| {
        let mut events = events(bytes);
        events.by_ref().for_each(drop);
        events.0
    });
    let damaged = rests.filter(|rest| split(rest).is_some());
    damaged.map(<[u8]>::len).sum()
}

/// The events of a journal, up to the first that is not whole.
fn events(journal: &[u8]) -> Events<'_> {
    Events(journal)
}

/// What is not read yet.
struct Events<'a>(&'a [u8]);

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        let (checksum, body, rest) = split(self.0)?;
        let event = postcard::from_bytes(body).ok();
        let event = event.filter(|_| checksum == crc32fast::hash(body))?;
        self.0 = rest;
        Some(event)
    }
}

/// The first record, its checksum apart, and what follows; `None` where it is cut.
fn split(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (length, bytes) = bytes.split_first_chunk()?;
    let (checksum, bytes) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (body, rest) = bytes.split_at_checked(length)?;
    Some((u32::from_le_bytes(*checksum), body, rest))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::*;

    #[test]
    fn events_come_back_up_to_the_first_that_is_not_whole() {
        let mut file = tempfile::tempfile().unwrap();
        let mut journal = Journal::default();
        journal.begin(file.try_clone().unwrap(), 0);
        let mut ends = vec![0];
        for (now, limit) in [(1, "a"), (2, "ü"), (3, "")] {
            journal.append(&Event {
                of: vec![(limit, "k")],
                requests: 1,
                now,
                change: Change::Reserved { at: now + 5 },
            });
            assert!(journal.error().is_none());
            ends.push(journal.bytes);
        }
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        for cut in 0..=bytes.len() {
            let whole = ends[1..].iter().filter(|end| **end <= cut).count();
            let read: Vec<u64> = events(&bytes[..cut]).map(|event| event.now).collect();
            assert_eq!(read, [1, 2, 3][..whole], "{cut}");
        }
        for changed in 0..bytes.len() {
            let mut other = bytes.clone();
            other[changed] ^= 4;
            let whole = ends[1..].iter().filter(|end| **end <= changed).count();
            assert_eq!(events(&other).count(), whole, "{changed}");
        }
    }
}
