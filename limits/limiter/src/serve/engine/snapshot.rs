//! A snapshot as bytes: what limits there were, what each counter has used, what was learned.
//!
//! ```text
//! magic, version │ head │ counters, each with its rule and state │ CRC-32 of all before
//! ```
//!
//! Head and counters are in the form of postcard.

use limits::{Limit, State};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const MAGIC: &[u8; 8] = b"limiter\n";

/// The version of the form, the states of counters included.
const VERSION: u8 = 4;

/// What was read is not a snapshot, or not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not, or not any more, what was written.
    #[error("it is damaged")]
    Damaged,
    /// It was written by another version of this program.
    #[error("it is of another version of this program")]
    Version,
}

/// A limit as it was.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedLimit {
    pub(super) name: String,
    pub(super) rules: Vec<SavedRule>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedRule {
    pub(super) name: String,
    pub(super) limit: Limit,
}

/// What was learned of a counter.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedLesson {
    /// The place of its limit in the snapshot.
    pub(super) limit: usize,
    pub(super) counter: String,
    pub(super) until: u64,
    pub(super) left: u64,
}

/// What one rule keeps of a counter.
#[derive(Debug, Deserialize)]
pub(super) struct SavedCounter {
    /// The places of the limit and of the rule in it.
    pub(super) limit: usize,
    pub(super) rule: usize,
    pub(super) counter: String,
    pub(super) state: State,
}

/// Before the counters.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Head {
    /// The number of the journal that goes on from it.
    pub(super) journal: u64,
    /// The latest time that the limits were told.
    pub(super) clock: u64,
    /// Whatever says where the limits came from; empty when nothing does.
    pub(super) sources: Vec<u8>,
    pub(super) limits: Vec<SavedLimit>,
    pub(super) lessons: Vec<SavedLesson>,
}

/// A snapshot that is being written.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn begin(head: &Head, bytes: usize) -> Self {
        let mut writer = Self(Vec::with_capacity(bytes));
        writer.0.extend(MAGIC);
        writer.0.push(VERSION);
        writer.put(head);
        writer
    }

    pub(super) fn counter(&mut self, limit: usize, rule: usize, counter: &str, state: &State) {
        // As a `SavedCounter` is read.
        self.put(&(limit, rule, counter, state));
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        let checksum = crc32fast::hash(&self.0);
        self.0.extend(checksum.to_le_bytes());
        self.0
    }

    fn put(&mut self, value: &impl Serialize) {
        let bytes = std::mem::take(&mut self.0);
        self.0 = postcard::to_extend(value, bytes).expect("memory takes all");
    }
}

/// A snapshot that is being read; it is whole.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn begin(bytes: &'a [u8]) -> Result<(Head, Self), Unreadable> {
        let (body, checksum) = bytes.split_last_chunk().ok_or(Unreadable::Damaged)?;
        let rest = body.strip_prefix(MAGIC).ok_or(Unreadable::Damaged)?;
        if u32::from_le_bytes(*checksum) != crc32fast::hash(body) {
            return Err(Unreadable::Damaged);
        }
        let rest = rest.strip_prefix(&[VERSION]).ok_or(Unreadable::Version)?;
        let mut reader = Self(rest);
        Ok((reader.take()?, reader))
    }

    /// The next counter; `None` at the end.
    pub(super) fn counter(&mut self) -> Result<Option<SavedCounter>, Unreadable> {
        (!self.0.is_empty()).then(|| self.take()).transpose()
    }

    fn take<T: DeserializeOwned>(&mut self) -> Result<T, Unreadable> {
        let (value, rest) = postcard::take_from_bytes(self.0).map_err(|_| Unreadable::Damaged)?;
        self.0 = rest;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limits::{Algorithm, Demand, Limits};

    use super::*;

    #[test]
    fn snapshot_comes_back_and_one_that_is_changed_or_cut_does_not() {
        let bucket: Limit = Algorithm::token_bucket("3/s", 2).unwrap().into();
        let mut limits = Limits::new(1);
        let limit = limits.add(bucket).unwrap();
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        limits.reserve(&[demand], 17, Duration::ZERO);
        let head = Head {
            journal: 3,
            clock: 17,
            sources: b"{}".to_vec(),
            limits: vec![SavedLimit {
                name: "a".to_owned(),
                rules: vec![SavedRule {
                    name: "r".to_owned(),
                    limit: bucket,
                }],
            }],
            lessons: vec![SavedLesson {
                limit: 0,
                counter: "k".to_owned(),
                until: 9,
                left: 1,
            }],
        };
        let mut writer = Writer::begin(&head, 0);
        let mut saved = Vec::new();
        limits.save(0, 1, 17, |_, (), state| {
            writer.counter(0, 0, "kü", state);
            saved.push(format!("{state:?}"));
        });
        let bytes = writer.end();
        let (read, mut reader) = Reader::begin(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{head:?}"));
        let counter = reader.counter().unwrap().unwrap();
        assert_eq!(
            (&*counter.counter, counter.limit, counter.rule),
            ("kü", 0, 0)
        );
        assert_eq!(saved, [format!("{:?}", counter.state)]);
        assert!(reader.counter().unwrap().is_none());
        for length in 0..bytes.len() {
            let cut = Reader::begin(&bytes[..length]);
            assert_eq!(cut.err(), Some(Unreadable::Damaged), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(Reader::begin(&changed).is_err(), "{at}");
        }
        let mut other = bytes[..bytes.len() - 4].to_vec();
        other[8] = 2;
        let checksum = crc32fast::hash(&other);
        other.extend(checksum.to_le_bytes());
        assert_eq!(Reader::begin(&other).err(), Some(Unreadable::Version));
    }
}
