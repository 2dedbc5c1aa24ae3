//! A BSON writer that appends to one buffer. Does no I/O.

use mongodb::bson::{Document, RawDocumentBuf};
use proto::units::UnixMicros;

const STRING: u8 = 0x02;
pub(super) const DOCUMENT: u8 = 0x03;
pub(super) const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const BOOLEAN: u8 = 0x08;
const DATE: u8 = 0x09;
const INT: u8 = 0x10;

/// A buffer of BSON. Open documents are identified by their offset. The length of a document is written when it ends.
pub(super) struct Bson(Vec<u8>);

/// The key of an element: a name or an array index.
pub(super) trait Key {
    fn put(self, buffer: &mut Vec<u8>);
}

impl Key for &str {
    fn put(self, buffer: &mut Vec<u8>) {
        debug_assert!(!self.contains('\0'), "keys are null-terminated");
        buffer.extend_from_slice(self.as_bytes());
    }
}

impl Key for usize {
    fn put(self, buffer: &mut Vec<u8>) {
        let at = buffer.len();
        let mut rest = self;
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
}

impl Bson {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Begins a document; returns its offset.
    pub(super) fn begin(&mut self) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        at
    }

    /// Begins a document or array inside another.
    pub(super) fn begin_field(&mut self, kind: u8, key: impl Key) -> usize {
        self.key(kind, key);
        self.begin()
    }

    /// Ends the document at offset `at`.
    #[inline]
    pub(super) fn end(&mut self, at: usize) {
        self.0.push(0);
        let length = i32::try_from(self.0.len() - at).expect("commands are split below 16 MiB");
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Ends the outermost document.
    pub(super) fn finish(mut self, command: usize) -> RawDocumentBuf {
        self.end(command);
        RawDocumentBuf::from_bytes(self.0).expect("length and terminator are valid")
    }

    pub(super) fn document(&mut self, key: impl Key, value: &Document) {
        self.key(DOCUMENT, key);
        let value = RawDocumentBuf::try_from(value).expect("its keys have no null bytes");
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Appends a string. `value` must be UTF-8, like all strings of a batch.
    #[inline]
    pub(super) fn string(&mut self, key: impl Key, value: &[u8]) {
        self.key(STRING, key);
        let length = i32::try_from(value.len() + 1).expect("strings are short");
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value);
        self.0.push(0);
    }

    /// Appends a date, which has a resolution of milliseconds.
    #[inline]
    pub(super) fn date(&mut self, key: impl Key, time: UnixMicros) {
        self.key(DATE, key);
        self.0.extend_from_slice(&millis(time).to_le_bytes());
    }

    pub(super) fn boolean(&mut self, key: impl Key, value: bool) {
        self.key(BOOLEAN, key);
        self.0.push(u8::from(value));
    }

    pub(super) fn uuid(&mut self, key: impl Key, value: [u8; 16]) {
        const SUBTYPE: u8 = 4;
        self.key(BINARY, key);
        self.0.extend_from_slice(&16_i32.to_le_bytes());
        self.0.push(SUBTYPE);
        self.0.extend_from_slice(&value);
    }

    #[inline]
    pub(super) fn int(&mut self, key: impl Key, value: i32) {
        self.key(INT, key);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    #[expect(clippy::inline_always, reason = "several calls for each cookie")]
    #[inline(always)]
    fn key(&mut self, kind: u8, key: impl Key) {
        self.0.push(kind);
        key.put(&mut self.0);
        self.0.push(0);
    }
}

/// A time in the resolution of MongoDB.
pub(super) fn millis(time: UnixMicros) -> i64 {
    i64::try_from(time.0 / 1000).expect("2^64 / 1000 fits")
}
