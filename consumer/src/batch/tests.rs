//! Tests of batches, and helpers that build chunks for the tests of other modules.

mod model;

use proto::{
    units::{Epoch, Sequence},
    v1, wire,
};

use super::*;
use crate::deletions::Deletions;

/// A chunk of cookies `(user id, DSP, buyer uid)`; without a buyer uid, of deletions.
pub(crate) fn chunk(first_sequence: u64, accepted: u64, cookies: &[(&str, u32, &str)]) -> ChunkRef {
    let cookies: Vec<_> = cookies.iter().map(|cookie| (*cookie, 0)).collect();
    aged_chunk(first_sequence, accepted, &cookies)
}

/// A chunk of cookies with their ages in microseconds.
pub(crate) fn aged_chunk(
    first_sequence: u64,
    accepted: u64,
    cookies: &[((&str, u32, &str), u64)],
) -> ChunkRef {
    let mut buffer = vec![0; wire::HEADROOM_BYTES];
    for &((user_id, dsp_id, buyer_uid), age_micros) in cookies {
        let record = match buyer_uid {
            "" => Record::Delete {
                scope: Scope::from_ids(user_id, DspId(dsp_id)),
                age_micros,
            },
            _ => Record::Set(CookieRef {
                user_id,
                dsp_id: DspId(dsp_id),
                buyer_uid,
                age_micros,
            }),
        };
        wire::put_record(&mut buffer, &record);
    }
    let header = wire::ChunkHeader {
        epoch: Epoch(1),
        first_sequence: Sequence(first_sequence),
        count: u32::try_from(cookies.len()).unwrap(),
        accepted: UnixMicros(accepted),
    };
    let at = wire::seal(&mut buffer, &header) + wire::FRAME_PREFIX_BYTES;
    match wire::StreamMessage::decode(Bytes::from(buffer).slice(at..)).unwrap() {
        wire::StreamMessage::Chunk(chunk) => chunk,
        other => panic!("{other:?}"),
    }
}

/// A batch of chunks from one producer.
pub(crate) fn batch(chunks: &[ChunkRef]) -> Batch {
    let mut batch = Batch::new(1000, 1 << 20);
    for chunk in chunks {
        batch.push(&"p".into(), chunk, UnixMicros::MAX);
    }
    batch
}

/// An empty batch with this number.
pub(crate) fn empty(id: BatchId) -> Batch {
    let batch = Batch::new(1000, 1 << 20);
    Batch { id, ..batch }
}

fn buyers(batch: &Batch) -> Vec<(&str, u32, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    batch
        .cookies()
        .map(|it| (text(it.user_id), it.dsp_id.0, text(it.buyer_uid)))
        .collect()
}

#[track_caller]
fn check(chunks: &[ChunkRef], expected: &[(&str, u32, &str)], superseded: u64) {
    let batch = batch(chunks);
    assert_eq!(buyers(&batch), expected);
    assert_eq!(batch.counts().superseded, superseded);
    assert_eq!(batch.counts().malformed, 0);
}

#[test]
fn newest_of_a_pair_wins_in_any_order_of_arrival() {
    let old = chunk(1, 100, &[("u", 1, "old"), ("u", 2, "other dsp")]);
    let new = chunk(3, 200, &[("u", 1, "new"), ("v", 1, "other user")]);
    let kept = [
        ("u", 1, "new"),
        ("u", 2, "other dsp"),
        ("v", 1, "other user"),
    ];
    check(&[old.clone(), new.clone()], &kept, 1);
    let kept = [
        ("u", 1, "new"),
        ("v", 1, "other user"),
        ("u", 2, "other dsp"),
    ];
    check(&[new, old], &kept, 1);
}

#[test]
fn later_arrival_wins_a_tie() {
    let chunks = [
        chunk(1, 100, &[("u", 1, "a"), ("u", 1, "b")]),
        chunk(3, 100, &[("u", 1, "c")]),
    ];
    check(&chunks[..1], &[("u", 1, "b")], 1);
    check(&chunks, &[("u", 1, "c")], 2);
}

