//! What clients and operators of a limiter write: calls, files of limits, and the snapshot in its folder.

use std::{fs::File, time::Duration};

use limiter::serve::{
    engine::{self, CallRule, Counting, Engine, LIMIT_BYTES_MAX, Options, Target},
    http,
};
use limits::rules::{Document, NamedLimit, Rules};

/// A moment of 2023, in nanoseconds.
const NOW: u64 = 1_700_000_000_000_000_000;

/// Limits of each algorithm.
const LIMITS: &str = "
[limits.a]
rules = [
  { id = 'bucket', rate = '3/s', burst = 2 },
  { id = 'leaky', rate = '3/s', algorithm = 'leaky_bucket', capacity = 5 },
  { id = 'spacing', rate = '3/s', algorithm = 'spacing' },
  { id = 'stepped', rate = '30/s', algorithm = 'stepped_bucket', burst = 9 },
]
[limits.b]
rules = [
  { id = 'fixed', rate = '9/h', algorithm = 'fixed_window' },
  { id = 'first', rate = '9/h', algorithm = 'fixed_window', aligned = 'first_call' },
  { id = 'log', rate = '9/min', algorithm = 'sliding_log' },
  { id = 'counter', rate = '9/min', algorithm = 'sliding_counter' },
  { id = 'steps', rate = '9/min', algorithm = 'step_window', step = '10s' },
]
[limits.called]
from_call = true
[limits.whole]
every_call = true
rules = [{ id = 'all', rate = '100/s' }]
";

fn engine(limits: &[NamedLimit]) -> Engine {
    let options = Options {
        counters_max: 1_000,
        counters_bytes_max: 1 << 20,
        learned_max: Duration::from_secs(3_600),
        counting: Counting::Here,
    };
    Engine::new(options, limits)
}

fn save(engine: &Engine) -> Vec<u8> {
    let journal = File::create("/dev/null").expect("a file of every system");
    engine.snapshot(1, journal)
}

/// A path and a query, an empty line, a body: names of a call are within their bounds, and what is refused is the client's mistake, in
/// words.
///
/// # Panics
/// When that does not hold.
pub fn call(bytes: &[u8]) {
    let end = bytes.windows(2).position(|it| it == b"\n\n");
    let (head, body) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (bytes, &[][..]),
    };
    let Ok(head) = std::str::from_utf8(head) else {
        return;
    };
    let (path, query) = head.split_once('?').unwrap_or((head, ""));
    match http::counters(path, query, body, NOW) {
        Ok(counters) => {
            assert!(counters.len() <= 16);
            for (limit, counter) in counters {
                assert!((1..=LIMIT_BYTES_MAX).contains(&limit.len()) && !limit.contains('/'));
                assert!((1..=256).contains(&counter.len()));
                assert!(!counter.contains(char::is_control));
            }
        }
        Err(problem) => {
            assert!(problem.kind.status.is_client_error(), "{problem:?}");
            assert!(!problem.detail.is_empty(), "{problem:?}");
        }
    }
}

/// A file of limits: it is refused in words, or an engine takes calls under its limits; it means the same as JSON.
///
/// # Panics
/// When that does not hold.
pub fn limits_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(mistakes) => return assert!(!mistakes.0.is_empty()),
    };
    // TOML has dates and numbers that JSON has not; limits have none.
    if let Ok(json) = serde_json::to_vec(&document)
        && let Ok(of_json) = serde_json::from_slice::<Document>(&json)
        && let (Ok(rules), Ok(again)) = (document.rules(), of_json.rules())
    {
        assert_eq!(rules, again);
    }
    let rules = match document.rules() {
        Ok(rules) => rules,
        Err(mistakes) => return assert!(!mistakes.0.is_empty()),
    };
    if !engine::mistakes(&rules).is_empty() {
        return;
    }
    let engine = engine(&rules.limits);
    let limits = rules.limits.iter();
    for limit in limits.filter(|limit| !limit.from_call) {
        let of = [Target {
            limit: &limit.name,
            counter: "k",
        }];
        let reserved = engine.reserve(&of, 1, Duration::ZERO, NOW);
        let peeked = engine.delay(&of, 1, NOW);
        assert!(reserved.is_err() || peeked.is_ok_and(|slot| slot.at >= NOW));
    }
}

/// A snapshot, as it is and with the checksum that it should have: it is refused, or an engine goes on from it, and what it saves then is
/// restored as well.
///
/// # Panics
/// When that does not hold.
pub fn snapshot(bytes: &[u8]) {
    restore(bytes);
    let body = bytes
        .split_last_chunk::<4>()
        .map_or(bytes, |(body, _)| body);
    let checksum = crc32fast::hash(body).to_le_bytes();
    restore(&[body, &checksum].concat());
}

fn restore(bytes: &[u8]) {
    let rules = Rules::parse(LIMITS).expect("good limits");
    let restored = engine(&rules.limits);
    let Ok(found) = restored.restore(bytes, &[], NOW) else {
        return;
    };
    assert!(found.counters <= 1_000);
    let now = NOW.max(found.clock);
    for limit in ["a", "b"] {
        let of = [Target {
            limit,
            counter: "k",
        }];
        if let Ok(slot) = restored.delay(&of, 1, now) {
            assert!(slot.at >= now);
        }
    }
    let again = engine(&rules.limits).restore(&save(&restored), &[], now);
    assert!(again.is_ok(), "{again:?}");
}

/// A snapshot of an engine that has been used, for a corpus.
#[must_use]
pub fn used_snapshot() -> Vec<u8> {
    let rules = Rules::parse(LIMITS).expect("good limits");
    let used = engine(&rules.limits);
    for limit in ["a", "b"] {
        for counter in ["k", "l"] {
            let of = [Target { limit, counter }];
            used.increment(&of, 2, None, NOW).expect("it is counted");
        }
    }
    let rule = CallRule::new(60, 9).expect("within bounds");
    let name = rule.limit_of("called");
    let of = [Target {
        limit: &name,
        counter: "k",
    }];
    used.increment(&of, 2, None, NOW).expect("it is counted");
    save(&used)
}
