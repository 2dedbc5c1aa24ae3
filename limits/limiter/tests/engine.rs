//! The limiter without a network: no slot twice, several limits at once, and no quota exceeded whenever it is killed.

#[path = "engine/from_call.rs"]
mod from_call;
#[path = "engine/killed.rs"]
mod killed;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use limiter::serve::engine::{Binding, Counting, Engine, Options, Refused, Said, Slot, Target};
use limits::{
    RecordOutcome,
    rules::{NamedLimit, Rules},
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const HOUR: Duration = Duration::from_secs(3_600);

fn limits(text: &str) -> Vec<NamedLimit> {
    Rules::parse(text).expect("good limits").limits
}

const OPTIONS: Options = Options {
    counters_max: 10_000,
    counters_bytes_max: usize::MAX,
    feedback_ttl_max: HOUR,
    counting: Counting::Here,
    is_saved: true,
};

fn fresh(text: &str) -> Engine {
    Engine::new(OPTIONS, &limits(text))
}

/// As they are restored.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// The records that an engine wrote.
#[derive(Default)]
struct Disk(BTreeMap<Vec<u8>, Vec<u8>>);

impl Disk {
    fn of(engine: &Engine) -> Self {
        let mut disk = Self::default();
        disk.write(engine);
        disk
    }

    /// Writes what changed.
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

    /// An engine that starts with it at this moment, and the time that it goes on at.
    #[track_caller]
    fn start(&self, options: Options, text: &str, now: u64) -> (Engine, u64) {
        let engine = Engine::new(options, &limits(text));
        let restored = engine.restore(&self.records(), now);
        let clock = restored.expect("good records").clock;
        (engine, now.max(clock))
    }
}

const fn of<'a>(limit: &'a str, counter: &'a str) -> Target<'a> {
    Target { limit, counter }
}

fn rule(limit: &str, rule: &str) -> Binding {
    Binding::Rule {
        limit: Arc::from(limit),
        rule: Arc::from(rule),
    }
}

#[track_caller]
fn slot(engine: &Engine, of: &[Target<'_>], now: u64) -> Slot {
    engine.reserve(None, of, 1, HOUR, now).expect("a slot")
}

#[test]
fn two_clients_never_get_one_slot() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s', burst = 1 }]";
    let engine = fresh(text);
    let taken = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let mine: Vec<u64> = (0..400)
                    .map(|_| slot(&engine, &[of("a", "k")], START).at)
                    .collect();
                assert!(mine.is_sorted());
                taken.lock().unwrap().extend(mine);
            });
        }
    });
    let taken = taken.into_inner().unwrap();
    let expected: BTreeSet<u64> = (0..20_000).map(|it| START + it * SECOND / 1_000).collect();
    assert!(taken == expected, "{} slots", taken.len());
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
fn many_who_wait_under_one_limit_hold_up_nobody_else_under_a_limit_of_every_call() {
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
fn nothing_is_learned_of_a_limit_of_every_call() {
    let engine = fresh(SEVERAL);
    let said = Said {
        status: 429,
        ..Said::default()
    };
    let (is_learned, next) = engine.feedback(of("whole", "k"), said, START).unwrap();
    assert!(!is_learned);
    assert_eq!(next.at, START);
}

#[test]
fn answer_is_the_latest_over_all_limits_of_the_call_and_names_it() {
    let engine = fresh(SEVERAL);
    let both = [of("a", "k"), of("b", "k")];
    assert_eq!(slot(&engine, &both, START).binding, None);
    let second = slot(&engine, &both, START);
    assert_eq!(second.at, START + 10 * SECOND);
    assert_eq!(second.binding, Some(rule("b", "slow")));
    // It is told before it is taken, and asking takes nothing.
    for _ in 0..3 {
        let next = engine
            .delay(&[of("a", "k")], 1, START + 10 * SECOND)
            .unwrap();
        assert_eq!(
            (next.at, next.binding),
            (START + 11 * SECOND, Some(rule("a", "peak")))
        );
    }
    let third = slot(&engine, &[of("a", "k")], START + 11 * SECOND);
    assert_eq!((third.at, third.binding), (START + 11 * SECOND, None));
    let fourth = engine.reserve(None, &[of("a", "k")], 1, HOUR, START + 11 * SECOND);
    let Err(Refused::OverMaxWait(fourth)) = fourth else {
        panic!("{fourth:?}");
    };
    assert_eq!(
        (fourth.at, fourth.binding),
        (START + 86_400 * SECOND, Some(rule("a", "day")))
    );
    // Others have counters of their own, and share what is of every call.
    let now = START + 20 * SECOND;
    let at: Vec<u64> = ["x", "y", "z"]
        .map(|counter| slot(&engine, &[of("a", counter)], now).at)
        .to_vec();
    assert_eq!(at, [now, now, now + SECOND / 2]);
}

#[test]
fn refused_call_takes_nothing_of_any_limit() {
    let engine = fresh(SEVERAL);
    slot(&engine, &[of("b", "k")], START);
    let both = [of("a", "k"), of("b", "k")];
    for _ in 0..5 {
        let refused = engine.reserve(None, &both, 1, Duration::from_secs(5), START);
        let Err(Refused::OverMaxWait(slot)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            (slot.at, slot.binding),
            (START + 10 * SECOND, Some(rule("b", "slow")))
        );
    }
    assert_eq!(engine.delay(&[of("a", "k")], 1, START).unwrap().at, START);
    let unknown = engine.delay(&[of("a", "k"), of("c", "k")], 1, START);
    assert_eq!(unknown, Err(Refused::UnknownLimit("c".to_owned())));
    let too_many = engine.delay(&[of("a", "k")], 2, START);
    assert!(
        matches!(too_many, Err(Refused::TooMany { most: 1, .. })),
        "{too_many:?}"
    );
}

/// The paper's figure 9: 10 are allowed in 4 units of time, and 10 are in the window; two steps later 4 are.
#[test]
fn next_slot_is_found_by_moving_the_window_step_by_step() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/4s', algorithm = 'step_window', step = '1s' }]";
    let engine = fresh(text);
    // What was counted in a step leaves the window 4 s after it was.
    for (step, requests) in [(0, 1), (1, 5), (2, 2), (3, 2)] {
        let told = engine.increment(&[of("a", "k")], requests, None, START + step * SECOND);
        assert_eq!(told.unwrap().0, RecordOutcome::Counted);
    }
    let now = START + 3 * SECOND + SECOND / 2;
    let next = engine.delay(&[of("a", "k")], 1, now).unwrap();
    assert_eq!(
        (next.at, next.binding),
        (START + 4 * SECOND, Some(rule("a", "r")))
    );
    assert_eq!(
        engine.delay(&[of("a", "k")], 6, now).unwrap().at,
        START + 5 * SECOND
    );
    assert_eq!(
        engine.delay(&[of("a", "k")], 9, now).unwrap().at,
        START + 7 * SECOND
    );
}