#[test]
fn user_id_and_dsp_are_hashed_separately() {
    let users = [("1", 11, "a"), ("11", 1, "b"), ("111", 1, "c")];
    check(&[chunk(1, 1, &users)], &users, 0);
}

/// A producer may restart within one flush interval.
#[test]
fn completed_epoch_is_kept_when_the_next_one_starts_in_the_same_batch() {
    let cursor = |epoch, sequence, complete| Cursor {
        producer: "p".into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        complete,
    };
    let mut batch = Batch::new(10, 1 << 20);
    batch.advance(&cursor(1, 8, false));
    batch.advance(&cursor(1, 9, true));
    batch.advance(&cursor(1, 9, true));
    batch.advance(&cursor(2, 0, false));
    assert_eq!(batch.cursors(), [cursor(2, 0, false)]);
    assert_eq!(batch.completed_epochs(), [cursor(1, 9, true)]);
    assert!(batch.next().completed_epochs().is_empty());
}

#[test]
fn cursor_of_a_producer_never_moves_back_within_an_epoch() {
    let mut batch = Batch::new(1000, 1 << 20);
    batch.push(
        &"a".into(),
        &chunk(10, 1, &[("u", 1, "x"), ("v", 1, "x")]),
        UnixMicros::MAX,
    );
    batch.push(&"b".into(), &chunk(1, 2, &[("u", 1, "y")]), UnixMicros::MAX);
    batch.push(&"a".into(), &chunk(5, 1, &[("u", 1, "x")]), UnixMicros::MAX);
    let cursor = |producer: &str, epoch, sequence, complete| Cursor {
        producer: producer.into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        complete,
    };
    assert_eq!(
        batch.cursors(),
        [cursor("a", 1, 11, false), cursor("b", 1, 1, false)]
    );
    batch.advance(&cursor("a", 1, 11, true));
    batch.advance(&cursor("b", 2, 0, false));
    assert_eq!(
        batch.cursors(),
        [cursor("a", 1, 11, true), cursor("b", 2, 0, false)]
    );
    assert_eq!(buyers(&batch), [("u", 1, "y"), ("v", 1, "x")]);
}

#[test]
fn by_user_sorts_by_user_id_and_dsp() {
    let cookies = [
        ("long-user-b", 2, "6"),
        ("b", 1, "2"),
        ("long-user-b", 1, "5"),
        ("a", 9, "1"),
        ("long-user-a", 7, "4"),
        ("b", 10, "3"),
    ];
    let batch = batch(&[chunk(1, 1, &cookies)]);
    let order: Vec<_> = batch
        .by_user()
        .map(|index| batch.cookie(index as usize).buyer_uid[0])
        .collect();
    assert_eq!(order, b"123456");
}

#[test]
fn batch_is_full_at_its_maximum_of_cookies_or_bytes() {
    let chunk = chunk(1, 1, &[("u", 1, "x"), ("v", 1, "x")]);
    let mut by_cookies = Batch::new(2, usize::MAX);
    let mut by_bytes = Batch::new(usize::MAX, chunk.body().len());
    for batch in [&mut by_cookies, &mut by_bytes] {
        assert!(!batch.is_full());
        batch.push(&"p".into(), &chunk, UnixMicros::MAX);
        assert!(batch.is_full());
    }
}

