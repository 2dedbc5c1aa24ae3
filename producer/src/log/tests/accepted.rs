//! Tests of cookies that are appended after their acceptance.

use std::sync::atomic::Ordering;

use super::*;

/// Reads all available cookies; returns the sequence number and acceptance time of each.
pub(super) fn accepted_times(reader: &mut Reader) -> Vec<(u64, UnixMicros)> {
    let mut times = Vec::new();
    while let Some(Delivery::Chunk { chunk, first }) = take(reader) {
        let chunk = chunk.cookies_from(first);
        let (sequences, time) = (chunk.header().first_sequence.0.., chunk.header().accepted);
        times.extend(sequences.zip(chunk.records()).map(|(sequence, record)| {
            let cookie = record.unwrap().cookie().unwrap();
            assert_eq!(cookie.user_id, user(sequence), "in order");
            (sequence, cookie.accepted(time))
        }));
    }
    times
}

pub(super) fn append_accepted(log: &Log, cookies: &[(u64, UnixMicros)]) -> Result<(), Closed> {
    let cookies: Vec<_> = cookies
        .iter()
        .map(|&(sequence, accepted)| (user(sequence), accepted))
        .collect();
    log.append_accepted(cookies.iter().map(|(user_id, accepted)| {
        let cookie = CookieRef {
            user_id,
            dsp_id: DspId(7),
            buyer_uid: "b",
            age_micros: 99,
        };
        (cookie, *accepted)
    }))
}

#[test]
fn late_cookies_keep_their_acceptance_times_and_order_across_chunks() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    append(&log, 1).unwrap();
    let before = log.now();
    let cookies: Vec<_> = (2..=1_000)
        .map(|sequence| (sequence, before.before(sequence * 1_000)))
        .collect();
    append_accepted(&log, &cookies).unwrap();
    append(&log, 1_001).unwrap();
    assert!(log.stats().sealed.by_size > 3);
    log.close();
    for chunk in log.shared.ring().chunks.iter() {
        assert!(chunk.wire().len() <= CONFIG.chunk_bytes);
    }
    let times = accepted_times(&mut reader);
    assert_eq!(times.len(), 1_001);
    assert_eq!(times[1..1_000], cookies);
    assert!(times[0].1 <= before && times[1_000].1 >= times[0].1);
}

#[test]
fn acceptance_times_are_limited_to_the_week_before_the_chunk() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    append_accepted(
        &log,
        &[(1, UnixMicros::MAX), (2, log.now()), (3, UnixMicros::NONE)],
    )
    .unwrap();
    seal(&log);
    let [(1, first), (2, second), (3, third)] = *accepted_times(&mut reader) else {
        panic!("three cookies");
    };
    assert!(second <= first && first <= log.now());
    assert_eq!(first.since(third), limits::AGE_MICROS_MAX);
}

#[test]
fn times_stay_at_the_latest_when_the_clock_goes_back() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let ahead = log.now().after(3_600_000_000);
    // As if the log had returned this time before the clock was set back.
    log.shared.latest.store(ahead.0, Ordering::Relaxed);
    assert_eq!(log.now(), ahead);
    append_accepted(&log, &[(1, ahead.before(5)), (2, ahead)]).unwrap();
    seal(&log);
    append(&log, 3).unwrap();
    seal(&log);
    let expected = [(1, ahead.before(5)), (2, ahead), (3, ahead)];
    assert_eq!(accepted_times(&mut reader), expected);
}

#[test]
fn closed_log_rejects_late_cookies() {
    let log = Log::new(CONFIG);
    append_accepted(&log, &[(1, UnixMicros(1))]).unwrap();
    log.close();
    assert_eq!(
        append_accepted(&log, &[(2, UnixMicros(1)), (3, UnixMicros(1))]),
        Err(Closed)
    );
    assert_eq!(append_accepted(&log, &[]), Ok(()));
    assert_eq!((log.stats().appended, log.span().next.0), (1, 2));
}

#[test]
fn reader_that_begins_inside_a_chunk_gets_ages() {
    let log = Log::new(CONFIG);
    let now = log.now();
    append_accepted(&log, &[1, 2, 3].map(|ago| (ago, now.before(ago)))).unwrap();
    seal(&log);
    let mut reader = log.reader(Sequence(2), u64::MAX, Sequence(0));
    let expected = [2, 3].map(|ago| (ago, now.before(ago)));
    assert_eq!(accepted_times(&mut reader), expected);
}
