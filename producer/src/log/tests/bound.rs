//! Tests that the time of a cookie precedes its acceptance by at most the maximum chunk age, even if sealing is late.

use std::sync::atomic::Ordering;

use super::{
    accepted::{accepted_times, append_accepted},
    *,
};

const CHUNK_AGE: u64 = 10_000;

/// Size from which a chunk is sealed at its age instead of three times its age.
const SMALL_BYTES: usize = 2048;

/// A log whose clock is a day ahead of the system clock, so that only [`advance`] moves it.
fn log() -> Log {
    let log = Log::new(Config {
        chunk_age: Duration::from_micros(CHUNK_AGE),
        ..CONFIG
    });
    let ahead = log.now().after(86_400_000_000);
    log.shared.latest.store(ahead.0, Ordering::Relaxed);
    log
}

fn advance(log: &Log, micros: u64) {
    log.shared.latest.fetch_add(micros, Ordering::Relaxed);
}

/// Appends `cookies` to an empty log, waits, and appends one more with each of the two methods. Returns by how much the
/// time of the last cookie precedes its acceptance.
fn time_error(cookies: u64, wait: u64) -> [u64; 2] {
    [false, true].map(|is_late| {
        let log = log();
        let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
        for sequence in 1..=cookies {
            append(&log, sequence).unwrap();
        }
        advance(&log, wait);
        let accepted = log.now();
        if is_late {
            append_accepted(&log, &[(cookies + 1, accepted)]).unwrap();
        } else {
            append(&log, cookies + 1).unwrap();
        }
        log.close();
        let (_, time) = *accepted_times(&mut reader).last().unwrap();
        accepted.since(time)
    })
}

#[test]
fn overdue_chunk_is_sealed_before_the_next_append() {
    for (cookies, age_max) in [(1, 3 * CHUNK_AGE), (20, 3 * CHUNK_AGE), (60, CHUNK_AGE)] {
        assert_eq!(time_error(cookies, age_max), [age_max; 2], "{cookies}");
        for wait in [age_max + 1, 500_000, 3_600_000_000] {
            assert_eq!(time_error(cookies, wait), [0; 2], "{cookies}, {wait}");
        }
    }
}

#[test]
fn chunk_sealed_by_an_append_is_delivered_and_counted_by_age() {
    let log = log();
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    append(&log, 1).unwrap();
    advance(&log, 3 * CHUNK_AGE + 1);
    append(&log, 2).unwrap();
    assert_eq!(log.stats().sealed.by_age, 1);
    assert_eq!(accepted_times(&mut reader).len(), 1);
    assert_eq!(log.seal_due(Instant::now() + 3 * CONFIG.chunk_age), None);
    assert_eq!(accepted_times(&mut reader).len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Append(u64),
    /// Time since the acceptance of each cookie.
    AppendAccepted(Vec<u64>),
    /// The sealing task runs.
    Seal,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop_oneof![0..CHUNK_AGE, 0..2_000_000_u64].prop_map(Step::Wait),
        6 => (1..8_u64).prop_map(Step::Append),
        3 => prop::collection::vec(prop_oneof![Just(0), 0..100_000_u64], 1..40).prop_map(Step::AppendAccepted),
        1 => Just(Step::Seal),
    ]
}

/// Acceptance time of a cookie, and the call that appended it.
type AcceptedCookie = (UnixMicros, usize);

/// Checks the time of each cookie against its acceptance, and the size of the chunk when it was appended.
fn check(log: &Log, accepted: &[AcceptedCookie]) -> Result<(), TestCaseError> {
    let mut all = accepted.iter();
    for chunk in log.shared.ring().chunks.iter() {
        let chunk = chunk.cookies_from(chunk.first());
        let time = chunk.header().accepted;
        let (mut bytes, mut bytes_before, mut last_call) = (0, 0, usize::MAX);
        for record in chunk.records() {
            let record = record.unwrap();
            let &(accepted, call) = all.next().unwrap();
            if call != last_call {
                (last_call, bytes_before) = (call, bytes);
            }
            bytes += wire::record_bytes(&record);
            let error = accepted.0.checked_sub(record.accepted(time).0);
            let ages = if bytes_before < SMALL_BYTES { 3 } else { 1 };
            prop_assert!(
                error.is_some_and(|error| error <= ages * CHUNK_AGE),
                "{error:?} after {bytes_before} bytes"
            );
        }
    }
    prop_assert!(all.next().is_none());
    Ok(())
}

proptest! {
    #[test]
    fn cookie_times_are_within_the_age_of_a_chunk(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let log = log();
        let mut accepted: Vec<AcceptedCookie> = Vec::new();
        for (call, step) in steps.into_iter().enumerate() {
            let now = log.now();
            let next = accepted.len() as u64 + 1;
            match step {
                Step::Wait(micros) => advance(&log, micros),
                Step::Append(count) => {
                    let mut batch = AppendBatch::default();
                    for sequence in next..next + count {
                        push(&mut batch, sequence);
                        accepted.push((now, call));
                    }
                    log.append(&mut batch).unwrap();
                }
                Step::AppendAccepted(ago) => {
                    let cookies: Vec<_> = (next..).zip(ago.iter().map(|ago| now.before(*ago))).collect();
                    append_accepted(&log, &cookies).unwrap();
                    accepted.extend(cookies.iter().map(|(_, accepted)| (*accepted, call)));
                }
                Step::Seal => seal(&log),
            }
        }
        log.close();
        check(&log, &accepted)?;
    }
}
