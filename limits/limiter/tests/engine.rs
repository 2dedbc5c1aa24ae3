//! The limiter without a network: no slot twice, several limits at once, and no quota exceeded whenever it is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    num::NonZero,
    os::unix::fs::FileExt as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use limiter::serve::engine::{
    Binding, CallRule, Counting, Engine, Options, Refused, Said, Slot, Target,
};
use limits::{
    Algorithm, Aligned, Recorded,
    rules::{NamedLimit, Rules},
};
use limits_sharing::exact::{Answer, Outcome, Question};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const HOUR: Duration = Duration::from_secs(3_600);

fn limits(text: &str) -> Vec<NamedLimit> {
    Rules::parse(text).expect("good limits").limits
}

const OPTIONS: Options = Options {
    counters_max: 10_000,
    counters_bytes_max: usize::MAX,
    learned_max: HOUR,
    counting: Counting::Here,
};

fn fresh(text: &str) -> Engine {
    Engine::new(OPTIONS, &limits(text))
}

/// What an engine wrote: the newest snapshot that is on the disk, and the journals with their numbers.
#[derive(Default)]
struct Disk {
    snapshot: Vec<u8>,
    journals: Vec<(u64, File)>,
}

impl Disk {
    /// Has an engine make a snapshot, and its number.
    fn begin(&mut self, engine: &Engine) -> (u64, Vec<u8>) {
        let number = self.journals.last().map_or(1, |(number, _)| number + 1);
        let journal = tempfile::tempfile().expect("a file");
        let ours = journal.try_clone().expect("the same file");
        self.journals.push((number, ours));
        (number, engine.snapshot(number, journal))
    }

    /// That snapshot is on the disk.
    fn end(&mut self, (number, snapshot): (u64, Vec<u8>)) {
        self.snapshot = snapshot;
        self.journals.retain(|(it, _)| *it >= number);
    }

    fn of(engine: &Engine) -> Self {
        let mut disk = Self::default();
        let snapshot = disk.begin(engine);
        disk.end(snapshot);
        disk
    }

    /// An engine that starts with it at this moment, and the time that it goes on at.
    #[track_caller]
    fn start(&self, options: Options, text: &str, now: u64) -> (Engine, u64) {
        let engine = Engine::new(options, &limits(text));
        let restored = engine.restore(&self.snapshot, &self.journals(), now);
        let clock = restored.expect("a good snapshot").clock;
        (engine, now.max(clock))
    }

