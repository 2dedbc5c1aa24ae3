//! Commands for MongoDB, written straight from a batch's bytes as BSON. Pure.
//!
//! A command here is one BSON document, so it stays below the server's 16 MiB for a document; the 48 MB of a
//! message would need document sequences, which the driver does not offer for raw commands.

use std::collections::BTreeMap;

use mongodb::bson::RawDocumentBuf;

use super::WriteConcern;
use crate::batch::{Batch, BatchCookie};

/// The collection of every DSP's database.
pub(super) const COLLECTION: &str = "cookies";

/// Most cookies of one command: the server's limit on write operations.
const COOKIES_MAX: usize = 100_000;

/// Most bytes of one command: the server's limit on documents, less the largest cookie and the head.
const BYTES_MAX: usize = (16 << 20) - (64 << 10);

/// The indices of a batch's cookies by DSP, ordered by user within each: neighbours in a collection's index are
/// then written together. Costs a sort.
pub(super) fn by_dsp(batch: &Batch) -> BTreeMap<u32, Vec<u32>> {
    let mut by_dsp: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for index in batch.by_user() {
        let indices = by_dsp.entry(batch.cookie(index).dsp_id).or_default();
        indices.push(u32::try_from(index).expect("a batch is bounded in cookies"));
    }
    by_dsp
}

/// How many of `indices`, from the first on, fit into one command.
pub(super) fn fitting(batch: &Batch, indices: &[u32], overhead: usize) -> usize {
    let mut bytes = 0;
    for (count, index) in indices.iter().enumerate() {
        let cookie = batch.cookie(*index as usize);
        bytes += cookie.user_id.len() + cookie.buyer_uid.len() + overhead;
        if count == COOKIES_MAX || (bytes > BYTES_MAX && count > 0) {
            return count;
        }
    }
    indices.len()
}

/// Bytes of one cookie in an `insert` beside its strings: key of the array, names, lengths, date.
pub(super) const INSERT_OVERHEAD: usize = 48;

/// Bytes of one cookie in an `update` beside its strings.
pub(super) const UPDATE_OVERHEAD: usize = 136;

/// Inserts cookies, each on its own: those whose user is there already come back as errors.
pub(super) fn insert(
    batch: &Batch,
    indices: &[u32],
    concern: Option<&WriteConcern>,
) -> RawDocumentBuf {
    let mut bson = Bson::with_capacity(batch, indices, INSERT_OVERHEAD);
    let command = bson.begin();
    bson.string("insert", COLLECTION.as_bytes());
    head(&mut bson, concern);
    let documents = bson.begin_field(ARRAY, "documents");
    for (at, index) in indices.iter().enumerate() {
        let cookie = batch.cookie(*index as usize);
        let document = bson.begin_item(at);
        bson.string("_id", cookie.user_id);
        value(&mut bson, &cookie);
        bson.end(document);
    }
    bson.end(documents);
    bson.finish(command)
}

/// Replaces cookies by newer ones and inserts those that are not there. One that is older than what is there
/// matches nothing, fails to insert, and comes back as a duplicate.
pub(super) fn update(
    batch: &Batch,
    indices: &[u32],
    concern: Option<&WriteConcern>,
) -> RawDocumentBuf {
    let mut bson = Bson::with_capacity(batch, indices, UPDATE_OVERHEAD);
    let command = bson.begin();
    bson.string("update", COLLECTION.as_bytes());
    head(&mut bson, concern);
    let updates = bson.begin_field(ARRAY, "updates");
    for (at, index) in indices.iter().enumerate() {
        let cookie = batch.cookie(*index as usize);
        let item = bson.begin_item(at);
        let query = bson.begin_field(DOCUMENT, "q");
        bson.string("_id", cookie.user_id);
        let not_newer = bson.begin_field(DOCUMENT, "t");
        bson.date("$lte", cookie.accepted_unix_micros);
        bson.end(not_newer);
        bson.end(query);
        let change = bson.begin_field(DOCUMENT, "u");
        let set = bson.begin_field(DOCUMENT, "$set");
        value(&mut bson, &cookie);
        bson.end(set);
        bson.end(change);
        bson.boolean("upsert", true);
        bson.end(item);
    }
    bson.end(updates);
    bson.finish(command)
}

fn head(bson: &mut Bson, concern: Option<&WriteConcern>) {
    bson.boolean("ordered", false);
    let Some(concern) = concern else { return };
    let field = bson.begin_field(DOCUMENT, "writeConcern");
    match concern {
        WriteConcern::Nodes(nodes) => bson.int("w", *nodes),
        WriteConcern::Tag(tag) => bson.string("w", tag.as_bytes()),
    }
    bson.end(field);
}

fn value(bson: &mut Bson, cookie: &BatchCookie<'_>) {
    bson.string("b", cookie.buyer_uid);
    bson.date("t", cookie.accepted_unix_micros);
}

const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BOOLEAN: u8 = 0x08;
const DATE: u8 = 0x09;
const INT: u8 = 0x10;

/// Writes BSON from front to back; a document's length is filled in at its end.
struct Bson(Vec<u8>);