#[test]
fn deletion_covers_earlier_cookies_although_the_clock_of_the_node_is_behind() {
    const MINUTE: u64 = 60_000_000;
    let deleted_at = 1_000 * MINUTE;
    let mut batch = Batch::new(1000, 1 << 20);
    // The clock of the node advances between the chunks of two producers.
    let latest = deleted_at - 5 * MINUTE;
    let deletion = chunk(1, deleted_at, &[("u", 1, "")]);
    batch.push(&"p1".into(), &deletion, UnixMicros(latest));
    let syncs = [
        chunk(1, deleted_at - 1, &[("u", 1, "earlier")]),
        chunk(2, deleted_at + 10 * MINUTE, &[("v", 1, "other")]),
    ];
    for sync in &syncs {
        batch.push(&"p2".into(), sync, UnixMicros(latest + 1_000));
    }
    let deletions = Deletions::default();
    deletions.add(&batch.deletions()[0]);
    batch.remove_deleted(&deletions);
    assert_eq!(buyers(&batch), [("v", 1, "other")]);
    // An unlimited time would become the floor of the table.
    let far = chunk(2, u64::MAX, &[("u", 1, "")]);
    batch.push(&"p1".into(), &far, UnixMicros(500));
    let until = batch.deletions().last().map(|it| it.until);
    assert_eq!(until, Some(UnixMicros(500 + DELETION_HORIZON_MICROS)));
}

#[test]
fn time_ahead_of_the_clock_is_clamped() {
    let mut batch = Batch::new(1000, 1 << 20);
    batch.push(
        &"p".into(),
        &chunk(1, u64::MAX, &[("u", 1, "ahead")]),
        UnixMicros(500),
    );
    batch.push(
        &"p".into(),
        &chunk(2, 500, &[("u", 1, "later")]),
        UnixMicros(600),
    );
    assert_eq!(buyers(&batch), [("u", 1, "later")]);
    assert_eq!(batch.cookie(0).accepted, UnixMicros(500));
    assert_eq!(
        batch.released().collect::<Vec<_>>(),
        [(UnixMicros(500), 1); 2]
    );
}

#[test]
fn cookie_accepted_last_wins_over_one_released_later() {
    let queued = aged_chunk(1, 300, &[(("u", 1, "queued"), 250), (("v", 1, "v"), 0)]);
    let direct = chunk(3, 200, &[("u", 1, "direct")]);
    for chunks in [[&direct, &queued], [&queued, &direct]] {
        let batch = batch(&chunks.map(Clone::clone));
        let u = batch.cookies().position(|cookie| cookie.user_id == b"u");
        let u = u.unwrap();
        assert_eq!(batch.cookie(u).buyer_uid, b"direct");
        assert_eq!(batch.cookie(u).accepted, UnixMicros(200));
        assert_eq!(batch.counts().superseded, 1);
        let mut released: Vec<_> = batch.released().collect();
        released.sort_unstable();
        assert_eq!(
            released,
            [(UnixMicros(200), 1), (UnixMicros(300), 2)],
            "times are those of the release"
        );
    }
    // Also within one chunk.
    let both = aged_chunk(1, 300, &[(("u", 1, "new"), 1), (("u", 1, "old"), 2)]);
    check(&[both], &[("u", 1, "new")], 1);
}

#[test]
fn age_counts_from_the_clamped_time_and_saturates_at_zero() {
    let mut batch = Batch::new(1000, 1 << 20);
    let ahead = aged_chunk(1, u64::MAX, &[(("u", 1, "x"), 100), (("v", 1, "x"), 501)]);
    batch.push(&"p".into(), &ahead, UnixMicros(500));
    let times: Vec<_> = batch.cookies().map(|it| it.accepted).collect();
    assert_eq!(times, [400, 0].map(UnixMicros));
}

#[test]
fn filter_suppresses_cookies_or_adds_them_with_their_fingerprints() {
    let cookies = [("a", 1, "x"), ("b", 1, "x"), ("a", 1, "y"), ("d", 2, "x")];
    struct Strict;
    impl DedupFilter for Strict {
        fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint {
            [u64::from(cookie.dsp_id.0), 5]
        }

        fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
            assert_eq!(fingerprints, [[1, 5], [1, 5], [1, 5], [2, 5]]);
        }

        fn decide(
            &mut self,
            cookie: &mut BatchCookie<'_>,
            fingerprint: Fingerprint,
            _: BatchId,
        ) -> DedupDecision {
            match (cookie.user_id, cookie.buyer_uid) {
                (b"a", b"x") => DedupDecision::Suppress,
                _ => DedupDecision::Write {
                    is_known: fingerprint[0] == 2,
                },
            }
        }
    }
    let mut batch = Batch::new(1000, 1 << 20);
    batch.push_filtered(
        &"p".into(),
        &chunk(1, 5, &cookies),
        UnixMicros::MAX,
        &mut Strict,
    );
    assert_eq!(
        buyers(&batch),
        [("b", 1, "x"), ("a", 1, "y"), ("d", 2, "x")]
    );
    let known: Vec<_> = batch.cookies().map(|cookie| cookie.is_known).collect();
    assert_eq!(known, [false, false, true]);
    assert_eq!(batch.fingerprints().last(), Some([2, 5]));
    assert_eq!((batch.counts().received, batch.counts().suppressed), (4, 1));
    assert_eq!(batch.released().collect::<Vec<_>>(), [(UnixMicros(5), 4)]);
    assert_eq!(batch.cursors()[0].sequence, Sequence(4));
}

