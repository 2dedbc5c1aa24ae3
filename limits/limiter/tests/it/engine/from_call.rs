//! Tests of limits with `from_call`, whose calls provide the rule.

use std::time::Duration;

use limiter::serve::engine::{CallError, CallRule, Feedback};

use super::{SECOND, START, fresh, of, slot};

pub(super) const OF_CALLS: &str = "
[limits.partner]
from_call = true
[limits.slow]
rules = [{ id = 'r', rate = '1/h' }]
";

/// Name of the limit for a rule of a call.
pub(super) fn of_call(interval: u64, requests: u64) -> String {
    let rule = CallRule::new(interval, requests).expect("within bounds");
    rule.limit_name("partner")
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(result: Result<T, CallError>, expected: &str) {
    match result {
        Err(CallError::InvalidRule(why)) => assert!(why.contains(expected), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rules_of_calls_are_bounded_and_unused_ones_are_dropped() {
    let engine = fresh(OF_CALLS);
    // A delay query does not use a rule, but the rule stays for ten minutes, because each new one rebuilds all limits.
    let query =
        |requests: u64, now: u64| engine.delay(&[of(&of_call(60, requests), "k")], 1, true, now);
    for requests in 1..=64 {
        assert!(query(requests, START).is_ok());
    }
    let version = engine.version();
    assert_refused(query(65, START + 600 * SECOND - 1), "already has 64 rules");
    assert_eq!(engine.version(), version);
    let use_rule = |interval: u64, now: u64| {
        let limit = of_call(interval, 1);
        engine.increment(&[of(&limit, &interval.to_string())], 1, None, now)
    };
    let now = START + 600 * SECOND;
    for interval in 1..=64 {
        use_rule(interval, now).expect("a rule is dropped");
    }
    assert_refused(use_rule(65, now), "already has 64 rules");
    // A known rule is accepted for another counter.
    let known = of_call(7, 1);
    assert_eq!(slot(&engine, &[of(&known, "new")], now).at, now);
    let now = now + 600 * SECOND;
    use_rule(65, now).expect("all windows have expired");
    for interval in 66..=128 {
        use_rule(interval, now).expect("unused rules are dropped");
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
        assert_refused(engine.delay(&[of(&other, "k")], 1, true, now), "rule 9/1s");
    }
    assert!(
        engine
            .delay(&[of(&other, "k")], 1, true, booked + SECOND)
            .is_ok()
    );
}

#[test]
fn one_of_two_first_calls_with_different_rules_is_refused() {
    let engine = fresh(OF_CALLS);
    let (first, other) = (of_call(60, 1), of_call(60, 2));
    let increment = |limit: &str| engine.increment(&[of(limit, "k")], 1, None, START);
    increment(&first).expect("the first rule is accepted");
    assert_refused(increment(&other), "partner/k is in use under rule 1/60s");
}

#[test]
fn counter_keeps_its_rule_while_feedback_restricts_it() {
    let engine = fresh(OF_CALLS);
    let (first, other) = (of_call(1, 9), of_call(2, 9));
    let feedback = Feedback {
        status: 429,
        windows: vec![(0, Duration::from_secs(3_600))],
    };
    engine
        .apply_feedback(&of(&first, "k"), &feedback, START)
        .unwrap();
    let call = |now: u64| engine.reserve(None, &[of(&other, "k")], 1, Duration::ZERO, now);
    assert_refused(call(START + 3_599 * SECOND), "rule 9/1s");
    assert!(call(START + 3_600 * SECOND).is_ok());
}
