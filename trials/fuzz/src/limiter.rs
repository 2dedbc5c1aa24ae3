//! What clients and operators of a limiter write: calls, files of limits, and the records in its directory.

use std::{collections::BTreeMap, time::Duration};

use limiter::serve::{
    engine::{self, CallRule, Counting, Engine, Feedback, LIMIT_BYTES_MAX, Options, Target},
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
global = true
rules = [{ id = 'all', rate = '100/s' }]
";

fn engine(limits: &[NamedLimit]) -> Engine {
    let options = Options {
        counters_max: 1_000,
        counters_bytes_max: 1 << 20,
        feedback_ttl_max: Duration::from_secs(3_600),
        counting: Counting::Local,
        is_saved: true,
    };
    Engine::new(options, limits)
}

/// Records by their keys.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn save(engine: &Engine, records: &mut Records) {
    for (key, value) in engine.take_changes() {
        match value {
            Some(value) => records.insert(key, value),
            None => records.remove(&key),
        };
    }
}

/// A path and a query, an empty line, a body: names of a call are within their bounds, and what is refused is the client's error, in
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
        Err(errors) => return assert!(!errors.0.is_empty()),
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
        Err(errors) => return assert!(!errors.0.is_empty()),
    };
    if !engine::errors(&rules).is_empty() {
        return;
    }
    let engine = engine(&rules.limits);
    let limits = rules.limits.iter();
    for limit in limits.filter(|limit| !limit.from_call) {
        let of = [Target {
            limit: &limit.name,
            counter: "k",
        }];
        let reserved = engine.reserve(None, &of, 1, Duration::ZERO, NOW);
        let peeked = engine.delay(&of, 1, true, NOW);
        assert!(reserved.is_err() || peeked.is_ok_and(|slot| slot.at >= NOW));
    }
}

/// A record in the directory of a limiter, in the place of each of its own, by key and by value: it is refused, or an engine goes on from it, and what it saves
/// then is restored as well.
///
/// # Panics
/// When that does not hold.
pub fn record(bytes: &[u8]) {
    let used = used_records();
    for (key, value) in &used {
        for (key, value) in [(key.as_slice(), bytes), (bytes, value.as_slice())] {
            let mut records = used.clone();
            records.insert(key.to_vec(), value.to_vec());
            restore(records);
        }
    }
}

fn restore(mut records: Records) {
    let rules = Rules::parse(LIMITS).expect("good limits");
    let restored = engine(&rules.limits);
    let read: Vec<_> = records.clone().into_iter().collect();
    let Ok(found) = restored.restore(&read, NOW) else {
        return;
    };
    assert!(found.counters <= 1_000);
    let now = NOW.max(found.clock);
    for limit in ["a", "b"] {
        let of = [Target {
            limit,
            counter: "k",
        }];
        if let Ok(slot) = restored.delay(&of, 1, true, now) {
            assert!(slot.at >= now);
        }
    }
    save(&restored, &mut records);
    let read: Vec<_> = records.into_iter().collect();
    let again = engine(&rules.limits).restore(&read, now);
    assert!(again.is_ok(), "{again:?}");
}

/// The records of an engine that has been used.
#[must_use]
pub fn used_records() -> Records {
    let rules = Rules::parse(LIMITS).expect("good limits");
    let used = engine(&rules.limits);
    for limit in ["a", "b"] {
        for counter in ["k", "l"] {
            let of = [Target { limit, counter }];
            used.increment(&of, 2, None, NOW).expect("it is counted");
        }
    }
    let rule = CallRule::new(60, 9).expect("within bounds");
    let name = rule.limit_name("called");
    let of = [Target {
        limit: &name,
        counter: "k",
    }];
    used.increment(&of, 2, None, NOW).expect("it is counted");
    let said = Feedback {
        status: 429,
        ..Feedback::default()
    };
    used.apply_feedback(of[0], said, NOW)
        .expect("there is such a limit");
    let mut records = Records::new();
    save(&used, &mut records);
    records
}
