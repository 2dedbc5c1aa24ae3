//! Fuzz target of the consumer's decoder of stream messages.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use consumer::{batch::Batch, ledger::LedgerCounts, suppression::Suppression, ttl::Ttls};
use prost::Message;
use proto::{
    limits::{AGE_MICROS_MAX, BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    units::{DspId, UnixMicros},
    v1,
    wire::{ChunkRef, FRAME_PREFIX_BYTES, Record, StreamMessage, encode_event},
};

/// Decodes one message without its gRPC prefix. Encoding must not change an event. A chunk must decode as with prost, and each of its
/// cookies must be in the batch or counted.
///
/// # Panics
/// If the property does not hold.
pub fn chunk(bytes: &[u8]) {
    match StreamMessage::decode(Bytes::copy_from_slice(bytes)) {
        Ok(StreamMessage::Chunk(chunk)) => check_chunk(&chunk),
        Ok(StreamMessage::Event(event)) => {
            let again =
                StreamMessage::decode(encode_event(event.clone()).slice(FRAME_PREFIX_BYTES..));
            match again {
                Ok(StreamMessage::Event(again)) => assert_eq!(again, event),
                other => panic!("{other:?} of {event:?}"),
            }
        }
        Ok(StreamMessage::Unknown) | Err(_) => {}
    }
}

fn check_chunk(chunk: &ChunkRef) {
    let header = *chunk.header();
    assert!(header.count > 0);
    assert!(header.last_sequence() >= header.first_sequence);
    let decoded: Vec<_> = chunk.records().collect();
    assert!(
        decoded.len() <= chunk.body().len(),
        "every cookie has at least one byte"
    );
    let errors = decoded.iter().filter(|cookie| cookie.is_err()).count();
    if let (0, Ok(read)) = (errors, v1::Chunk::decode(chunk.body().clone())) {
        assert_eq!(read.cookies.len(), decoded.len());
        for (read, record) in read.cookies.iter().zip(decoded.iter().flatten()) {
            let (user_id, dsp_id, buyer_uid) = match *record {
                Record::Set(cookie) => (cookie.user_id, cookie.dsp_id, cookie.buyer_uid),
                Record::Delete { scope, .. } => {
                    let (user_id, dsp_id) = scope.ids();
                    (user_id, dsp_id, "")
                }
            };
            assert_eq!(
                (&*read.user_id, DspId(read.dsp_id), &*read.buyer_uid),
                (user_id, dsp_id, buyer_uid)
            );
            assert_eq!(read.deleted, buyer_uid.is_empty());
            assert_eq!(read.age_micros.min(AGE_MICROS_MAX), record.age_micros());
        }
    }

    let producer: Arc<str> = "producer".into();
    let mut batch = Batch::new(1000, 1 << 20);
    let mut table = Suppression::new(
        Duration::from_secs(3600),
        1 << 12,
        Ttls::new(Duration::from_secs(86400), [].into()),
    );
    batch.push_filtered(&producer, chunk, UnixMicros::MAX, &mut table);
    check_batch(&batch, chunk, decoded.len());
    // A second push of the chunk changes only counts. Nothing is stored yet, so nothing is suppressed.
    let before: Vec<_> = batch
        .cookies()
        .map(|cookie| (cookie.user_id.to_vec(), cookie.dsp_id))
        .collect();
    batch.push(&producer, chunk, UnixMicros::MAX);
    let after: Vec<_> = batch
        .cookies()
        .map(|cookie| (cookie.user_id.to_vec(), cookie.dsp_id))
        .collect();
    assert_eq!(before, after);
}

fn check_batch(batch: &Batch, chunk: &ChunkRef, decoded: usize) {
    let LedgerCounts {
        received,
        suppressed,
        stale,
        superseded,
        malformed,
        no_dsp_slot,
        expired,
        deletions,
        deleted_on_arrival,
        ..
    } = batch.counts();
    let announced = u64::from(chunk.header().count);
    assert!((announced..=announced.max(decoded as u64)).contains(&received));
    assert_eq!(
        received,
        suppressed
            + stale
            + superseded
            + malformed
            + no_dsp_slot
            + expired
            + deletions
            + deleted_on_arrival
            + batch.len() as u64
    );
    assert!(batch.len() <= decoded);
    for cookie in batch.cookies() {
        assert!((1..=USER_ID_BYTES_MAX).contains(&cookie.user_id.len()));
        assert!((1..=BUYER_UID_BYTES_MAX).contains(&cookie.buyer_uid.len()));
        assert!(cookie.user_id.iter().all(u8::is_ascii_graphic));
        assert!(std::str::from_utf8(cookie.buyer_uid).is_ok());
        assert!(cookie.dsp_id.is_valid());
        assert!(cookie.accepted <= chunk.header().accepted);
    }
    assert_eq!(batch.by_user().count(), batch.len());
    assert_eq!(batch.cursors()[0].sequence, chunk.header().last_sequence());
}
