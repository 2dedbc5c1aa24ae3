//! Tests of the bounds on keys and bytes, and of their division among limits.

use std::time::Duration;

use limits::{Algorithm, CarryOver, Decision, Demand, LimitId, Limits, RecordOutcome, Refusal};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;

fn one<K>(limit: LimitId, key: K) -> [Demand<K>; 1] {
    [Demand {
        limit,
        key,
        requests: 1,
    }]
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::token_bucket(rate, burst).expect("a valid rate")
}

/// The number of admitted calls among calls of new keys.
fn new_keys(limits: &mut Limits<u32>, limit: LimitId, many: u32, now: u64) -> usize {
    let first = u32::try_from(limits.keys()).expect("few keys") * 1_000;
    let mut go = |key| limits.reserve(&one(limit, key), now, Duration::ZERO);
    (first..first + many)
        .filter(|key| go(*key) == Decision::Now)
        .count()
}

#[test]
fn full_table_evicts_idle_keys() {
    let mut limits = Limits::new(100);
    let limit = limits.add(bucket("1/s", 1)).unwrap();
    let mut go = |key: u32, now| limits.reserve(&one(limit, key), now, Duration::ZERO);
    for key in 0..100 {
        assert_eq!(go(key, START), Decision::Now);
    }
    let reason = Refusal::TableFull;
    assert_eq!(go(100, START), Decision::Refused { limit, reason });
    // Known keys are still admitted.
    assert_eq!(go(5, START + SECOND), Decision::Now);
    for key in 100..199 {
        assert_eq!(go(key, START + SECOND), Decision::Now, "{key}");
    }
    assert_ne!(go(5, START + SECOND), Decision::Now);
    assert_eq!(limits.keys(), 100);
    assert_eq!(limits.evict_idle(1_000, START + 9 * SECOND), 100);
}

/// Untrusted clients may invent keys, but cannot use up the entries of other limits.
#[test]
fn keys_of_one_limit_leave_guaranteed_entries_to_others() {
    let mut limits = Limits::new(100);
    let ids = [1, 2].map(|burst| limits.add(bucket("1/s", burst)).unwrap());
    // The half that is first come, first served, and its own quarter.
    assert_eq!(new_keys(&mut limits, ids[0], 1_000, START), 75);
    assert_eq!(new_keys(&mut limits, ids[1], 1_000, START), 25);
    // Evicted keys free their entries.
    let later = START + 9 * SECOND;
    assert_eq!(limits.evict_idle(1_000, later), 100);
    assert_eq!(new_keys(&mut limits, ids[1], 1_000, later), 75);
    let third = limits.add(bucket("1/s", 3)).unwrap();
    limits.track_changes();
    assert_eq!(new_keys(&mut limits, third, 1_000, later), 16);
    // Saved keys are restored regardless of the division among limits.
    let mut other: Limits<u32> = Limits::new(100);
    for id in ids {
        other.add(*limits.limit(id)).unwrap();
    }
    let mut saved = None;
    limits.take_changes(|_, _, _, state| saved = state.cloned());
    let saved = saved.expect("some keys were used");
    for key in 0..100 {
        let limit = limits.limit(third);
        let restored = other.restore(ids[0], key, limit, saved.clone(), later);
        assert!(restored.expect("the table has capacity"));
    }
    assert_eq!(new_keys(&mut other, ids[1], 9, later), 0);
}

#[test]
fn bytes_of_logs_are_bounded() {
    let log = |limit| Algorithm::SlidingLog {
        limit,
        window: Duration::from_secs(1),
    };
    let mut limits = Limits::with_memory(100, 8_000);
    let id = limits.add(log(100)).unwrap();
    assert_eq!(new_keys(&mut limits, id, 100, START), 10);
    let small = limits.add(bucket("1/s", 1)).unwrap();
    assert_eq!(new_keys(&mut limits, small, 100, START), 75);
    // Idle keys are evicted.
    let mut now = START + SECOND;
    assert_eq!(new_keys(&mut limits, id, 5, now), 5);
    // When a log grows, only keys in use stay.
    limits
        .change_all(&[(id, log(400).into(), CarryOver::Usage)], now)
        .unwrap();
    assert_eq!((limits.keys(), new_keys(&mut limits, id, 9, now)), (5, 0));
    now += SECOND;
    assert_eq!(new_keys(&mut limits, id, 9, now), 2);
    // Old reports need no entry.
    let old = limits.record(&one(id, 1_000_000), START - SECOND, now);
    assert_eq!((old, limits.keys()), (Ok(RecordOutcome::TooOld), 2));
}

/// Resident memory of this process, from Linux in pages of 4 KiB.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux provides it");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse::<u64>().ok());
    pages.expect("a number of pages") * 4_096
}

#[cfg(target_os = "linux")]
#[test]
fn one_million_keys_take_less_than_128_mib() {
    let before = resident_bytes();
    let mut limits = Limits::new(1_000_000);
    let limit = limits.add(bucket("1/h", 2)).unwrap();
    for key in 0..1_000_000_u64 {
        limits.reserve(&one(limit, key), START, Duration::ZERO);
    }
    let mib = (resident_bytes() - before) >> 20;
    assert!(limits.keys() == 1_000_000 && mib <= 128, "{mib} MiB");
}