#[test]
fn told_times_are_counted_when_they_were_and_not_in_the_future() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/4s', algorithm = 'step_window', step = '1s' }]";
    let engine = fresh(text);
    let tell = |at: u64| engine.increment(&[of("a", "k")], 10, Some(at), START);
    assert_eq!(tell(START + SECOND + 1), Err(Refused::TooEarly));
    assert_eq!(tell(START - 5 * SECOND).unwrap().0, RecordOutcome::TooOld);
    let (recorded, next) = tell(START - 3 * SECOND).unwrap();
    assert_eq!(
        (recorded, next.at),
        (RecordOutcome::Counted, START + SECOND)
    );
    let counts = engine.limits_now().limits[0].counts;
    assert_eq!(
        (counts.too_early, counts.too_old, counts.counted),
        (1, 1, 1)
    );
}

#[test]
fn what_partners_say_only_lowers_what_may_go() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '100/s', burst = 100 }]";
    let engine = fresh(text);
    let left = |left, seconds| Said {
        status: 200,
        left: Some((left, Duration::from_secs(seconds))),
        ..Said::default()
    };
    let (learned, next) = engine.feedback(of("a", "k"), left(2, 10), START).unwrap();
    assert!(learned && next.at == START);
    assert_eq!(slot(&engine, &[of("a", "k")], START).at, START);
    assert_eq!(slot(&engine, &[of("a", "k")], START).at, START);
    let third = slot(&engine, &[of("a", "k")], START);
    assert_eq!(
        (third.at, third.binding),
        (START + 10 * SECOND, Some(Binding::Learned))
    );
    assert_eq!(slot(&engine, &[of("a", "other")], START).at, START);
    engine
        .feedback(of("a", "k"), left(500, 600), START + SECOND)
        .unwrap();
    let refused = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, START + SECOND);
    let Err(Refused::OverMaxWait(slot)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(slot.binding, Some(Binding::Learned));
}

#[test]
fn counters_are_bounded_and_idle_ones_make_room() {
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
    assert_eq!(full, Err(Refused::NoRoom));
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
fn slot_far_ahead_closes_a_limit_of_every_call_neither_after_a_crash_nor_a_change() {
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
    // What is told counts before those slots as well.
    let whole = [of("whole", "")];
    engine.increment(&whole, 10, None, now + SECOND).unwrap();
    assert!(slot(&engine, &[of("fast", "c")], now + SECOND).at > now + SECOND);
}

#[test]
fn full_queue_says_when_it_has_room() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/s', algorithm = 'leaky_bucket', capacity = 5, when_full = 'queue' }]";
    let engine = fresh(text);
    let refused = (0..9).find_map(|_| engine.reserve(None, &[of("a", "k")], 1, HOUR, START).err());
    let Some(Refused::OverMaxWait(Slot { at, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(at, START + SECOND / 10);
}
