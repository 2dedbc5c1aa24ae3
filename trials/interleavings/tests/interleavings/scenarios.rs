//! Tests of properties that the log must have under every schedule of the threads that append, seal chunks, read, and close the log.

use std::{collections::BTreeMap, time::Duration};

use crate::log::{AppendBatch, Closed, Config, Delivery, Log, Reader, run_timers};
use proto::{
    units::{DspId, Epoch, Sequence},
    wire::CookieRef,
};
use shuttle::{
    future::block_on,
    thread::{self, JoinHandle},
};

/// Number of schedules per scenario and scheduler.
const SCHEDULES: usize = 3_000;

/// Maximum number of priority changes per schedule of the PCT scheduler.
const PRIORITY_CHANGES_MAX: usize = 3;

fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, PRIORITY_CHANGES_MAX);
}

/// One chunk per append. The next append seals it, unless a sealing task has sealed it before.
const CHUNK_PER_APPEND: Config = Config {
    epoch: Epoch(9),
    bytes_max: 1 << 30,
    chunk_bytes: 1,
    chunk_age: Duration::ZERO,
    idle_after: Duration::from_secs(1),
};

/// One chunk, which only the sealing task or the close seals.
const ONE_CHUNK: Config = Config {
    chunk_bytes: 1 << 16,
    ..CHUNK_PER_APPEND
};

/// The ring keeps only its newest chunk.
const NEWEST_ONLY: Config = Config {
    bytes_max: 1,
    ..CHUNK_PER_APPEND
};

fn cookie(user_id: &str) -> CookieRef<'_> {
    CookieRef {
        user_id,
        dsp_id: DspId(7),
        buyer_uid: "b",
        age_micros: 0,
    }
}

fn append(log: &Log, user_id: &str) -> Result<(), Closed> {
    let mut batch = AppendBatch::default();
    batch.push(&cookie(user_id));
    log.append(&mut batch)
}

/// Appends up to `cookies` cookies in another thread, until the log is closed. Returns the number of appended cookies.
fn appender(log: &Log, name: &'static str, cookies: u64) -> JoinHandle<u64> {
    let log = log.clone();
    thread::spawn(move || {
        let accepted = |nth: &u64| append(&log, &format!("{name}-{nth}")).is_ok();
        (1..=cookies).take_while(accepted).count() as u64
    })
}

fn sealer(log: &Log) -> JoinHandle<()> {
    let log = log.clone();
    thread::spawn(move || block_on(run_timers(log)))
}

/// Result of a reader.
#[derive(Debug)]
struct ReadResult {
    reader: Reader,
    /// Received user ids by sequence number.
    users: BTreeMap<u64, String>,
    lost: u64,
    ended: bool,
}

/// Reads until the position is `until` or the stream ends.
fn read(reader: Reader, until: u64) -> ReadResult {
    let mut read = ReadResult {
        reader,
        users: BTreeMap::new(),
        lost: 0,
        ended: false,
    };
    while read.reader.position() < Sequence(until) && !read.ended {
        let position = read.reader.position();
        match block_on(read.reader.next()) {
            Delivery::Chunk { chunk, first } => {
                assert_eq!(first, position);
                let cookies = chunk.cookies_from(first);
                for (sequence, record) in (first.0..).zip(cookies.records()) {
                    let cookie = record.expect("a valid record").cookie();
                    let user = cookie.expect("no deletion").user_id.to_owned();
                    assert_eq!(read.users.insert(sequence, user), None, "duplicate");
                }
                assert_eq!(read.reader.position(), chunk.last() + 1);
            }
            Delivery::Gap { first, last, .. } => {
                assert_eq!(first, position);
                assert!(first <= last);
                read.lost += (last + 1).since(first);
            }
            Delivery::End { last } => {
                assert_eq!(last, position - 1);
                read.ended = true;
            }
            Delivery::Idle { .. } => panic!("no time passes"),
        }
    }
    read
}

fn reader(log: &Log, until: u64) -> JoinHandle<ReadResult> {
    let reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    thread::spawn(move || read(reader, until))
}

/// Checks that the reader received exactly the accepted cookies of each appender, in order.
#[track_caller]
fn check_users(read: &ReadResult, accepted: &[(&str, u64)]) {
    for (name, cookies) in accepted {
        let is_of_appender = |user: &&String| user.split('-').next() == Some(*name);
        let received: Vec<&String> = read.users.values().filter(is_of_appender).collect();
        let expected: Vec<String> = (1..=*cookies).map(|nth| format!("{name}-{nth}")).collect();
        assert_eq!(received, expected.iter().collect::<Vec<_>>());
    }
}

#[test]
fn each_reader_receives_all_cookies_in_order_before_the_close() {
    explore(|| {
        let log = Log::new(CHUNK_PER_APPEND);
        let sealing = sealer(&log);
        let readers = [reader(&log, 5), reader(&log, 5)];
        let appenders = [appender(&log, "a", 2), appender(&log, "b", 2)];
        for appender in appenders {
            assert_eq!(appender.join().expect("appended"), 2);
        }
        // The log is closed last, because this would wake a reader whose wake-up was lost.
        for reader in readers {
            let read = reader.join().expect("read");
            assert_eq!((read.users.len(), read.lost, read.ended), (4, 0, false));
            check_users(&read, &[("a", 2), ("b", 2)]);
        }
        log.close();
        sealing.join().expect("the sealing task ends with the log");
    });
}

