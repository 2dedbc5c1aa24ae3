//! A snapshot as bytes: what limits there were, what each counter has used, what was learned.
//!
//! ```text
//! magic, form, form of states │ is clean, clock │ sources of the limits │ limits, each with its worth, rules and those rules' states of unseen counters │
//! learned │ counters, each with its rule and state │ end │ CRC-32 of all before
//! ```
//!
//! Numbers are eight bytes, the lowest first; texts and bytes have their length before them.

use std::sync::Arc;

use limits::{Limit, saved};

const MAGIC: &[u8; 8] = b"limiter\n";

/// Of all but the states. One that is changed has another.
const VERSION: u64 = 2;

/// No counter's rule.
const END: u64 = u64::MAX;

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

impl From<saved::Damaged> for Unreadable {
    fn from(_: saved::Damaged) -> Self {
        Self::Damaged
    }
}

/// A limit as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedLimit {
    pub(super) name: Arc<str>,
    /// What each of its counters is charged for after a crash.
    pub(super) worth: u64,
    pub(super) rules: Vec<SavedRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedRule {
    pub(super) name: Arc<str>,
    pub(super) limit: Limit,
    pub(super) unseen: Option<Vec<u8>>,
}

/// What was learned of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedLesson {
    /// The place of its limit in the snapshot.
    pub(super) limit: u64,
    pub(super) counter: Arc<str>,
    pub(super) until: u64,
    pub(super) left: u64,
}

/// What one rule keeps of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedCounter {
    /// The places of the limit and of the rule in it.
    pub(super) limit: u64,
    pub(super) rule: u64,
    pub(super) counter: Arc<str>,
    pub(super) state: Vec<u8>,
}

/// Before the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Nothing was answered after it.
    pub(super) is_clean: bool,
    /// The latest time that the limits were told.
    pub(super) clock: u64,
    /// Whatever says where the limits came from; empty when nothing does.
    pub(super) sources: Arc<[u8]>,
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
        writer.number(VERSION);
        writer.number(saved::VERSION.into());
        writer.number(head.is_clean.into());
        writer.number(head.clock);
        writer.bytes(&head.sources);
        writer.number(head.limits.len() as u64);
        for limit in &head.limits {
            writer.bytes(limit.name.as_bytes());
            writer.number(limit.worth);
            writer.number(limit.rules.len() as u64);
            for rule in &limit.rules {
                writer.bytes(rule.name.as_bytes());
                let mut limit = Vec::new();
                rule.limit.save(&mut limit);
                writer.bytes(&limit);
                // A state is never empty.
                writer.bytes(rule.unseen.as_deref().unwrap_or_default());
            }
        }
        writer.number(head.lessons.len() as u64);
        for lesson in &head.lessons {
            writer.number(lesson.limit);
            writer.bytes(lesson.counter.as_bytes());
            writer.number(lesson.until);
            writer.number(lesson.left);
        }
        writer
    }

    pub(super) fn counter(&mut self, limit: u64, rule: u64, counter: &str, state: &[u8]) {
        self.number(limit);
        self.number(rule);
        self.bytes(counter.as_bytes());
        self.bytes(state);
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.number(END);
        let checksum = crc32fast::hash(&self.0);
        self.number(checksum.into());
        self.0
    }

    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

/// A snapshot that is being read; it is whole.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn begin(bytes: &'a [u8]) -> Result<(Head, Self), Unreadable> {
        let (body, checksum) = bytes.split_last_chunk().ok_or(Unreadable::Damaged)?;
        let mut reader = Self(body.strip_prefix(MAGIC).ok_or(Unreadable::Damaged)?);
        if u64::from_le_bytes(*checksum) != u64::from(crc32fast::hash(body)) {
            return Err(Unreadable::Damaged);
        }
        let (version, of_states) = (reader.number()?, reader.number()?);
        if version != VERSION || of_states != u64::from(saved::VERSION) {
            return Err(Unreadable::Version);
        }
        let mut head = Head {
            is_clean: reader.number()? == 1,
            clock: reader.number()?,
            sources: Arc::from(reader.bytes()?),
            ..Head::default()
        };
        for _ in 0..reader.number()? {
            let (name, worth) = (reader.text()?, reader.number()?);
            let mut rules = Vec::new();
            for _ in 0..reader.number()? {
                let name = reader.text()?;
                let limit = Limit::load(reader.bytes()?)?;
                let unseen = Some(reader.bytes()?.to_vec()).filter(|it| !it.is_empty());
                rules.push(SavedRule {
                    name,
                    limit,
                    unseen,
                });
            }
            head.limits.push(SavedLimit { name, worth, rules });
        }
        for _ in 0..reader.number()? {
            head.lessons.push(SavedLesson {
                limit: reader.number()?,
                counter: reader.text()?,
                until: reader.number()?,
                left: reader.number()?,
            });
        }
        Ok((head, reader))
    }

    /// The next counter; `None` at the end.
    pub(super) fn counter(&mut self) -> Result<Option<SavedCounter>, Unreadable> {
        let limit = self.number()?;
        if limit == END {
            return Ok(None);
        }
        Ok(Some(SavedCounter {
            limit,
            rule: self.number()?,
            counter: self.text()?,
            state: self.bytes()?.to_vec(),
        }))
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let length = usize::try_from(self.number()?).map_err(|_| Unreadable::Damaged)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<Arc<str>, Unreadable> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable::Damaged)?;
        Ok(Arc::from(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_comes_back_and_one_that_is_changed_or_cut_does_not() {
        let head = Head {
            is_clean: true,
            clock: 17,
            sources: Arc::from(&b"{}"[..]),
            limits: vec![SavedLimit {
                name: Arc::from("a"),
                worth: 5,
                rules: vec![SavedRule {
                    name: Arc::from("r"),
                    limit: limits::Algorithm::token_bucket("3/s", 2).unwrap().into(),
                    unseen: Some(vec![1, 2, 3]),
                }],
            }],
            lessons: vec![SavedLesson {
                limit: 0,
                counter: Arc::from("k"),
                until: 9,
                left: 1,
            }],
        };
        let mut writer = Writer::begin(&head, 0);
        writer.counter(0, 0, "kü", &[7, 7]);
        let bytes = writer.end();
        let (read, mut reader) = Reader::begin(&bytes).unwrap();
        assert_eq!(read, head);
        let counter = reader.counter().unwrap().unwrap();
        assert_eq!((&*counter.counter, &*counter.state), ("kü", &[7, 7][..]));
        assert_eq!(reader.counter(), Ok(None));
        for length in 0..bytes.len() {
            let cut = Reader::begin(&bytes[..length]);
            assert_eq!(cut.err(), Some(Unreadable::Damaged), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(Reader::begin(&changed).is_err(), "{at}");
        }
        let mut other = bytes[..bytes.len() - 8].to_vec();
        other[8] = 3;
        let checksum = u64::from(crc32fast::hash(&other));
        other.extend(checksum.to_le_bytes());
        assert_eq!(Reader::begin(&other).err(), Some(Unreadable::Version));
    }
}
