//! Tests of the limiter core without network and disk: slots, several limits per call, feedback, and recovery from records.

mod clock_recovery;
mod from_call;
mod random_kills;
mod recovery;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use limiter::serve::engine::{CallError, Engine, FEEDBACK, Feedback, Options, Slot, Target};
use limits::{
    RecordOutcome,
    rules::{NamedLimit, Rules},
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const HOUR: Duration = Duration::from_secs(3_600);

fn limits(text: &str) -> Vec<NamedLimit> {
    Rules::parse(text).expect("valid limits").limits
}

const OPTIONS: Options = Options {
    counters_max: 10_000,
    counters_bytes_max: usize::MAX,
    counted_by_server: false,
};

fn fresh(text: &str) -> Engine {
    Engine::new(OPTIONS, &limits(text))
}

/// Records, sorted by key.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// The records written by an engine.
#[derive(Default)]
struct Disk(BTreeMap<Vec<u8>, Vec<u8>>);

impl Disk {
    fn of(engine: &Engine) -> Self {
        let mut disk = Self::default();
        disk.write(engine);
        disk
    }

    /// Writes all changes of the engine.
    fn write(&mut self, engine: &Engine) {
        for (key, value) in engine.take_changes() {
            match value {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }

    fn records(&self) -> Records {
        let records = self.0.iter();
        records
            .map(|(it, value)| (it.clone(), value.clone()))
            .collect()
    }

    /// Starts an engine from the records at `now`. Returns it with the time at which its clock continues.
    #[track_caller]
    fn start(&self, options: Options, text: &str, now: u64) -> (Engine, u64) {
        let engine = Engine::new(options, &limits(text));
        let restored = engine.restore(&self.records(), now);
        let clock = restored.expect("valid records").clock;
        (engine, now.max(clock))
    }
}

fn of(limit: &str, counter: &str) -> Target {
    Target {
        limit: limit.to_owned(),
        counter: counter.to_owned(),
    }
}

fn rule(limit: &str, rule: &str) -> Arc<str> {
    format!("{limit}/{rule}").into()
}

#[track_caller]
fn slot(engine: &Engine, of: &[Target], now: u64) -> Slot {
    engine.reserve(None, of, 1, HOUR, now).expect("a slot")
}

#[test]
fn slot_is_granted_to_one_client_only() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s', burst = 1 }]";
    let engine = fresh(text);
    let slots = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let mine: Vec<u64> = (0..400)
                    .map(|_| slot(&engine, &[of("a", "k")], START).at)
                    .collect();
                assert!(mine.is_sorted());
                slots.lock().unwrap().extend(mine);
            });
        }
    });
    let slots = slots.into_inner().unwrap();
    let expected: BTreeSet<u64> = (0..20_000).map(|it| START + it * SECOND / 1_000).collect();
    assert!(slots == expected, "{} slots", slots.len());
}

const SEVERAL: &str = "
[limits.a]
rules = [{ id = 'peak', rate = '1/s' }, { id = 'day', rate = '3/day', algorithm = 'fixed_window', aligned = 'first_call' }]
[limits.b]
rules = [{ id = 'slow', rate = '1/10s' }]
[limits.whole]
global = true
rules = [{ id = 'all', rate = '2/s', burst = 2 }]
";

#[test]
fn waiting_calls_of_one_counter_do_not_block_others_under_a_global_limit() {
    let text = "
        [limits.a]
        rules = [{ id = 'slow', rate = '10/s' }]
        [limits.whole]
        global = true
        rules = [{ id = 'all', rate = '1000/s', burst = 10 }]
    ";
    let engine = fresh(text);
    for _ in 0..1_000 {
        slot(&engine, &[of("a", "k")], START);
    }
    assert_eq!(slot(&engine, &[of("a", "other")], START).at, START);
}

#[test]
fn feedback_has_no_effect_on_a_global_limit() {
    let engine = fresh(SEVERAL);
    let refused = Feedback {
        status: 429,
        ..Feedback::default()
    };
    let target = of("whole", "k");
    assert!(!engine.apply_feedback(&target, &refused, START).unwrap());
    assert_eq!(engine.delay(&[target], 1, true, START).unwrap().at, START);
}