#[test]
fn sealing_task_wakes_for_the_first_cookie_of_each_chunk() {
    explore(|| {
        let log = Log::new(ONE_CHUNK);
        let sealing = sealer(&log);
        let mut reading = log.reader(Sequence(1), u64::MAX, Sequence(0));
        let second = appender(&log, "b", 1);
        for nth in 1..=2 {
            append(&log, &format!("a-{nth}")).expect("open");
            reading = read(reading, nth + 1).reader;
        }
        assert_eq!(second.join().expect("appended"), 1);
        read(reading, 4);
        log.close();
        sealing.join().expect("the sealing task ends with the log");
    });
}

#[test]
fn exactly_the_cookies_accepted_before_the_close_are_read() {
    for config in [CHUNK_PER_APPEND, ONE_CHUNK] {
        let scenario = move || {
            let log = Log::new(config);
            let sealing = sealer(&log);
            let reading = reader(&log, u64::MAX);
            let (a, b) = (appender(&log, "a", 3), appender(&log, "b", 3));
            log.close();
            let (a, b) = (a.join().expect("appended"), b.join().expect("appended"));
            let read = reading.join().expect("read");
            assert!(read.ended);
            assert_eq!((read.users.len() as u64, read.lost), (a + b, 0));
            check_users(&read, &[("a", a), ("b", b)]);
            assert_eq!(append(&log, "late"), Err(Closed));
            sealing.join().expect("the sealing task ends with the log");
        };
        explore(scenario);
    }
}

#[test]
fn cookies_released_together_are_adjacent_or_all_rejected() {
    for config in [CHUNK_PER_APPEND, ONE_CHUNK] {
        let scenario = move || {
            let log = Log::new(config);
            let sealing = sealer(&log);
            let reading = reader(&log, u64::MAX);
            let (a, releasing) = (appender(&log, "a", 2), log.clone());
            let releaser = thread::spawn(move || {
                let accepted = releasing.now().before(1_000);
                let users = ["b-1", "b-2", "b-3"];
                releasing.append_accepted(users.map(|user_id| (cookie(user_id), accepted)))
            });
            log.close();
            let a = a.join().expect("appended");
            let b = releaser.join().expect("appended").map_or(0, |()| 3);
            let read = reading.join().expect("read");
            assert_eq!((read.users.len() as u64, read.lost), (a + b, 0));
            check_users(&read, &[("a", a), ("b", b)]);
            let of_b = read.users.iter().filter(|(_, user)| user.starts_with('b'));
            let of_b: Vec<u64> = of_b.map(|(sequence, _)| *sequence).collect();
            assert!(of_b.windows(2).all(|two| two[0] + 1 == two[1]), "{of_b:?}");
            sealing.join().expect("the sealing task ends with the log");
        };
        explore(scenario);
    }
}

#[test]
fn slow_reader_receives_every_sequence_or_an_exact_gap() {
    for queue_cookies_max in [1, u64::MAX] {
        let scenario = move || {
            let log = Log::new(NEWEST_ONLY);
            let reading = log.reader(Sequence(1), queue_cookies_max, Sequence(0));
            let reading = thread::spawn(move || read(reading, u64::MAX));
            let appenders = [appender(&log, "a", 3), appender(&log, "b", 2)];
            for appender in appenders {
                appender.join().expect("appended");
            }
            log.close();
            let read = reading.join().expect("read");
            assert_eq!(read.users.len() as u64 + read.lost, 5);
            assert!(read.users.contains_key(&5), "the newest chunk stays");
        };
        explore(scenario);
    }
}

#[test]
fn span_is_a_consistent_snapshot_of_the_log() {
    explore(|| {
        let log = Log::new(NEWEST_ONLY);
        let appenders = [appender(&log, "a", 2), appender(&log, "b", 2)];
        let mut next = Sequence(1);
        for _ in 0..3 {
            let span = log.span();
            assert!(span.oldest <= span.next, "{span:?}");
            assert!(next <= span.next, "{span:?} after {next}");
            next = span.next;
            thread::yield_now();
        }
        for appender in appenders {
            appender.join().expect("appended");
        }
    });
}

#[test]
fn late_reader_receives_everything_from_its_first_sequence() {
    explore(|| {
        let log = Log::new(CHUNK_PER_APPEND);
        let appenders = [appender(&log, "a", 2), appender(&log, "b", 2)];
        let span = log.span();
        let reading = log.reader(span.next, u64::MAX, Sequence(0));
        let reading = thread::spawn(move || read(reading, u64::MAX));
        for appender in appenders {
            appender.join().expect("appended");
        }
        log.close();
        let read = reading.join().expect("read");
        let received: Vec<u64> = read.users.into_keys().collect();
        assert_eq!(received, (span.next.0..=4).collect::<Vec<_>>());
    });
}
