//! What is answered before it is saved, what a crash then charges, and what is not taken while nothing can be saved.

use std::time::Duration;

use limiter::serve::engine::{Counting, Engine, Options, Refused, Slot, Target};
use limits::rules::{NamedLimit, Rules};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const DAY: Duration = Duration::from_secs(86_400);

fn limits(text: &str) -> Vec<NamedLimit> {
    Rules::parse(text).expect("good limits").limits
}

/// An engine whose first snapshot is on the disk.
fn saved(text: &str) -> Engine {
    let engine = fresh(text, START);
    save(&engine, START);
    engine
}

fn fresh(text: &str, now: u64) -> Engine {
    let options = Options {
        counters_max: 10_000,
        counters_bytes_max: usize::MAX,
        learned_max: Duration::from_secs(3_600),
        is_saved: true,
        counting: Counting::Here,
    };
    Engine::new(options, &limits(text), now)
}

fn save(engine: &Engine, now: u64) -> Vec<u8> {
    let snapshot = engine.snapshot(false, now);
    engine.is_saved(&snapshot, now);
    snapshot.bytes
}

/// When it may go, and whether that may be said at once.
#[track_caller]
fn reserve(engine: &Engine, limit: &str, counter: &str, requests: u64, now: u64) -> (u64, bool) {
    let of = [Target { limit, counter }];
    let answered = engine.reserve(&of, requests, DAY, now).expect("a slot");
    (answered.answer.at, answered.saved_by == 0)
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
    let engine = saved(BOOKED);
    for hour in 0..20 {
        let at = reserve(&engine, "slow", "a", 1, START).0;
        assert_eq!(at, START + hour * 3_600 * SECOND);
    }
    let bytes = save(&engine, START);
    let now = START + SECOND;
    engine.change(&limits(&BOOKED.replace("1000/s", "500/s")), now);
    assert_eq!(reserve(&engine, "fast", "b", 1, now).0, now);
    for text in [BOOKED, &BOOKED.replace("1000/s", "500/s")] {
        let other = fresh(text, now);
        other.restore(&bytes, now).unwrap();
        let at = reserve(&other, "fast", "b", 1, now).0;
        assert!(at > now && at <= now + 3 * SECOND, "{}", at - now);
    }
    // What is told counts before those slots as well.
    let whole = [Target {
        limit: "whole",
        counter: "",
    }];
    engine.increment(&whole, 10, None, now + SECOND).unwrap();
    assert!(reserve(&engine, "fast", "c", 1, now + SECOND).0 > now + SECOND);
}

#[test]
fn window_that_begins_with_a_call_is_known_after_a_crash() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '100/10s', algorithm = 'fixed_window', aligned = 'first_call' }]";
    let engine = saved(text);
    let now = START + SECOND;
    // Neither the first of a window is answered before it is saved, nor others of it.
    assert_eq!(reserve(&engine, "a", "k", 1, now), (now, false));
    assert_eq!(reserve(&engine, "a", "k", 1, now), (now, false));
    save(&engine, now);
    assert_eq!(reserve(&engine, "a", "k", 8, now), (now, true));
    assert_eq!(reserve(&engine, "a", "k", 90, now), (now, false));
    // A slot of the next window begins that one.
    let end = now + 10 * SECOND;
    let before = engine.snapshot(false, now);
    assert_eq!(reserve(&engine, "a", "k", 1, now), (end, false));
    engine.is_saved(&before, end);
    assert_eq!(reserve(&engine, "a", "k", 1, end), (end, false));
    let bytes = save(&engine, end);
    assert_eq!(reserve(&engine, "a", "k", 1, end), (end, true));

    let restart = end + SECOND;
    let other = fresh(text, restart);
    assert!(!other.restore(&bytes, restart).unwrap().is_clean);
    save(&other, restart);
    // Two were known, and ten are charged.
    assert_eq!(reserve(&other, "a", "k", 88, restart).0, restart);
    let next = end + 10 * SECOND;
    assert_eq!(reserve(&other, "a", "k", 1, restart).0, next);
    // One that nobody knew has no window.
    let late = restart + 9 * SECOND;
    save(&other, late);
    assert_eq!(reserve(&other, "a", "new", 100, late).0, late);
    let at = reserve(&other, "a", "new", 1, late + 2 * SECOND).0;
    assert_eq!(at, late + 10 * SECOND);
}

#[test]
fn nothing_is_taken_that_could_not_be_answered() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '2/s', burst = 10 }]";
    let engine = saved(text);
    let of = |counter| {
        [Target {
            limit: "a",
            counter,
        }]
    };
    let soon = START + 3 * SECOND;
    assert_eq!(reserve(&engine, "a", "k", 2, soon), (soon, true));
    // Nothing is late yet.
    assert_eq!(reserve(&engine, "a", "k", 1, soon), (soon, false));
    let now = soon + 1;
    for _ in 0..5 {
        let refused = engine.reserve(&of("k"), 1, DAY, now);
        assert_eq!(refused, Err(Refused::NotSaved));
    }
    assert_eq!(reserve(&engine, "a", "other", 1, now), (now, true));
    // Seven are left, and those to come would have to be saved.
    let refused = engine.reserve(&of("k"), 9, DAY, now);
    assert_eq!(refused, Err(Refused::NotSaved));
    let refused = engine.reserve(&of("k"), 9, Duration::ZERO, now);
    assert!(
        matches!(refused, Err(Refused::OverHorizon(_))),
        "{refused:?}"
    );
    // Where a snapshot takes long, that is not late.
    let slow = engine.snapshot(false, now);
    engine.is_saved(&slow, now + 5 * SECOND);
    let later = now + 24 * SECOND;
    assert_eq!(reserve(&engine, "a", "k", 7, later), (later, false));
    assert_eq!(
        engine.reserve(&of("k"), 3, DAY, later + 2 * SECOND),
        Err(Refused::NotSaved)
    );
}

#[test]
fn snapshot_of_other_limits_lets_nothing_be_answered_before_it_is_saved() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '9/s', burst = 9 }]";
    let engine = saved(text);
    let snapshot = engine.snapshot(false, START);
    let other = text.replace("limits.a", "limits.b");
    engine.change(&limits(&other), START);
    engine.is_saved(&snapshot, START);
    assert_eq!(reserve(&engine, "b", "k", 1, START), (START, false));
    save(&engine, START);
    assert_eq!(reserve(&engine, "b", "k", 1, START), (START, true));
}

#[test]
fn full_queue_says_when_it_has_room() {
    let text = "[limits.a]\nrules = [{ id = 'r', rate = '10/s', algorithm = 'leaky_bucket', capacity = 5, when_full = 'queue' }]";
    let engine = saved(text);
    let refused = (0..9).find_map(|_| {
        let of = [Target {
            limit: "a",
            counter: "k",
        }];
        engine.reserve(&of, 1, DAY, START).err()
    });
    let Some(Refused::OverHorizon(Slot { at, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(at, START + SECOND / 10);
}
