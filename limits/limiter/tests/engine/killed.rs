//! What a limiter knows after it was killed, from the records that it wrote.

use std::{collections::BTreeMap, num::NonZero, time::Duration};

use fastrand::Rng;
use limiter::serve::engine::{Counting, Engine, Options, Refused, RestoreFailed, Said};
use limits::{Algorithm, Alignment};
use limits_sharing::exact::{ExactDecision, Operation, Outcome};

use super::{
    BOOKED, Disk, HOUR, OPTIONS, Records, SECOND, SEVERAL, START, fresh,
    from_call::{OF_CALLS, of_call},
    limits, of, slot,
};

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
global = true
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
                aligned: Alignment::Clock,
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
                let promised = rule.limit.algorithm.max_in(window);
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
        kill(seed, false);
    }
}

#[test]
fn killed_limiter_goes_on_exactly_where_it_was_under_limits_that_changed() {
    for seed in 0..60 {
        kill(seed, true);
    }
}

fn kill(seed: u64, limits_change: bool) {
    let mut random = Rng::with_seed(seed);
    let mut now = START;
    let mut gone = Gone::new();
    let mut text = CRASHES.to_owned();
    let mut engine = fresh(&text);
    let mut disk = Disk::of(&engine);
    for _ in 0..12 {
        for _ in 0..random.usize(1..120) {
            now += random.u64(..SECOND / 20);
            let limit = NAMES[random.usize(..7)];
            let counter = random.u8(..2).to_string();
            let of = [of(limit, &counter)];
            let requests = random.u64(1..=2);
            match random.u8(..12) {
                0 | 1 => disk.write(&engine),
                2 => {
                    let at = now - random.u64(..2 * SECOND);
                    let counted = engine.increment(&of, requests, Some(at), now);
                    assert!(counted.is_ok(), "{counted:?}");
                }
                3 => {
                    let said = Said {
                        status: 200,
                        left: Some((random.u64(..9), Duration::from_secs(3))),
                        ..Said::default()
                    };
                    assert!(engine.feedback(of[0], said, now).is_ok());
                }
                4 if limits_change => {
                    let rates = [["20/s", "5/s"], ["9/3s", "4/7s"], ["4/2s", "3/5s"]];
                    let [rate, other] = rates[random.usize(..3)];
                    text = CRASHES.replace(rate, other);
                    engine.change(&limits(&text), Vec::new(), now);
                }
                4 => engine.tidy(now),
                _ => {
                    let max_wait = Duration::from_millis(random.u64(..3_000));
                    let Ok(slot) = engine.reserve(None, &of, requests, max_wait, now) else {
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
        // It is killed.
        disk.write(&engine);
        let (other, _) = disk.start(OPTIONS, &text, now);
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
        now += random.u64(..SECOND);
    }
    if !limits_change {
        check(&mut gone, CRASHES, seed);
    }
}

#[test]
fn refused_calls_that_count_are_known_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/10s', algorithm = 'sliding_log', count_refused = true }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    for second in 0..5 {
        let now = START + second * SECOND;
        let call = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, now);
        assert_eq!(call.is_ok(), second < 2);
    }
    let now = START + 6 * SECOND;
    let next = engine.delay(&[of("a", "k")], 1, now).unwrap();
    assert_eq!(next.at, START + 13 * SECOND);
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, now);
    assert_eq!(other.delay(&[of("a", "k")], 1, now), Ok(next));
}

#[test]
fn refused_call_that_counts_under_one_rule_takes_nothing_of_the_others_after_a_kill() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '9/10s', algorithm = 'sliding_log', count_refused = true }, { id = 's', rate = '1/h' }]";
    let engine = fresh(text);
    let mut disk = Disk::of(&engine);
    let said = Said {
        status: 429,
        retry_after: Some(Duration::from_secs(5)),
        ..Said::default()
    };
    assert!(engine.hear(of("a", "k"), said, START).unwrap());
    let refused = engine.reserve(None, &[of("a", "k")], 1, Duration::ZERO, START);
    assert!(matches!(refused, Err(Refused::OverMaxWait(_))));
    disk.write(&engine);
    let (other, _) = disk.start(OPTIONS, text, START);
    for engine in [engine, other] {
        let next = engine.delay(&[of("a", "k")], 1, START).unwrap();
        assert_eq!(next.at, START + 5 * SECOND);
    }
}