#[test]
fn slot_is_the_latest_over_all_limits_of_the_call_and_names_the_rule() {
    let engine = fresh(SEVERAL);
    let both = [of("a", "k"), of("b", "k")];
    assert_eq!(slot(&engine, &both, START).binding, None);
    let second = slot(&engine, &both, START);
    assert_eq!(second.at, START + 10 * SECOND);
    assert_eq!(second.binding, Some(rule("b", "slow")));
    // A delay query uses no quota.
    for _ in 0..3 {
        let next = engine
            .delay(&[of("a", "k")], 1, true, START + 10 * SECOND)
            .unwrap();
        assert_eq!(
            (next.at, next.binding),
            (START + 11 * SECOND, Some(rule("a", "peak")))
        );
    }
    let third = slot(&engine, &[of("a", "k")], START + 11 * SECOND);
    assert_eq!((third.at, third.binding), (START + 11 * SECOND, None));
    let fourth = engine.reserve(None, &[of("a", "k")], 1, HOUR, START + 11 * SECOND);
    let Err(CallError::OverMaxWait(fourth)) = fourth else {
        panic!("{fourth:?}");
    };
    assert_eq!(
        (fourth.at, fourth.binding),
        (START + 86_400 * SECOND, Some(rule("a", "day")))
    );
    // Other counters have their own quotas, and share the global limit.
    let now = START + 20 * SECOND;
    let at: Vec<u64> = ["x", "y", "z"]
        .map(|counter| slot(&engine, &[of("a", counter)], now).at)
        .to_vec();
    assert_eq!(at, [now, now, now + SECOND / 2]);
}

#[test]
fn refused_call_uses_no_quota_of_any_limit() {
    let engine = fresh(SEVERAL);
    slot(&engine, &[of("b", "k")], START);
    let both = [of("a", "k"), of("b", "k")];
    for _ in 0..5 {
        let refused = engine.reserve(None, &both, 1, Duration::from_secs(5), START);
        let Err(CallError::OverMaxWait(slot)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            (slot.at, slot.binding),
            (START + 10 * SECOND, Some(rule("b", "slow")))
        );
    }
    assert_eq!(
        engine.delay(&[of("a", "k")], 1, true, START).unwrap().at,
        START
    );
    let unknown = engine.delay(&[of("a", "k"), of("c", "k")], 1, true, START);
    assert_eq!(unknown, Err(CallError::UnknownLimit("c".to_owned())));
    let too_many = engine.delay(&[of("a", "k")], 2, true, START);
    assert!(
        matches!(too_many, Err(CallError::OverBurst { max_burst: 1, .. })),
        "{too_many:?}"
    );
}

/// Figure 9 of the article, with a limit of 10 in 4 units of time: 10 requests are in the window; two steps later, 4.
#[test]
fn step_window_frees_quota_step_by_step() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/4s', algorithm = 'step_window', step = '1s' }]";
    let engine = fresh(text);
    // Requests leave the window 4 s after their step.
    for (step, requests) in [(0, 1), (1, 5), (2, 2), (3, 2)] {
        let recorded = engine.increment(&[of("a", "k")], requests, None, START + step * SECOND);
        assert_eq!(recorded.unwrap().0, RecordOutcome::Counted);
    }
    let now = START + 3 * SECOND + SECOND / 2;
    let next = engine.delay(&[of("a", "k")], 1, true, now).unwrap();
    assert_eq!(
        (next.at, next.binding),
        (START + 4 * SECOND, Some(rule("a", "r")))
    );
    assert_eq!(
        engine.delay(&[of("a", "k")], 6, true, now).unwrap().at,
        START + 5 * SECOND
    );
    assert_eq!(
        engine.delay(&[of("a", "k")], 9, true, now).unwrap().at,
        START + 7 * SECOND
    );
}

