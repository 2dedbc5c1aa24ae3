//! The messages of `GetCookies`: one per cookie, made once per chunk and shared by all streams that send the chunk.
//!
//! They are cached for the newest chunks that were asked for; a stream far behind the others encodes its own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use proto::wire;

use crate::log::{Chunk, Sequence};

/// The most chunks whose messages are kept: 6 MiB at the default chunk size, 96 MiB at the largest; enough for streams
/// that are within a tenth of a second of each other at a million cookies a second.
pub(crate) const CHUNKS_KEPT: usize = 64;

/// The messages of the newest chunks.
#[derive(Debug, Default)]
pub(super) struct CookieMessages {
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    first: Sequence,
    messages: Arc<OnceLock<Bytes>>,
}

impl CookieMessages {
    /// The messages of `chunk` from the cookie `first` on, concatenated, each with its length prefix.
    pub(super) fn of(&self, chunk: &Chunk, first: Sequence) -> Bytes {
        if first != chunk.first() {
            return make(chunk, first);
        }
        match self.slot(first) {
            Some(slot) => slot.get_or_init(|| make(chunk, first)).clone(),
            None => make(chunk, first),
        }
    }

    /// The slot for a chunk's messages; `None` when the chunk is older than all that are kept.
    fn slot(&self, first: Sequence) -> Option<Arc<OnceLock<Bytes>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.partition_point(|kept| kept.first < first);
        if let Some(found) = kept.get(at).filter(|kept| kept.first == first) {
            return Some(Arc::clone(&found.messages));
        }
        if kept.len() == CHUNKS_KEPT {
            if at == 0 {
                return None;
            }
            kept.pop_front();
        }
        let at = kept.partition_point(|kept| kept.first < first);
        let messages = Arc::default();
        kept.insert(
            at,
            Kept {
                first,
                messages: Arc::clone(&messages),
            },
        );
        Some(messages)
    }
}

fn make(chunk: &Chunk, first: Sequence) -> Bytes {
    wire::cookie_messages(&chunk.cookies_from(first)).expect("a sealed chunk is whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_chunks_share_their_messages_and_the_rest_is_forgotten() {
        let messages = CookieMessages::default();
        let newest = 10 * CHUNKS_KEPT as u64;
        for first in (10..=newest).step_by(10) {
            let slot = messages.slot(first).expect("newer than all kept");
            let again = messages.slot(first).expect("just made");
            assert!(Arc::ptr_eq(&slot, &again));
        }
        assert!(messages.slot(5).is_none());
        assert!(messages.slot(newest + 10).is_some());
        let kept = messages.kept.lock().unwrap();
        assert_eq!(kept.len(), CHUNKS_KEPT);
        assert!(kept.iter().is_sorted_by_key(|kept| kept.first));
    }
}
