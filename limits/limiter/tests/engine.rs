//! The limiter without a network: no slot twice, several limits at once, and no quota exceeded whenever it is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
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

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const HOUR: Duration = Duration::from_secs(3_600);

fn limits(text: &str) -> Vec<NamedLimit> {
    Rules::parse(text).expect("good limits").limits
}

fn options(is_saved: bool) -> Options {
    Options {
        counters_max: 10_000,
        counters_bytes_max: usize::MAX,
        learned_max: HOUR,
        is_saved,
        counting: Counting::Here,
    }
}

fn unsaved(text: &str) -> Engine {
    Engine::new(options(false), &limits(text), START)
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
    engine.reserve(of, 1, HOUR, now).expect("a slot").answer
}

#[test]
fn two_clients_never_get_one_slot() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/s', burst = 1 }]";
    let engine = unsaved(text);
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
    let engine = unsaved(text);
    for _ in 0..1_000 {
        slot(&engine, &[of("a", "k")], START);
    }
    assert_eq!(slot(&engine, &[of("a", "other")], START).at, START);
}

#[test]
fn nothing_is_learned_of_a_limit_of_every_call() {
    let engine = unsaved(SEVERAL);
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
    let engine = unsaved(SEVERAL);
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
    let engine = unsaved(SEVERAL);
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
    let engine = unsaved(text);
    // What was counted in a step leaves the window 4 s after it was.
    for (step, requests) in [(0, 1), (1, 5), (2, 2), (3, 2)] {
        let told = engine.increment(&[of("a", "k")], requests, None, START + step * SECOND);
        assert_eq!(told.unwrap().answer.0, Recorded::Counted);
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
    let engine = unsaved(text);
    let tell = |at: u64| engine.increment(&[of("a", "k")], 10, Some(at), START);
    assert_eq!(tell(START + SECOND + 1), Err(Refused::TooEarly));
    assert_eq!(tell(START - 5 * SECOND).unwrap().answer.0, Recorded::TooOld);
    let (recorded, next) = tell(START - 3 * SECOND).unwrap().answer;
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
    let engine = unsaved(text);
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
        ..options(false)
    };
    let engine = Engine::new(options, &limits(text), START);
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
    let engine = unsaved(OF_CALLS);
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
    let engine = unsaved(OF_CALLS);
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
    let engine = unsaved(OF_CALLS);
    // Both know their limits before either is decided.
    let (first, other) = (of_call(60, 1), of_call(60, 2));
    let increment = |limit: &str| engine.increment(&[of(limit, "k")], 1, None, START);
    increment(&first).expect("it is the first");
    is_refused(increment(&other), "partner/k is in use under rule 1/60s");
}