#[test]
fn next_batch_is_presized_and_has_the_same_limits() {
    let users: Vec<_> = (0..1000).map(|user| user.to_string()).collect();
    let cookies: Vec<_> = users.iter().map(|user| (&**user, 1, "x")).collect();
    let first = batch(&[chunk(1, 1, &cookies)]);
    assert!(first.is_full());
    let mut next = first.next();
    assert!(next.is_empty() && !next.is_full());
    next.push(
        &"p".into(),
        &chunk(1001, 1, &[("u", 1, "x")]),
        UnixMicros::MAX,
    );
    assert!(next.entries.capacity() >= 1000);
    assert_eq!(next.cookies_max, 1000);
    assert_eq!(next.id(), first.id().next());
}

#[test]
fn malformed_cookies_are_counted_and_skipped() {
    use v1::Cookie;
    let cookie = |user_id: &str, dsp_id, buyer_uid: &str| Cookie {
        user_id: user_id.to_owned(),
        dsp_id,
        buyer_uid: buyer_uid.to_owned(),
        ..Cookie::default()
    };
    let message = v1::Chunk {
        epoch: 1,
        first_sequence: 1,
        count: 8,
        accepted_unix_micros: 5,
        cookies: vec![
            cookie("", 1, "x"),
            cookie("with space", 1, "x"),
            cookie("nul\0", 1, "x"),
            cookie(&"u".repeat(65), 1, "x"),
            cookie("u", 0, "x"),
            cookie("u", 1, ""),
            cookie("valid", 7, "x"),
        ],
    };
    let bytes = prost_bytes(&message);
    let batch = batch(&[ChunkRef::decode(bytes).unwrap()]);
    assert_eq!(buyers(&batch), [("valid", 7, "x")]);
    assert_eq!(
        batch.counts(),
        LedgerCounts {
            received: 8,
            malformed: 7,
            ..LedgerCounts::default()
        }
    );
    assert_eq!(batch.released().collect::<Vec<_>>(), [(UnixMicros(5), 1)]);
    assert_eq!(batch.cursors()[0].sequence, Sequence(8));
}

#[test]
fn header_determines_the_number_of_cookies() {
    let two = chunk(1, 5, &[("a", 1, "x"), ("b", 1, "x")]);
    for (count, kept, malformed) in [(1, 1, 0), (2, 2, 0), (5, 2, 3)] {
        let mut body = two.body().to_vec();
        let at = body.iter().position(|&byte| byte == COUNT_TAG).unwrap();
        body[at + 1] = count;
        let batch = batch(&[ChunkRef::decode(body.into()).unwrap()]);
        let counts = batch.counts();
        assert_eq!(counts.received, u64::from(count));
        assert_eq!((batch.len(), counts.malformed), (kept, malformed));
        assert_eq!(batch.cursors()[0].sequence.0, u64::from(count));
    }
}

/// Tag of the count of a chunk. In a small chunk, no earlier byte has this value.
const COUNT_TAG: u8 = 3 << 3 | 5;

fn prost_bytes(chunk: &v1::Chunk) -> Bytes {
    use prost::Message;
    Bytes::from(chunk.encode_to_vec())
}