    fn journals(&self) -> Vec<(u64, Vec<u8>)> {
        let journals = self.journals.iter().map(|(number, file)| {
            let length = file.metadata().expect("a file").len();
            let mut bytes = vec![0; usize::try_from(length).expect("a small file")];
            file.read_exact_at(&mut bytes, 0).expect("its bytes");
            (*number, bytes)
        });
        journals.collect()
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
    engine.reserve(of, 1, HOUR, now).expect("a slot")
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
every_call = true
rules = [{ id = 'all', rate = '2/s', burst = 2 }]
";

#[test]
fn many_who_wait_under_one_limit_hold_up_nobody_else_under_a_limit_of_every_call() {
    let text = "
        [limits.a]
        rules = [{ id = 'slow', rate = '10/s' }]
        [limits.whole]
        every_call = true
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
    let fourth = engine.reserve(&[of("a", "k")], 1, HOUR, START + 11 * SECOND);
    let Err(Refused::OverHorizon(fourth)) = fourth else {
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
        let refused = engine.reserve(&both, 1, Duration::from_secs(5), START);
        let Err(Refused::OverHorizon(slot)) = refused else {
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
        assert_eq!(told.unwrap().0, Recorded::Counted);
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
    assert_eq!(tell(START - 5 * SECOND).unwrap().0, Recorded::TooOld);
    let (recorded, next) = tell(START - 3 * SECOND).unwrap();
    assert_eq!((recorded, next.at), (Recorded::Counted, START + SECOND));
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
    let refused = engine.reserve(&[of("a", "k")], 1, Duration::ZERO, START + SECOND);
    let Err(Refused::OverHorizon(slot)) = refused else {
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
    let full = engine.reserve(&[of("a", "more")], 1, HOUR, START);
    assert_eq!(full, Err(Refused::NoRoom));
    assert_eq!(slot(&engine, &[of("a", "7")], START).at, START + SECOND);
    let later = START + 5 * SECOND;
    assert_eq!(slot(&engine, &[of("a", "more")], later).at, later);
}

const OF_CALLS: &str = "
[limits.partner]
from_call = true
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
";

/// The limit of a call that says its rule.
fn of_call(interval: u64, requests: u64) -> String {
    let rule = CallRule::new(interval, requests).expect("within bounds");
    rule.limit_of("partner")
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(answer: Result<T, Refused>, words: &str) {
    match answer {
        Err(Refused::RuleOfCall(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rules_of_calls_are_bounded_and_those_out_of_use_make_room() {
    let engine = fresh(OF_CALLS);
    // Rules that were only asked about are not in use, but each stays for a while: all limits are made anew with a new one.
    let ask = |requests: u64, now: u64| engine.delay(&[of(&of_call(60, requests), "k")], 1, now);
    for requests in 1..=64 {
        assert!(ask(requests, START).is_ok());
    }
    let version = engine.version();
    is_refused(ask(65, START + 600 * SECOND - 1), "64 different rules");
    assert_eq!(engine.version(), version);
    let use_rule = |interval: u64, now: u64| {
        let limit = of_call(interval, 1);
        engine.increment(&[of(&limit, &interval.to_string())], 1, None, now)
    };
    let now = START + 600 * SECOND;
    for interval in 1..=64 {
        use_rule(interval, now).expect("there is room");
    }
    is_refused(use_rule(65, now), "64 different rules");
    // A rule that is known is taken for another counter.
    let known = of_call(7, 1);
    assert_eq!(slot(&engine, &[of(&known, "new")], now).at, now);
    let now = now + 600 * SECOND;
    use_rule(65, now).expect("all windows are over");
    for interval in 66..=128 {
        use_rule(interval, now).expect("all were dropped");
    }
}

#[test]
fn booked_counter_keeps_its_rule() {
    let engine = fresh(OF_CALLS);
    let (first, other) = (of_call(1, 9), of_call(60, 9));
    slot(&engine, &[of("slow", "k")], START);
    let booked = slot(&engine, &[of(&first, "k"), of("slow", "k")], START).at;
    assert_eq!(booked, START + 3_600 * SECOND);
    for now in [START, START + 10 * SECOND, booked] {
        is_refused(engine.delay(&[of(&other, "k")], 1, now), "rule 9/1s");
    }
    assert!(engine.delay(&[of(&other, "k")], 1, booked + SECOND).is_ok());
}

#[test]
fn one_of_two_first_calls_with_different_rules_is_refused() {
    let engine = fresh(OF_CALLS);
    // Both know their limits before either is decided.
    let (first, other) = (of_call(60, 1), of_call(60, 2));
    let increment = |limit: &str| engine.increment(&[of(limit, "k")], 1, None, START);
    increment(&first).expect("it is the first");
    is_refused(increment(&other), "partner/k is in use under rule 1/60s");
}

#[test]
fn counter_keeps_its_rule_while_a_partner_s_answer_holds() {
    let engine = fresh(OF_CALLS);
    let (first, other) = (of_call(1, 9), of_call(2, 9));
    let said = Said {
        status: 429,
        retry_after: Some(Duration::from_secs(3_600)),
        ..Said::default()
    };
    engine.feedback(of(&first, "k"), said, START).unwrap();
    let call = |now: u64| engine.reserve(&[of(&other, "k")], 1, Duration::ZERO, now);
    is_refused(call(START + 3_599 * SECOND), "rule 9/1s");
    assert!(call(START + 3_600 * SECOND).is_ok());
}

const CRASHES: &str = "
[limits.bucket]
rules = [{ id = 'r', rate = '20/s', burst = 5 }]
[limits.quota]
rules = [{ id = 'r', rate = '40/20s', algorithm = 'fixed_window' }]
[limits.short]
rules = [{ id = 'r', rate = '4/2s', algorithm = 'fixed_window' }]
[limits.first]
rules = [{ id = 'r', rate = '8/2s', algorithm = 'fixed_window', aligned = 'first_call' }]
[limits.stepped]
rules = [{ id = 'r', rate = '4/s', burst = 9, algorithm = 'stepped_bucket' }]
[limits.log]
rules = [{ id = 'r', rate = '9/3s', algorithm = 'sliding_log' }]
[limits.steps]
rules = [{ id = 'r', rate = '12/5s', algorithm = 'step_window' }, { id = 's', rate = '30/s' }]
[limits.whole]
every_call = true
rules = [{ id = 'r', rate = '60/s', burst = 30 }]
";

/// What has reached clients, by limit and counter.
type Gone = BTreeMap<(String, String), Vec<(u64, u64)>>;

/// Of each rule no window has more than it allows.
#[track_caller]
fn check(gone: &mut Gone, text: &str, seed: u64) {
    let all = limits(text);
    for ((limit, counter), gone) in gone {
        gone.sort_unstable();
        let limit = all.iter().find(|it| it.name == *limit);
        let limit = limit.expect("it is there");
        for rule in &limit.rules {
            if let Algorithm::FixedWindow {
                limit: most,
                window,
                aligned: Aligned::Clock,
            } = rule.limit.algorithm
            {
                let mut windows: BTreeMap<u128, u64> = BTreeMap::new();
                for (at, requests) in &*gone {
                    *windows
                        .entry(u128::from(*at) / window.as_nanos())
                        .or_default() += requests;
                }
                let fullest = windows.values().max().copied().unwrap_or(0);
                assert!(
                    fullest <= most,
                    "seed {seed}: {fullest} of {most} for {counter}"
                );
            }
            for window in [SECOND / 10, SECOND, 3 * SECOND, 5 * SECOND, 20 * SECOND] {
                let promised = rule.limit.algorithm.most_in(window);
                let (mut within, mut first) = (0, 0);
                for (at, requests) in &*gone {
                    within += requests;
                    while gone[first].0 + window <= *at {
                        within -= gone[first].1;
                        first += 1;
                    }
                    let name = &limit.name;
                    assert!(
                        within <= promised,
                        "seed {seed}: {within} of {promised} of {name}/{} for {counter} in {window} ns",
                        rule.id
                    );
                }
            }
        }
    }
}

const NAMES: [&str; 7] = [
    "bucket", "quota", "log", "steps", "short", "first", "stepped",
];

#[test]
fn killed_limiter_goes_on_exactly_where_it_was_and_exceeds_no_quota() {
    for seed in 0..60 {
        let mut random = Rng::with_seed(seed);
        let mut now = START;
        let mut gone = Gone::new();
        let mut engine = Engine::new(OPTIONS, &limits(CRASHES));
        let mut disk = Disk::of(&engine);
        for _ in 0..12 {
            // A snapshot in progress.
            let mut next = None;
            for _ in 0..random.usize(1..120) {
                now += random.u64(..SECOND / 20);
                let limit = NAMES[random.usize(..7)];
                let counter = random.u8(..2).to_string();
                let of = [of(limit, &counter)];
                let requests = random.u64(1..=2);
                match random.u8(..12) {
                    0 if next.is_none() => next = Some(disk.begin(&engine)),
                    1 => next.take().into_iter().for_each(|it| disk.end(it)),
                    2 => {
                        let at = now - random.u64(..2 * SECOND);
                        engine.increment(&of, requests, Some(at), now).unwrap();
                    }
                    3 => {
                        let said = Said {
                            status: 200,
                            left: Some((random.u64(..9), Duration::from_secs(3))),
                            ..Said::default()
                        };
                        engine.feedback(of[0], said, now).unwrap();
                    }
                    4 => engine.tidy(now),
                    _ => {
                        let horizon = Duration::from_millis(random.u64(..3_000));
                        let Ok(slot) = engine.reserve(&of, requests, horizon, now) else {
                            continue;
                        };
                        let key = (limit.to_owned(), counter);
                        let whole = ("whole".to_owned(), String::new());
                        for key in [key, whole] {
                            gone.entry(key).or_default().push((slot.at, requests));
                        }
                    }
                }
            }
            // It is killed, with a snapshot in progress or not.
            let (other, _) = disk.start(OPTIONS, CRASHES, now);
            // A stepped bucket that was full may have forgotten when its steps began.
            let exact = NAMES.iter().filter(|it| **it != "stepped");
            for (limit, counter) in exact.flat_map(|it| [(it, "0"), (it, "1")]) {
                let of = [of(limit, counter)];
                for requests in 1..=2 {
                    let slots = [&engine, &other].map(|it| it.delay(&of, requests, now));
                    assert_eq!(slots[0], slots[1], "seed {seed}: {limit}/{counter}");
                }
                let left = [&engine, &other].map(|it| it.left(&of, None, false, now));
                assert_eq!(left[0], left[1], "seed {seed}: {limit}/{counter}");
            }
            engine = other;
            let snapshot = disk.begin(&engine);
            disk.end(snapshot);
            now += random.u64(..SECOND);
        }
        check(&mut gone, CRASHES, seed);
    }
}

#[test]
fn refused_calls_that_count_are_known_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/10s', algorithm = 'sliding_log', count_refused = true }]";
    let engine = fresh(text);
    let disk = Disk::of(&engine);
    for second in 0..5 {
        let now = START + second * SECOND;
        let call = engine.reserve(&[of("a", "k")], 1, Duration::ZERO, now);
        assert_eq!(call.is_ok(), second < 2);
    }
    let now = START + 6 * SECOND;
    let next = engine.delay(&[of("a", "k")], 1, now).unwrap();
    assert_eq!(next.at, START + 13 * SECOND);
    let (other, _) = disk.start(OPTIONS, text, now);
    assert_eq!(other.delay(&[of("a", "k")], 1, now), Ok(next));
}

#[test]
fn refused_call_that_counts_under_one_rule_takes_nothing_of_the_others_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '9/10s', algorithm = 'sliding_log', count_refused = true }, { id = 's', rate = '1/h' }]";
    let engine = fresh(text);
    let disk = Disk::of(&engine);
    let said = Said {
        status: 429,
        retry_after: Some(Duration::from_secs(5)),
        ..Said::default()
    };
    assert!(engine.hear(of("a", "k"), said, START).unwrap());
    let refused = engine.reserve(&[of("a", "k")], 1, Duration::ZERO, START);
    assert!(matches!(refused, Err(Refused::OverHorizon(_))));
    let (other, _) = disk.start(OPTIONS, text, START);
    for engine in [engine, other] {
        let next = engine.delay(&[of("a", "k")], 1, START).unwrap();
        assert_eq!(next.at, START + 5 * SECOND);
    }
}

/// What a server is asked, and what it answers.
fn let_go(engine: &Engine, counter: &str, now: u64) -> Duration {
    let question = Question::Reserve { horizon: HOUR };
    let asking = engine.asking(None, &[of("a", counter)], 1, question, now);
    let asking = asking.unwrap_or_else(|why| panic!("{why:?}"));
    let pause = asking.pause;
    if !pause.is_zero() {
        engine.unanswered(&asking, false);
        return pause;
    }
    let answer = Answer {
        outcome: Outcome::Now,
        at: now / 1_000,
        now: now / 1_000,
        binding: None,
        retry_after: 0,
        left: Vec::new(),
    };
    engine.answered(&asking, &answer, now).expect("it may go");
    pause
}

#[test]
fn what_a_server_lets_go_is_taken_from_what_partners_leave_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s' }]";
    for counting in [Counting::Elsewhere, Counting::Part(NonZero::<u64>::MIN)] {
        let options = Options {
            counting,
            ..OPTIONS
        };
        let engine = Engine::new(options, &limits(text));
        let disk = Disk::of(&engine);
        let said = Said {
            status: 200,
            left: Some((2, HOUR)),
            ..Said::default()
        };
        assert!(engine.hear(of("a", "k"), said, START).unwrap());
        assert_eq!(let_go(&engine, "k", START), Duration::ZERO);
        assert_eq!(let_go(&engine, "k", START), Duration::ZERO);
        let (other, _) = disk.start(options, text, START);
        for engine in [engine, other] {
            assert_eq!(let_go(&engine, "k", START), HOUR, "{counting:?}");
        }
    }
}

#[test]
fn what_a_server_lets_go_and_has_no_room_here_does_not_hinder_the_next_start() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/h', burst = 2 }]";
    let options = Options {
        counters_max: 1,
        counting: Counting::Part(NonZero::<u64>::MIN),
        ..OPTIONS
    };
    let engine = Engine::new(options, &limits(text));
    let disk = Disk::of(&engine);
    for counter in ["k", "more"] {
        let_go(&engine, counter, START);
    }
    let (other, _) = disk.start(options, text, START);
    for engine in [engine, other] {
        let used = ["k", "more"].map(|counter| engine.reserve(&[of("a", counter)], 1, HOUR, START));
        assert_eq!(used[0].as_ref().map(|slot| slot.at), Ok(START));
        assert_eq!(used[1], Err(Refused::NoRoom));
    }
}

/// As a limiter does all the time.
fn tidy(engine: &Engine, from: u64, to: u64) {
    (from..=to)
        .step_by(200_000_000)
        .for_each(|now| engine.tidy(now));
}

#[test]
fn counters_that_idle_ones_made_room_for_are_known_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/h', burst = 2 }]";
    let engine = fresh(text);
    let disk = Disk::of(&engine);
    let take = |counter: u32, requests, now| {
        let slot = engine.reserve(&[of("a", &counter.to_string())], requests, HOUR, now);
        assert_eq!(slot.map(|slot| slot.at), Ok(now));
    };
    let short = 7_000..7_010;
    for counter in 0..10_000 {
        let requests = if short.contains(&counter) { 1 } else { 2 };
        take(counter, requests, START);
    }
    // Half an hour later those of one request are idle.
    let now = START + 1_802 * SECOND;
    tidy(&engine, now - 2 * SECOND, now);
    for counter in 10_000..10_010 {
        take(counter, 2, now);
    }
    let (other, _) = disk.start(OPTIONS, text, now);
    for counter in (0..10_010).filter(|it| !short.contains(it)) {
        let next = other.delay(&[of("a", &counter.to_string())], 2, now);
        assert!(next.unwrap().at > now, "{counter}");
    }
}

#[test]
fn lessons_that_old_ones_made_room_for_are_known_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
    let engine = fresh(text);
    let disk = Disk::of(&engine);
    let hear = |counter: u32, seconds, now| {
        let said = Said {
            status: 503,
            retry_after: Some(Duration::from_secs(seconds)),
            ..Said::default()
        };
        engine
            .hear(of("a", &counter.to_string()), said, now)
            .unwrap()
    };
    for counter in 0..50_000 {
        assert!(hear(counter, 1, START));
    }
    let now = START + 15 * SECOND;
    assert!(!hear(60_000, 100, now));
    engine.tidy(now);
    assert!(hear(60_000, 100, now));
    let (other, _) = disk.start(OPTIONS, text, now);
    let next = other.delay(&[of("a", "60000")], 1, now).unwrap();
    assert_eq!(next.at, now + 100 * SECOND);
}

#[test]
fn rules_of_calls_that_came_in_the_place_of_others_are_known_after_a_kill() {
    let engine = fresh(OF_CALLS);
    let known = [1, 2].map(|it| (it * 100..it * 100 + 64).map(|it| of_call(it, 1)));
    let [asked, used] = known.map(Iterator::collect::<Vec<_>>);
    for limit in &asked {
        assert!(engine.delay(&[of(limit, "k")], 1, START).is_ok());
    }
    let now = START + 601 * SECOND;
    engine.tidy(now);
    let disk = Disk::of(&engine);
    for limit in &used {
        engine.increment(&[of(limit, limit)], 1, None, now).unwrap();
    }
    let (other, _) = disk.start(OPTIONS, OF_CALLS, now);
    for limit in &used {
        let next = [&engine, &other].map(|it| it.delay(&[of(limit, limit)], 1, now));
        assert!(next[0].as_ref().is_ok_and(|slot| slot.at > now));
        assert_eq!(next[0], next[1]);
    }
}

#[test]
fn clock_comes_back_where_nothing_was_used() {
    let engine = fresh(SEVERAL);
    engine.tidy(START + SECOND);
    let (_, now) = Disk::of(&engine).start(OPTIONS, SEVERAL, START);
    assert_eq!(now, START + SECOND);
}

#[test]
fn limiter_that_cannot_write_grants_nothing_until_a_snapshot_is_made() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/h', burst = 2 }]";
    let engine = fresh(text);
    let call = || engine.reserve(&[of("a", "k")], 1, Duration::ZERO, START);
    // Before the first snapshot nothing is written.
    assert!(call().is_ok());
    drop(engine.snapshot(1, File::open("/dev/null").unwrap()));
    for _ in 0..3 {
        assert_eq!(call(), Err(Refused::NotSaved));
    }
    assert!(engine.journal_error().is_some());
    let disk = Disk::of(&engine);
    assert_eq!(engine.journal_error(), None);
    // Of those that were refused, the first is lost.
    let (other, _) = disk.start(OPTIONS, text, START);
    for engine in [&engine, &other] {
        let refused = engine.reserve(&[of("a", "k")], 1, Duration::ZERO, START);
        assert!(matches!(refused, Err(Refused::OverHorizon(_))));
    }
    // Restored with fewer places than there were counters, nothing is forgotten silently.
    let few = Options {
        counters_max: 0,
        ..OPTIONS
    };
    let engine = Engine::new(few, &limits(text));
    assert!(engine.restore(&disk.snapshot, &[], START).is_err());
}

/// What 4 calls of 10 a day leave, made `ahead` of the restart, before a snapshot or after it: how many go at once then, and when the next one may.
fn left_after(ahead: u64, is_before: bool) -> (u64, usize, u64) {
    let text = "[limits.day]\nrules = [{ id = 'r', rate = '10/day', algorithm = 'fixed_window', aligned = 'clock' }]";
    let then = START + ahead;
    let before = Engine::new(OPTIONS, &limits(text));
    let mut disk = Disk::of(&before);
    for _ in 0..4 {
        assert_eq!(slot(&before, &[of("day", "k")], then).at, then);
    }
    let refused = Said {
        status: 429,
        retry_after: Some(HOUR / 2),
        left: None,
    };
    let learned = before.feedback(of("day", "held"), refused, then);
    assert!(learned.is_ok_and(|(is_learned, _)| is_learned));
    if is_before {
        before.close();
        let refused = before.reserve(&[of("day", "k")], 1, HOUR, then);
        assert_eq!(refused, Err(Refused::Stopping));
        let last = disk.begin(&before);
        disk.end(last);
    }
    let (after, now) = disk.start(OPTIONS, text, START);
    let held = after.delay(&[of("day", "held")], 1, now).expect("a slot");
    assert_eq!(held.at, now + 1_800 * SECOND);
    let mut taken = 0;
    loop {
        let at = after.delay(&[of("day", "k")], 1, now).expect("a slot").at;
        if at > now {
            return (now, taken, at);
        }
        slot(&after, &[of("day", "k")], now);
        taken += 1;
    }
}

#[test]
fn clock_of_the_run_before_that_was_far_ahead_is_not_kept_and_what_was_used_is() {
    const DAY: u64 = 86_400 * SECOND;
    let midnight = START.next_multiple_of(DAY);
    for is_before in [false, true] {
        for ahead in [61 * SECOND, 3_600 * SECOND, DAY, 400 * DAY] {
            let left = left_after(ahead, is_before);
            assert_eq!(left, (START, 6, midnight), "{ahead}");
        }
        for ahead in [0, 59 * SECOND] {
            let left = left_after(ahead, is_before);
            assert_eq!(left, (START + ahead, 6, midnight), "{ahead}");
        }
    }
}

#[test]
fn limits_change_while_snapshots_are_made_and_debt_follows() {
    let engine = fresh(SEVERAL);
    for counter in 0..1_000 {
        slot(&engine, &[of("b", &counter.to_string())], START + counter);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40 {
                let other = SEVERAL.replace("1/10s", &format!("1/{}s", 10 + round % 2));
                engine.change(&limits(&other), START + SECOND);
            }
        });
        for _ in 0..20 {
            let snapshot = Disk::of(&engine).snapshot;
            let other = fresh(SEVERAL);
            let restored = other.restore(&snapshot, &[], START + SECOND).unwrap();
            assert!(restored.counters >= 1_000, "{restored:?}");
        }
    });
    assert!(engine.version() == 41);
}