/// What a server is asked, and what it answers.
fn let_go(engine: &Engine, counter: &str, now: u64) -> Duration {
    let question = Operation::Reserve { max_wait: HOUR };
    let asking = engine.asking(None, &[of("a", counter)], 1, question, now);
    let asking = asking.unwrap_or_else(|why| panic!("{why:?}"));
    let pause = asking.pause;
    if !pause.is_zero() {
        engine.unanswered(&asking, false);
        return pause;
    }
    let answer = ExactDecision {
        outcome: Outcome::Now,
        at: now / 1_000,
        now: now / 1_000,
        binding: None,
        retry_after: 0,
        remaining: Vec::new(),
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
        let mut disk = Disk::of(&engine);
        let said = Said {
            status: 200,
            left: Some((2, HOUR)),
            ..Said::default()
        };
        assert!(engine.hear(of("a", "k"), said, START).unwrap());
        assert_eq!(let_go(&engine, "k", START), Duration::ZERO);
        assert_eq!(let_go(&engine, "k", START), Duration::ZERO);
        disk.write(&engine);
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
    let mut disk = Disk::of(&engine);
    for counter in ["k", "more"] {
        let_go(&engine, counter, START);
    }
    disk.write(&engine);
    let (other, _) = disk.start(options, text, START);
    for engine in [engine, other] {
        let used =
            ["k", "more"].map(|counter| engine.reserve(None, &[of("a", counter)], 1, HOUR, START));
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
    let mut disk = Disk::of(&engine);
    let take = |counter: u32, requests, now| {
        let slot = engine.reserve(None, &[of("a", &counter.to_string())], requests, HOUR, now);
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
    disk.write(&engine);
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
    let mut disk = Disk::of(&engine);
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
    disk.write(&engine);
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
    let mut disk = Disk::of(&engine);
    for limit in &used {
        engine.increment(&[of(limit, limit)], 1, None, now).unwrap();
    }
    disk.write(&engine);
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
fn counters_that_have_no_room_are_not_forgotten_silently() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/h', burst = 2 }]";
    let engine = fresh(text);
    slot(&engine, &[of("a", "k")], START);
    let records = Disk::of(&engine).records();
    let few = Options {
        counters_max: 0,
        ..OPTIONS
    };
    let restored = Engine::new(few, &limits(text)).restore(&records, START);
    assert_eq!(restored, Err(RestoreFailed::NoRoom));
}

#[test]
fn records_that_are_not_whole_or_of_another_version_are_refused() {
    let engine = fresh(SEVERAL);
    slot(&engine, &[of("a", "k")], START);
    let records = Disk::of(&engine).records();
    let restore = |change: fn(&mut Records)| {
        let mut records = records.clone();
        change(&mut records);
        fresh(SEVERAL).restore(&records, START)
    };
    assert_eq!(restore(|_| {}).map(|it| it.counters), Ok(3));
    let damaged = Err(RestoreFailed::Damaged);
    assert_eq!(restore(|all| drop(all.remove(0))), damaged);
    assert_eq!(restore(|all| all[1].1.truncate(3)), damaged);
    assert_eq!(restore(|all| all[1].0.truncate(2)), damaged);
    let other = restore(|all| all[0].1[0] += 1);
    assert_eq!(other, Err(RestoreFailed::Version));
}

#[test]
fn records_of_what_is_idle_or_gone_are_removed() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]\n[limits.b]\nrules = [{ id = 'r', rate = '1/h' }]";
    let refused = Said {
        status: 429,
        ..Said::default()
    };
    let used = |limit: &str| {
        let engine = fresh(text);
        slot(&engine, &[of(limit, "k")], START);
        assert!(engine.hear(of(limit, "k"), refused, START).unwrap());
        (Disk::of(&engine), engine)
    };
    // While it runs, what is idle.
    let (mut disk, engine) = used("a");
    assert_eq!(disk.0.len(), 3);
    engine.tidy(START + 100 * SECOND);
    disk.write(&engine);
    assert_eq!(disk.0.len(), 1);
    // And limits that are gone, also when they come back at once.
    let other = "[limits.c]\nrules = [{ id = 'r', rate = '1/s' }]";
    let (mut disk, engine) = used("b");
    for text in [other, text] {
        engine.change(&limits(text), Vec::new(), START);
    }
    disk.write(&engine);
    let (restarted, _) = disk.start(OPTIONS, text, START);
    assert_eq!(slot(&restarted, &[of("b", "k")], START).at, START);
    // At the start.
    for (limit, text) in [("a", text), ("b", other)] {
        let (mut disk, _) = used(limit);
        let (restarted, _) = disk.start(OPTIONS, text, START);
        restarted.tidy(START + 100 * SECOND);
        disk.write(&restarted);
        assert_eq!(disk.0.len(), 1, "{limit}");
    }
}

/// What 4 calls of 10 a day leave, made `ahead` of the restart: how many go at once then, and when the next one may.
fn left_after(ahead: u64) -> (u64, usize, u64) {
    let text = "[limits.day]\nrules = [{ id = 'r', rate = '10/day', algorithm = 'fixed_window', aligned = 'clock' }]";
    let then = START + ahead;
    let before = fresh(text);
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
    let disk = Disk::of(&before);
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
    for ahead in [61 * SECOND, 3_600 * SECOND, DAY, 400 * DAY] {
        assert_eq!(left_after(ahead), (START, 6, midnight), "{ahead}");
    }
    for ahead in [0, 59 * SECOND] {
        let left = left_after(ahead);
        assert_eq!(left, (START + ahead, 6, midnight), "{ahead}");
    }
}

#[test]
fn limits_change_while_changes_are_taken_and_debt_follows() {
    let engine = fresh(SEVERAL);
    for counter in 0..1_000 {
        slot(&engine, &[of("b", &counter.to_string())], START + counter);
    }
    let mut disk = Disk::of(&engine);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40 {
                let other = SEVERAL.replace("1/10s", &format!("1/{}s", 10 + round % 2));
                engine.change(&limits(&other), Vec::new(), START + SECOND);
            }
        });
        for _ in 0..20 {
            disk.write(&engine);
            let restored = fresh(SEVERAL).restore(&disk.records(), START + SECOND);
            assert!(restored.unwrap().counters >= 1_000, "{restored:?}");
        }
    });
    assert!(engine.version() == 41);
}