#[test]
fn counter_keeps_its_rule_while_a_partner_s_answer_holds() {
    let engine = unsaved(OF_CALLS);
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

#[test]
fn no_quota_is_exceeded_whenever_it_is_killed() {
    for seed in 0..60 {
        let mut random = Rng::with_seed(seed);
        let mut disk: Option<Vec<u8>> = None;
        let mut now = START;
        let mut gone = Gone::new();
        for _ in 0..12 {
            let engine = Engine::new(options(true), &limits(CRASHES), now);
            if let Some(bytes) = &disk {
                engine.restore(bytes, now).unwrap();
            }
            let first = engine.snapshot(false, now);
            disk = Some(first.bytes.clone());
            engine.is_saved(&first, now);
            let mut saved = 1;
            // A snapshot in progress, with what it says and when it will be on the disk; answers that wait for theirs.
            let mut next = None;
            let mut waiting: Vec<(u64, (String, String), u64, u64)> = Vec::new();
            let is_orderly = random.u8(..4) == 0;
            for _ in 0..random.usize(1..120) {
                now += random.u64(..SECOND / 20);
                match random.u8(..10) {
                    0 if next.is_none() => next = Some(engine.snapshot(false, now)),
                    1 | 2 => {
                        if let Some(snapshot) = next.take()
                            && random.u8(..5) > 0
                        {
                            disk = Some(snapshot.bytes.clone());
                            engine.is_saved(&snapshot, now);
                            saved += 1;
                            waiting.retain(|(by, key, at, requests)| {
                                if *by <= saved {
                                    gone.entry(key.clone()).or_default().push((*at, *requests));
                                }
                                *by > saved
                            });
                        }
                    }
                    _ => {
                        let limit = [
                            "bucket", "quota", "log", "steps", "short", "first", "stepped",
                        ][random.usize(..7)];
                        let counter = random.u8(..2).to_string();
                        let requests = random.u64(1..=2);
                        let horizon = Duration::from_millis(random.u64(..3_000));
                        let of = [of(limit, &counter)];
                        let Ok(answered) = engine.reserve(&of, requests, horizon, now) else {
                            continue;
                        };
                        let key = (limit.to_owned(), counter);
                        let whole = ("whole".to_owned(), String::new());
                        for key in [key, whole] {
                            let (by, at) = (answered.saved_by, answered.answer.at);
                            waiting.push((by, key, at, requests));
                        }
                        waiting.retain(|(by, key, at, requests)| {
                            if *by <= saved {
                                gone.entry(key.clone()).or_default().push((*at, *requests));
                            }
                            *by > saved
                        });
                    }
                }
            }
            if is_orderly {
                engine.close();
                let last = engine.snapshot(true, now);
                let refused = engine.reserve(&[of("log", "1")], 1, HOUR, now);
                assert_eq!(refused, Err(Refused::Stopping));
                for (_, key, at, requests) in waiting {
                    gone.entry(key).or_default().push((at, requests));
                }
                disk = Some(last.bytes);
            }
            now += random.u64(..SECOND);
        }
        check(&mut gone, CRASHES, seed);
    }
}

#[test]
fn orderly_end_costs_nothing_and_a_crash_a_second_at_most() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1000/day', algorithm = 'fixed_window' }]";
    let used = |bytes: &[u8]| {
        let engine = Engine::new(options(true), &limits(text), START);
        let restored = engine.restore(bytes, START).unwrap();
        assert_eq!(restored.counters, 1);
        engine.survey(1, START).fullest[0].used
    };
    let engine = Engine::new(options(true), &limits(text), START);
    for _ in 0..300 {
        slot(&engine, &[of("a", "k")], START);
    }
    let killed = engine.snapshot(false, START);
    assert_eq!(used(&killed.bytes), 310);
    engine.close();
    assert_eq!(used(&engine.snapshot(true, START).bytes), 300);
    // Restored with fewer places than there were counters, nothing is forgotten silently.
    let few = Options {
        counters_max: 0,
        ..options(true)
    };
    let engine = Engine::new(few, &limits(text), START);
    assert!(engine.restore(&killed.bytes, START).is_err());
}

/// What a snapshot made `ahead` of the restart leaves of 10 a day after 4 calls: how many go at once then, and when the next one may.
fn left_after(ahead: u64, is_clean: bool) -> (u64, usize, u64) {
    let text = "[limits.day]\nrules = [{ id = 'r', rate = '10/day', algorithm = 'fixed_window', aligned = 'clock' }]";
    let then = START + ahead;
    let before = Engine::new(options(true), &limits(text), then);
    let first = before.snapshot(false, then);
    before.is_saved(&first, then);
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
    before.close();
    let last = before.snapshot(is_clean, then);
    let after = Engine::new(options(true), &limits(text), START);
    let restored = after.restore(&last.bytes, START).expect("a good snapshot");
    let now = START.max(restored.clock);
    let first = after.snapshot(false, now);
    after.is_saved(&first, now);
    let held = after.delay(&[of("day", "held")], 1, now).expect("a slot");
    assert_eq!(held.at, now + 1_800 * SECOND);
    let mut taken = 0;
    loop {
        let at = after.delay(&[of("day", "k")], 1, now).expect("a slot").at;
        if at > now {
            return (restored.clock, taken, at);
        }
        slot(&after, &[of("day", "k")], now);
        taken += 1;
    }
}

#[test]
fn clock_of_the_run_before_that_was_far_ahead_is_not_kept_and_what_was_used_is() {
    const DAY: u64 = 86_400 * SECOND;
    let midnight = START.next_multiple_of(DAY);
    for ahead in [61 * SECOND, 3_600 * SECOND, DAY, 400 * DAY] {
        let (clock, taken, next) = left_after(ahead, true);
        assert_eq!((clock, taken, next), (START, 6, midnight), "{ahead}");
        // After a crash a second's worth is charged, too.
        assert_eq!(left_after(ahead, false), (START, 5, midnight), "{ahead}");
    }
    for ahead in [0, 59 * SECOND] {
        assert_eq!(left_after(ahead, true), (START + ahead, 6, midnight));
    }
}

#[test]
fn limits_change_while_snapshots_are_made_and_debt_follows() {
    let engine = Engine::new(options(true), &limits(SEVERAL), START);
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
            let snapshot = engine.snapshot(false, START + SECOND);
            let other = Engine::new(options(true), &limits(SEVERAL), START);
            let restored = other.restore(&snapshot.bytes, START + SECOND).unwrap();
            assert!(restored.counters >= 1_000, "{restored:?}");
            engine.is_saved(&snapshot, START + SECOND);
        }
    });
    assert!(engine.version() == 41);
}