#[test]
fn what_is_granted_under_other_limits_is_known_after_a_kill() {
    let [before, after] = [BOOKED, SEVERAL].map(limits);
    let engine = Engine::new(OPTIONS, &before);
    engine.keep(Arc::from(*b"before"));
    let mut disk = Disk::of(&engine);
    let kept = |disk: &Disk| Engine::kept_in(&disk.snapshot, &disk.journals());
    assert_eq!(kept(&disk).as_deref(), Ok(&b"before"[..]));
    engine.change_and_keep(&after, Arc::from(*b"after"), START);
    // The snapshot that follows is not on the disk yet.
    let _lost = disk.begin(&engine);
    assert_eq!(slot(&engine, &[of("b", "k")], START).at, START);
    assert_eq!(kept(&disk).as_deref(), Ok(&b"after"[..]));
    let (other, _) = disk.start(OPTIONS, SEVERAL, START);
    for engine in [engine, other] {
        assert_eq!(
            slot(&engine, &[of("b", "k")], START).at,
            START + 10 * SECOND
        );
    }
}

#[test]
fn journal_that_is_damaged_is_told_and_one_that_is_cut_is_not() {
    let engine = fresh(SEVERAL);
    let disk = Disk::of(&engine);
    for _ in 0..3 {
        slot(&engine, &[of("a", "k")], START);
    }
    let [(number, bytes)] = &disk.journals()[..] else {
        panic!("one journal");
    };
    let length = bytes.len() / 3;
    let restore = |bytes: Vec<u8>| {
        let restored = fresh(SEVERAL).restore(&disk.snapshot, &[(*number, bytes)], START);
        let restored = restored.expect("a good snapshot");
        (restored.changes, restored.damaged)
    };
    assert_eq!(restore(bytes.clone()), (3, 0));
    for cut in 1..length {
        assert_eq!(restore(bytes[..bytes.len() - cut].to_vec()), (2, 0));
    }
    let mut damaged = bytes.clone();
    damaged[length + 9] ^= 1;
    assert_eq!(restore(damaged), (1, 2 * length));
}

const BOOKED: &str = "
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
[limits.fast]
rules = [{ id = 'r', rate = '100/s', burst = 100 }]
[limits.whole]
every_call = true
rules = [{ id = 'all', rate = '1000/s', burst = 10 }]
";

#[test]
fn slot_far_ahead_closes_a_limit_of_every_call_neither_after_a_crash_nor_a_change() {
    let engine = fresh(BOOKED);
    for hour in 0..20 {
        let slot = engine.reserve(&[of("slow", "a")], 1, 24 * HOUR, START);
        assert_eq!(slot.unwrap().at, START + hour * 3_600 * SECOND);
    }
    let disk = Disk::of(&engine);
    let now = START + SECOND;
    engine.change(&limits(&BOOKED.replace("1000/s", "500/s")), now);
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
    let refused = (0..9).find_map(|_| engine.reserve(&[of("a", "k")], 1, HOUR, START).err());
    let Some(Refused::OverHorizon(Slot { at, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(at, START + SECOND / 10);
}