#[test]
fn reported_calls_count_at_their_time_unless_it_is_in_the_future() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/4s', algorithm = 'step_window', step = '1s' }]";
    let engine = fresh(text);
    let report = |at: u64| engine.increment(&[of("a", "k")], 10, Some(at), START);
    assert_eq!(report(START + SECOND + 1), Err(CallError::TooEarly));
    assert_eq!(report(START - 5 * SECOND).unwrap().0, RecordOutcome::TooOld);
    let (recorded, next) = report(START - 3 * SECOND).unwrap();
    assert_eq!(
        (recorded, next.at),
        (RecordOutcome::Counted, START + SECOND)
    );
    let counts = engine.usage_summary(START).limits[0].counts;
    assert_eq!(
        (counts.too_early, counts.too_old, counts.counted),
        (1, 1, 1)
    );
}

#[test]
fn feedback_only_lowers_the_limit() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '100/s', burst = 100 }]";
    let engine = fresh(text);
    let remaining = |requests, seconds| Feedback {
        status: 200,
        windows: vec![(requests, Duration::from_secs(seconds))],
    };
    let target = of("a", "k");
    let applied = engine.apply_feedback(&target, &remaining(2, 10), START);
    assert_eq!(applied, Ok(true));
    assert_eq!(slot(&engine, &[of("a", "k")], START).at, START);
    assert_eq!(slot(&engine, &[of("a", "k")], START).at, START);
    let third = slot(&engine, &[of("a", "k")], START);
    assert_eq!(
        (third.at, third.binding),
        (START + 10 * SECOND, Some(FEEDBACK.into()))
    );
    assert_eq!(slot(&engine, &[of("a", "other")], START).at, START);
    engine
        .apply_feedback(&target, &remaining(500, 600), START + SECOND)
        .unwrap();
    let refused = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, START + SECOND);
    let Err(CallError::OverMaxWait(slot)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(slot.binding, Some(FEEDBACK.into()));
}

#[test]
fn counters_are_bounded_and_idle_ones_are_evicted() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
    let options = Options {
        counters_max: 100,
        ..OPTIONS
    };
    let engine = Engine::new(options, &limits(text));
    for number in 0..100 {
        slot(&engine, &[of("a", &number.to_string())], START);
    }
    let full = engine.reserve(None, &[of("a", "more")], 1, HOUR, START);
    assert_eq!(full, Err(CallError::CounterLimit));
    assert_eq!(slot(&engine, &[of("a", "7")], START).at, START + SECOND);
    let later = START + 5 * SECOND;
    assert_eq!(slot(&engine, &[of("a", "more")], later).at, later);
}

const BOOKED: &str = "
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
[limits.fast]
rules = [{ id = 'r', rate = '100/s', burst = 100 }]
[limits.whole]
global = true
rules = [{ id = 'all', rate = '1000/s', burst = 10 }]
";

#[test]
fn slot_far_ahead_does_not_block_a_global_limit_after_a_crash_or_a_change() {
    let engine = fresh(BOOKED);
    for hour in 0..20 {
        let slot = engine.reserve(None, &[of("slow", "a")], 1, 24 * HOUR, START);
        assert_eq!(slot.unwrap().at, START + hour * 3_600 * SECOND);
    }
    let disk = Disk::of(&engine);
    let now = START + SECOND;
    engine.change(&limits(&BOOKED.replace("1000/s", "500/s")), Vec::new(), now);
    assert_eq!(slot(&engine, &[of("fast", "b")], now).at, now);
    for text in [BOOKED, &BOOKED.replace("1000/s", "500/s")] {
        let (other, now) = disk.start(OPTIONS, text, now);
        assert_eq!(slot(&other, &[of("fast", "b")], now).at, now);
    }
    // Reported calls count before these slots, too.
    let whole = [of("whole", "")];
    engine.increment(&whole, 10, None, now + SECOND).unwrap();
    assert!(slot(&engine, &[of("fast", "c")], now + SECOND).at > now + SECOND);
}

#[test]
fn refusal_by_a_full_queue_has_the_time_of_free_capacity() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/s', algorithm = 'leaky_bucket', capacity = 5, when_full = 'queue' }]";
    let engine = fresh(text);
    let refused = (0..9).find_map(|_| engine.reserve(None, &[of("a", "k")], 1, HOUR, START).err());
    let Some(CallError::OverMaxWait(Slot { at, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(at, START + SECOND / 10);
}
