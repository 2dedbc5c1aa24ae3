//! Fuzz targets of the limiter's parsers of requests, limits files, and stored records.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use limiter::serve::{
    engine::{self, CallRule, Engine, Feedback, LIMIT_BYTES_MAX, Options, Target},
    problem::Problem,
    request::{LimitedCall, Path, Query},
};
use limits::rules::{NamedLimit, Rules, Table, Tables};

/// A time in 2023, in nanoseconds since the Unix epoch.
const NOW: u64 = 1_700_000_000_000_000_000;

static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::parse(LIMITS).expect("valid limits"));

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
        counted_by_server: false,
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

/// Parses a path with a query, an empty line, and a body. Names must not exceed their maximum length, and a rejection must be a client
/// error with a reason.
///
/// # Panics
/// If the property does not hold.
pub fn call(bytes: &[u8]) {
    let split = bytes.windows(2).position(|it| it == b"\n\n");
    let (target, body) = match split {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let Ok(target) = std::str::from_utf8(target) else {
        return;
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match parse(path, query, body) {
        Ok(None) => {}
        Ok(Some(call)) => {
            assert!(call.counters.len() <= 16);
            for Target { limit, counter } in call.counters {
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

fn parse(path: &str, query: &str, body: &[u8]) -> Result<Option<LimitedCall>, Problem> {
    let Path::Call(endpoint, counter) = Path::of(path)? else {
        return Ok(None);
    };
    LimitedCall::read(endpoint, counter, Query::of(query)?, body, NOW).map(Some)
}

/// Loads a limits file. It must be rejected with a reason, or an engine must accept calls under its limits. Its JSON form must have the
/// same meaning.
///
/// # Panics
/// If the property does not hold.
pub fn limits_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let table = match Tables::parse(text) {
        Ok((table, _)) => table,
        Err(errors) => return assert!(!errors.0.is_empty()),
    };
    let read = |table: &Table| Rules::read(table.clone(), Tables::default());
    // JSON lacks TOML's dates and special numbers, which limits do not use.
    if let Ok(json) = serde_json::to_vec(&table)
        && let Ok(of_json) = serde_json::from_slice::<Table>(&json)
        && let (Ok(rules), Ok(again)) = (read(&table), read(&of_json))
    {
        assert_eq!(rules, again);
    }
    let rules = match read(&table) {
        Ok(rules) => rules,
        Err(errors) => return assert!(!errors.0.is_empty()),
    };
    let Ok(rules) = engine::checked(rules) else {
        return;
    };
    let engine = engine(&rules.limits);
    let limits = rules.limits.iter();
    for limit in limits.filter(|limit| !limit.from_call) {
        let of = [Target {
            limit: limit.name.clone(),
            counter: "k".to_owned(),
        }];
        let reserved = engine.reserve(None, &of, 1, Duration::ZERO, NOW);
        let peeked = engine.delay(&of, 1, true, NOW);
        assert!(reserved.is_err() || peeked.is_ok_and(|slot| slot.at >= NOW));
    }
}

/// Replaces the key or value of each record of a limiter with the bytes. An engine must reject the records, or restore them. The records
/// that this engine then saves must be restored as well.
///
/// # Panics
/// If the property does not hold.
pub fn record(bytes: &[u8]) {
    static USED: LazyLock<Records> = LazyLock::new(used_records);
    for (key, value) in &*USED {
        for (key, value) in [(key.as_slice(), bytes), (bytes, value.as_slice())] {
            let mut records = USED.clone();
            records.insert(key.to_vec(), value.to_vec());
            restore(records);
        }
    }
}

fn restore(mut records: Records) {
    let restored = engine(&RULES.limits);
    let read: Vec<_> = records.clone().into_iter().collect();
    let Ok(found) = restored.restore(&read, NOW) else {
        return;
    };
    assert!(found.counters <= 1_000);
    let now = NOW.max(found.clock);
    for limit in ["a", "b"] {
        let of = [Target {
            limit: limit.to_owned(),
            counter: "k".to_owned(),
        }];
        if let Ok(slot) = restored.delay(&of, 1, true, now) {
            assert!(slot.at >= now);
        }
    }
    save(&restored, &mut records);
    let read: Vec<_> = records.into_iter().collect();
    let again = engine(&RULES.limits).restore(&read, now);
    assert!(again.is_ok(), "{again:?}");
}

/// The records of an engine that has been used.
#[must_use]
pub fn used_records() -> Records {
    let used = engine(&RULES.limits);
    for limit in ["a", "b"] {
        for counter in ["k", "l"] {
            let of = [Target {
                limit: limit.to_owned(),
                counter: counter.to_owned(),
            }];
            used.increment(&of, 2, None, NOW)
                .expect("the call is counted");
        }
    }
    let rule = CallRule::new(60, 9).expect("the rule is valid");
    let name = rule.limit_name("called");
    let of = [Target {
        limit: name,
        counter: "k".to_owned(),
    }];
    used.increment(&of, 2, None, NOW)
        .expect("the call is counted");
    let feedback = Feedback {
        status: 429,
        ..Feedback::default()
    };
    used.apply_feedback(&of[0], &feedback, NOW)
        .expect("the limit exists");
    let mut records = Records::new();
    save(&used, &mut records);
    records
}
