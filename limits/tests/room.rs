//! How much is kept: bounds on keys and bytes, and who has room in them.

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
    Algorithm::token_bucket(rate, burst).expect("a good rate")
}

/// How many of so many new keys were let go.
fn new_keys(limits: &mut Limits<u32>, limit: LimitId, many: u32, now: u64) -> usize {
    let first = u32::try_from(limits.keys()).expect("few keys") * 1_000;
    let mut go = |key| limits.reserve(&one(limit, key), now, Duration::ZERO);
    (first..first + many)
        .filter(|key| go(*key) == Decision::Now)
        .count()
}

#[test]
fn keys_are_bounded_and_idle_ones_make_room() {
    let mut limits = Limits::new(100);
    let limit = limits.add(bucket("1/s", 1)).unwrap();
    let mut go = |key: u32, now| limits.reserve(&one(limit, key), now, Duration::ZERO);
    for key in 0..100 {
        assert_eq!(go(key, START), Decision::Now);
    }
    let reason = Refusal::TableFull;
    assert_eq!(go(100, START), Decision::Refused { limit, reason });
    // Those that are known still have their turn.
    assert_eq!(go(5, START + SECOND), Decision::Now);
    for key in 100..199 {
        assert_eq!(go(key, START + SECOND), Decision::Now, "{key}");
    }
    assert_ne!(go(5, START + SECOND), Decision::Now);
    assert_eq!(limits.keys(), 100);
    assert_eq!(limits.evict_idle(1_000, START + 9 * SECOND), 100);
}

/// Keys may be invented by strangers, who may not take what belongs to others.
#[test]
fn keys_of_one_limit_leave_the_others_their_room() {
    let mut limits = Limits::new(100);
    let ids = [1, 2].map(|burst| limits.add(bucket("1/s", burst)).unwrap());
    // All that is not of both alike, and a quarter of its own.
    assert_eq!(new_keys(&mut limits, ids[0], 1_000, START), 75);
    assert_eq!(new_keys(&mut limits, ids[1], 1_000, START), 25);
    // What leaves gives its room back.
    let later = START + 9 * SECOND;
    assert_eq!(limits.evict_idle(1_000, later), 100);
    assert_eq!(new_keys(&mut limits, ids[1], 1_000, later), 75);
    let third = limits.add(bucket("1/s", 3)).unwrap();
    limits.track_changes();
    assert_eq!(new_keys(&mut limits, third, 1_000, later), 16);
    // What was saved comes back, however it is shared out now.
    let mut other: Limits<u32> = Limits::new(100);
    for id in ids {
        other.add(*limits.limit(id)).unwrap();
    }
    let mut saved = None;
    limits.take_changes(|_, _, _, state| saved = state.cloned());
    let saved = saved.expect("some were taken from");
    for key in 0..100 {
        let limit = limits.limit(third);
        let restored = other.restore(ids[0], key, limit, saved.clone(), later);
        assert!(restored.expect("there is room for all"));
    }
    assert_eq!(new_keys(&mut other, ids[1], 9, later), 0);
}

#[test]
fn bytes_of_logs_are_bounded_as_keys_are() {
    let log = |limit| Algorithm::SlidingLog {
        limit,
        window: Duration::from_secs(1),
    };
    let mut limits = Limits::with_memory(100, 8_000);
    let id = limits.add(log(100)).unwrap();
    assert_eq!(new_keys(&mut limits, id, 100, START), 10);
    let small = limits.add(bucket("1/s", 1)).unwrap();
    assert_eq!(new_keys(&mut limits, small, 100, START), 75);
    // Those that are idle leave.
    let mut now = START + SECOND;
    assert_eq!(new_keys(&mut limits, id, 5, now), 5);
    // A log that gets larger keeps what is in use, and nothing else.
    limits
        .change_all(&[(id, log(400).into(), CarryOver::Usage)], now)
        .unwrap();
    assert_eq!((limits.keys(), new_keys(&mut limits, id, 9, now)), (5, 0));
    now += SECOND;
    assert_eq!(new_keys(&mut limits, id, 9, now), 2);
    // Calls of last year need no place.
    let old = limits.record(&one(id, 1_000_000), START - SECOND, now);
    assert_eq!((old, limits.keys()), (Ok(RecordOutcome::TooOld), 2));
}

/// What this process has in memory: Linux counts it in pages of 4 KiB.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse::<u64>().ok());
    pages.expect("a number of pages") * 4_096
}

#[cfg(target_os = "linux")]
#[test]
fn a_million_keys_take_less_than_128_mib() {
    let before = resident_bytes();
    let mut limits = Limits::new(1_000_000);
    let limit = limits.add(bucket("1/h", 2)).unwrap();
    for key in 0..1_000_000_u64 {
        limits.reserve(&one(limit, key), START, Duration::ZERO);
    }
    let mib = (resident_bytes() - before) >> 20;
    assert!(limits.keys() == 1_000_000 && mib <= 128, "{mib} MiB");
}
