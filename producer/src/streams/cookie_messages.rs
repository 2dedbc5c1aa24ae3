//! Messages of `GetCookies`: one per cookie, encoded once per chunk and shared by all streams that send the chunk.
//!
//! A cache holds the messages of the newest requested chunks. A stream far behind the others encodes its messages itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use parking_lot::Mutex;
use proto::{units::Sequence, wire};

use crate::log::Chunk;

/// Maximum number of cached chunks: 6 MiB of messages at the default chunk size, 96 MiB at the largest. Enough for streams
/// that are within 0.1 s of each other at a million cookies per second.
pub(crate) const CACHED_CHUNKS_MAX: usize = 64;

/// Cache of the messages of the newest chunks.
#[derive(Debug)]
pub(super) struct CookieMessages {
    /// Whether the messages include deletions.
    deletions: bool,
    /// By the first sequence number of the chunk.
    cached: Mutex<BTreeMap<Sequence, Arc<OnceLock<Bytes>>>>,
}

impl CookieMessages {
    /// An empty cache. Its messages include deletions if `deletions` is set.
    pub(super) fn new(deletions: bool) -> Self {
        Self {
            deletions,
            cached: Mutex::default(),
        }
    }

    /// Concatenated messages of `chunk` from the cookie `first` on, each with its length prefix. Empty if only
    /// deletions are left and messages do not include deletions.
    pub(super) fn of(&self, chunk: &Chunk, first: Sequence) -> Bytes {
        if first != chunk.first() {
            return self.encode(chunk, first);
        }
        match self.entry(first) {
            Some(entry) => entry.get_or_init(|| self.encode(chunk, first)).clone(),
            None => self.encode(chunk, first),
        }
    }

    fn encode(&self, chunk: &Chunk, first: Sequence) -> Bytes {
        let chunk = chunk.cookies_from(first);
        wire::cookie_messages(&chunk, self.deletions).expect("a sealed chunk is valid")
    }

    /// The cache entry of a chunk; `None` if the chunk is older than a full cache.
    fn entry(&self, first: Sequence) -> Option<Arc<OnceLock<Bytes>>> {
        let mut cached = self.cached.lock();
        if cached.len() == CACHED_CHUNKS_MAX && !cached.contains_key(&first) {
            let oldest = cached.first_entry()?;
            if first < *oldest.key() {
                return None;
            }
            oldest.remove();
        }
        Some(Arc::clone(cached.entry(first).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_chunks_are_cached() {
        let messages = CookieMessages::new(false);
        let newest = 10 * CACHED_CHUNKS_MAX as u64;
        for first in (10..=newest).step_by(10) {
            let first = Sequence(first);
            let entry = messages.entry(first).expect("newer than all cached");
            let again = messages.entry(first).expect("cached");
            assert!(Arc::ptr_eq(&entry, &again));
        }
        assert!(messages.entry(Sequence(5)).is_none());
        assert!(messages.entry(Sequence(newest + 10)).is_some());
        assert_eq!(messages.cached.lock().len(), CACHED_CHUNKS_MAX);
    }
}
