//! A chunk: an immutable, shared block of cookies in wire format.

use std::time::Instant;

use bytes::Bytes;
use proto::{
    units::Sequence,
    wire::{self, ChunkHeader, ChunkRef, StreamMessage},
};

/// Memory that the ring counts for a chunk besides its bytes: the reference-counted [`Chunk`] and its entry.
pub(super) const OVERHEAD_BYTES: usize = 192;

/// An immutable block of encoded cookies.
#[derive(Debug)]
pub struct Chunk {
    pub(super) header: ChunkHeader,
    pub(super) opened: Instant,
    /// The message.
    pub(super) wire: Bytes,
    /// Bytes that the message occupies.
    pub(super) allocated: usize,
}

impl Chunk {
    /// Sequence number of the first cookie.
    pub fn first(&self) -> Sequence {
        self.header.first_sequence
    }

    /// Sequence number of the last cookie.
    pub fn last(&self) -> Sequence {
        self.header.last_sequence()
    }

    /// When the first cookie was appended, by the monotonic clock.
    pub fn opened(&self) -> Instant {
        self.opened
    }

    /// The complete gRPC message with its length prefix, as every stream sends it.
    pub fn wire(&self) -> &Bytes {
        &self.wire
    }

    /// Memory of the chunk in bytes.
    pub fn bytes(&self) -> usize {
        self.allocated + OVERHEAD_BYTES
    }

    /// The cookies from `first` on. Copied unless `first` is the first sequence number of the chunk.
    ///
    /// # Panics
    /// When `first` is outside the chunk.
    pub fn cookies_from(&self, first: Sequence) -> ChunkRef {
        let wire = self.wire_from(first);
        match StreamMessage::decode(wire.slice(wire::FRAME_PREFIX_BYTES..)) {
            Ok(StreamMessage::Chunk(chunk)) => chunk,
            other => unreachable!("a sealed chunk is a chunk, not {other:?}"),
        }
    }

    /// The message with the cookies from `first` on. Copied unless `first` is the first sequence number of the chunk.
    ///
    /// # Panics
    /// When `first` is outside the chunk.
    pub fn wire_from(&self, first: Sequence) -> Bytes {
        if first == self.first() {
            return self.wire.clone();
        }
        assert!(
            (self.first()..=self.last()).contains(&first),
            "readers read only cookies of the chunk"
        );
        let skip = usize::try_from(first.since(self.first()))
            .expect("a chunk has fewer than 2^32 cookies");
        let mut buffer = vec![0; wire::HEADROOM_BYTES];
        for record in self.cookies_from(self.first()).records().skip(skip) {
            wire::put_record(&mut buffer, &record.expect("a sealed chunk is valid"));
        }
        let header = ChunkHeader {
            first_sequence: first,
            count: self.header.count - u32::try_from(skip).expect("less than the count"),
            ..self.header
        };
        let at = wire::seal(&mut buffer, &header);
        Bytes::from(buffer).slice(at..)
    }
}