#[test]
fn debt_that_was_carried_over_is_known_after_a_kill() {
    let text =
        |rate: &str| format!("[limits.a]\nrules = [{{ id = 'r', rate = '{rate}', burst = 9 }}]");
    let (fast, slow) = (text("9/10s"), text("9/h"));
    let engine = fresh(&fast);
    engine
        .reserve(None, &[of("a", "k")], 9, Duration::ZERO, START)
        .unwrap();
    let mut disk = Disk::of(&engine);
    // From then on hardly anything comes back.
    engine.change(&limits(&slow), Vec::new(), START);
    disk.write(&engine);
    let mut now = START;
    for _ in 0..3 {
        now += 60 * SECOND;
        engine.tidy(now);
        disk.write(&engine);
        let (other, _) = disk.start(OPTIONS, &slow, now);
        let next = [&engine, &other].map(|it| it.delay(&[of("a", "k")], 1, now));
        assert_eq!(next[0], next[1]);
        assert_eq!(next[0].as_ref().map(|it| it.at), Ok(START + 400 * SECOND));
    }
    // Also where they changed while it did not run.
    let engine = fresh(&fast);
    engine
        .reserve(None, &[of("a", "k")], 9, Duration::ZERO, START)
        .unwrap();
    let mut disk = Disk::of(&engine);
    for _ in 0..3 {
        let (other, _) = disk.start(OPTIONS, &slow, START);
        other.tidy(START + 60 * SECOND);
        disk.write(&other);
        let next = other.delay(&[of("a", "k")], 1, START + 60 * SECOND);
        assert_eq!(next.map(|it| it.at), Ok(START + 400 * SECOND));
    }
}

#[test]
fn what_is_granted_under_other_limits_is_known_after_a_kill() {
    let engine = fresh(BOOKED);
    engine.keep(b"before".to_vec());
    let mut disk = Disk::of(&engine);
    let kept = |disk: &Disk| Engine::kept_in(&disk.records()).map(<[u8]>::to_vec);
    assert_eq!(kept(&disk).as_deref(), Ok(&b"before"[..]));
    engine.change(&limits(SEVERAL), b"after".to_vec(), START);
    assert_eq!(slot(&engine, &[of("b", "k")], START).at, START);
    disk.write(&engine);
    assert_eq!(kept(&disk).as_deref(), Ok(&b"after"[..]));
    let (other, _) = disk.start(OPTIONS, SEVERAL, START);
    for engine in [engine, other] {
        assert_eq!(
            slot(&engine, &[of("b", "k")], START).at,
            START + 10 * SECOND
        );
    }
}