impl Bson {
    fn with_capacity(batch: &Batch, indices: &[u32], overhead: usize) -> Self {
        let strings: usize = indices
            .iter()
            .map(|index| batch.cookie(*index as usize))
            .map(|cookie| cookie.user_id.len() + cookie.buyer_uid.len())
            .sum();
        Self(Vec::with_capacity(strings + indices.len() * overhead + 256))
    }

    /// Begins a document; returns where.
    fn begin(&mut self) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        at
    }

    fn begin_field(&mut self, kind: u8, key: &str) -> usize {
        self.key(kind, key);
        self.begin()
    }

    /// Begins a document in an array.
    fn begin_item(&mut self, index: usize) -> usize {
        self.0.push(DOCUMENT);
        put_decimal(&mut self.0, index);
        self.0.push(0);
        self.begin()
    }

    fn end(&mut self, at: usize) {
        self.0.push(0);
        let length = i32::try_from(self.0.len() - at).expect("commands are split below 16 MiB");
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn finish(mut self, command: usize) -> RawDocumentBuf {
        self.end(command);
        RawDocumentBuf::from_bytes(self.0).expect("length and end are as BSON wants them")
    }

    fn key(&mut self, kind: u8, key: &str) {
        debug_assert!(!key.contains('\0'), "keys end at a zero byte");
        self.0.push(kind);
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(0);
    }

    /// `value` must be UTF-8, as every string of a batch is.
    fn string(&mut self, key: &str, value: &[u8]) {
        self.key(STRING, key);
        let length = i32::try_from(value.len() + 1).expect("strings are short");
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value);
        self.0.push(0);
    }

    /// MongoDB's dates have milliseconds.
    fn date(&mut self, key: &str, unix_micros: u64) {
        self.key(DATE, key);
        let millis = i64::try_from(unix_micros / 1000).expect("a 2^64th of a second has room");
        self.0.extend_from_slice(&millis.to_le_bytes());
    }

    fn boolean(&mut self, key: &str, value: bool) {
        self.key(BOOLEAN, key);
        self.0.push(u8::from(value));
    }

    fn int(&mut self, key: &str, value: i32) {
        self.key(INT, key);
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

fn put_decimal(buffer: &mut Vec<u8>, number: usize) {
    let at = buffer.len();
    let mut rest = number;
    loop {
        let digit = u8::try_from(rest % 10).expect("a digit");
        buffer.push(b'0' + digit);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    buffer[at..].reverse();
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson as Value, DateTime, Document, doc};

    use super::*;
    use crate::batch::tests::{batch, chunk};

    fn document(raw: &RawDocumentBuf) -> Document {
        Document::try_from(raw.as_ref()).unwrap()
    }

    #[test]
    fn commands_are_the_bson_that_the_driver_would_write() {
        let users: Vec<_> = (0..12).map(|user| format!("user-{user}")).collect();
        let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, "ü=/&")).collect();
        let batch = batch(&[chunk(1, 1_700_000_000_123_456, &cookies)]);
        let indices: Vec<u32> = (0..12).collect();
        let t = DateTime::from_millis(1_700_000_000_123);
        let documents: Vec<Value> = users
            .iter()
            .map(|user| doc! { "_id": user, "b": "ü=/&", "t": t }.into())
            .collect();
        let updates: Vec<Value> = users
            .iter()
            .map(|user| {
                let update = doc! {
                    "q": { "_id": user, "t": { "$lte": t } },
                    "u": { "$set": { "b": "ü=/&", "t": t } },
                    "upsert": true,
                };
                update.into()
            })
            .collect();
        assert_eq!(
            document(&insert(&batch, &indices, Some(&WriteConcern::Nodes(1)))),
            doc! {
                "insert": "cookies", "ordered": false, "writeConcern": { "w": 1 },
                "documents": &documents,
            }
        );
        assert_eq!(
            document(&insert(&batch, &indices, None)),
            doc! { "insert": "cookies", "ordered": false, "documents": documents }
        );
        let majority = WriteConcern::Tag("majority".to_owned());
        assert_eq!(
            document(&update(&batch, &indices, Some(&majority))),
            doc! {
                "update": "cookies", "ordered": false, "writeConcern": { "w": "majority" },
                "updates": updates,
            }
        );
    }

    #[test]
    fn overheads_are_upper_bounds() {
        let users: Vec<_> = (0..50_000).map(|user| format!("user-{user}")).collect();
        let cookies: Vec<_> = users.iter().map(|user| (&**user, 7, "b")).collect();
        let batch = batch(&[chunk(1, 1, &cookies)]);
        let indices: Vec<u32> = (0..50_000).collect();
        let strings: usize = users.iter().map(|user| user.len() + 1).sum();
        for (command, overhead) in [
            (insert as fn(&_, &_, Option<&_>) -> _, INSERT_OVERHEAD),
            (update, UPDATE_OVERHEAD),
        ] {
            let raw: RawDocumentBuf = command(&batch, &indices, Some(&WriteConcern::Nodes(1)));
            assert!(raw.as_bytes().len() <= strings + overhead * indices.len() + 256);
        }
        let fits = fitting(&batch, &indices, 1000);
        assert!(fits < 50_000 && fits > 10_000, "{fits}");
        assert_eq!(fitting(&batch, &indices, INSERT_OVERHEAD), 50_000);
    }
}
