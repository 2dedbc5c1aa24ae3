//! Limits whose rule comes with a call.

use std::time::Duration;

use limiter::serve::engine::{CallRule, Refused, Said};

use super::{SECOND, START, fresh, of, slot};

pub(super) const OF_CALLS: &str = "
[limits.partner]
from_call = true
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
";

/// The limit of a call that says its rule.
pub(super) fn of_call(interval: u64, requests: u64) -> String {
    let rule = CallRule::new(interval, requests).expect("within bounds");
    rule.limit_of("partner")
}

#[track_caller]
pub(super) fn is_refused<T: std::fmt::Debug>(answer: Result<T, Refused>, words: &str) {
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
    let call = |now: u64| engine.reserve(None, &[of(&other, "k")], 1, Duration::ZERO, now);
    is_refused(call(START + 3_599 * SECOND), "rule 9/1s");
    assert!(call(START + 3_600 * SECOND).is_ok());
}
