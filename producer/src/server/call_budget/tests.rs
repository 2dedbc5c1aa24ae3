//! The call budget under greedy, slow and returning clients, on a set clock.

use std::{cell::Cell, net::Ipv4Addr};

use super::*;

const CALLS_MAX: usize = STANDING_BYTES_MAX / (8 * 1024);

/// The largest requests that there is room for.
const LARGE_MAX: usize = STANDING_BYTES_MAX / (COPIES * (REQUEST_BYTES_MAX - SMALL_REQUEST_BYTES));

struct Scene {
    budget: CallBudget,
    began: Instant,
    addresses: Cell<u32>,
}

impl Scene {
    fn new() -> Self {
        let count = || IntCounter::new("count", "count").unwrap();
        Self {
            budget: CallBudget::new(IntGauge::new("bytes", "bytes").unwrap(), count(), count()),
            began: Instant::now(),
            addresses: Cell::new(0),
        }
    }

    /// The share of another address.
    fn share(&self) -> AddressShare {
        let address = self.addresses.replace(self.addresses.get() + 1);
        self.budget.share(Ipv4Addr::from_bits(address).into())
    }

    fn at(&self, millis: u64) -> Instant {
        self.began + Duration::from_millis(millis)
    }

    /// A call from an address of its own.
    fn call(&self, millis: u64) -> Option<Grant> {
        self.share().open(CallKind::Stream, self.at(millis))
    }

    /// `count` calls; all must find room.
    fn calls(&self, count: usize, millis: u64) -> Vec<Grant> {
        (0..count).map(|_| self.call(millis).unwrap()).collect()
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.budget.shared.bytes.get()).unwrap()
    }
}

fn ended(calls: &[Grant]) -> usize {
    let ended = calls.iter().filter(|call| call.end().is_cancelled());
    ended.count()
}

#[track_caller]
fn check_hold_time(percent: usize, expected: Duration) {
    let taken = (STANDING_BYTES_MAX * percent).div_ceil(100);
    assert_eq!(hold_time(taken), expected, "{percent}");
}

#[test]
fn hold_time_shrinks_as_the_budget_fills() {
    check_hold_time(0, Duration::MAX);
    check_hold_time(50, Duration::MAX);
    check_hold_time(70, (HOLD_TIME_MAX + HOLD_TIME_MIN) / 2);
    check_hold_time(90, HOLD_TIME_MIN);
    check_hold_time(200, HOLD_TIME_MIN);
}

#[test]
fn all_connections_together_hold_no_more_than_the_budget() {
    let scene = Scene::new();
    let calls = scene.calls(CALLS_MAX, 0);
    assert_eq!(scene.bytes(), CALLS_MAX * 8 * 1024);
    assert!(scene.call(0).is_none());
    let received = |call: &&Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert_eq!(calls.iter().filter(received).count(), LARGE_MAX);
    assert!(scene.bytes() <= BYTES_MAX, "{}", scene.bytes());
    let refused = scene.budget.shared.refused.get();
    assert_eq!(refused, (1 + CALLS_MAX - LARGE_MAX) as u64);
    drop(calls);
    assert_eq!(scene.bytes(), 0);
    assert!(scene.call(0).is_some());
}

#[test]
fn large_requests_keep_no_small_one_out() {
    let scene = Scene::new();
    let large = scene.calls(LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert!(large.iter().all(received));
    let small = scene.calls(CALLS_MAX - LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(SMALL_REQUEST_BYTES, scene.at(0));
    assert!(small.iter().all(received));
}

#[test]
fn health_checks_and_reflection_keep_no_stream_out() {
    let scene = Scene::new();
    let ask = |kind| scene.share().open(kind, scene.at(0));
    let health: Vec<_> = std::iter::from_fn(|| ask(CallKind::Health)).collect();
    assert_eq!(health.len(), STANDING_BYTES_MAX / (32 * 1024));
    assert!(ask(CallKind::Other).is_none());
    let streams = scene.calls(CALLS_MAX, 0);
    assert_eq!(ended(&streams), 0);
    assert!(scene.bytes() <= BYTES_MAX, "{}", scene.bytes());
}

#[test]
fn one_address_has_a_share() {
    let scene = Scene::new();
    let now = scene.at(0);
    let greedy = scene.share();
    let first = greedy.open(CallKind::Stream, now).unwrap();
    // In frames, as it comes.
    assert!((0..32).all(|_| first.receive(REQUEST_BYTES_MAX / 32, now)));
    let more = greedy.open(CallKind::Stream, now).unwrap();
    assert!(more.receive(REQUEST_BYTES_MAX, now));
    let second = greedy.open(CallKind::Stream, now).unwrap();
    assert!(second.receive(SMALL_REQUEST_BYTES, now));
    assert!(!second.receive(3 * SMALL_REQUEST_BYTES, now));
    let other = scene.call(0).unwrap();
    assert!(other.receive(REQUEST_BYTES_MAX, now));
    drop(first);
    assert!(second.receive(REQUEST_BYTES_MAX / 2, now));
}

#[test]
fn old_calls_are_left_alone_while_there_is_room() {
    let scene = Scene::new();
    let calls = scene.calls(CALLS_MAX / 2 - 1, 0);
    let hour = scene.call(3_600_000);
    assert!(hour.is_some());
    assert_eq!(ended(&calls), 0);
}

#[test]
fn oldest_are_ended_when_others_need_room() {
    let scene = Scene::new();
    let older = scene.calls(CALLS_MAX / 2, 0);
    let younger = scene.calls(CALLS_MAX / 5, 3_000);
    assert_eq!(ended(&older), 0);
    let asking = scene.call(6_000).unwrap();
    assert_eq!((ended(&older), ended(&younger)), (older.len(), 0));
    // They count until they are gone, and are not told twice.
    let another = scene.call(6_000).unwrap();
    assert_eq!(scene.bytes(), (older.len() + younger.len() + 2) * 8 * 1024);
    drop(older);
    let last = scene.call(3_600_000).unwrap();
    assert_eq!(ended(&younger), 0);
    let told = scene.budget.shared.ended_early.get();
    assert_eq!(told, (CALLS_MAX / 2) as u64);
    drop((asking, another, last));
}

#[test]
fn those_with_large_requests_alone_make_room_for_large_ones() {
    let scene = Scene::new();
    let small = scene.calls(10, 0);
    let large = scene.calls(LARGE_MAX, 0);
    let receive = |call: &Grant, millis| call.receive(REQUEST_BYTES_MAX, scene.at(millis));
    assert!(large.iter().all(|call| receive(call, 0)));
    let late = scene.call(1_000).unwrap();
    assert!(receive(&late, 1_000));
    assert_eq!((ended(&small), ended(&large)), (0, LARGE_MAX));
    assert!(!late.end().is_cancelled());
}

/// All connections together make a burst of calls and then call at their rate. None is ever finished, and the requests'
/// half is full.
#[test]
fn unfinished_calls_keep_nobody_out_after_their_burst() {
    let scene = Scene::new();
    let large = scene.calls(LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert!(large.iter().all(received));
    let mut held = Vec::new();
    for millis in 0..2_000 {
        // A call that is told to end is gone a millisecond later.
        held.retain(|call: &Grant| !call.end().is_cancelled());
        let attempts = if millis == 0 { 8_000 } else { 2 };
        held.extend((0..attempts).filter_map(|_| scene.call(millis)));
        let is_let_in = scene.call(millis).is_some();
        assert!(is_let_in || millis <= 401, "{millis} ms: {}", held.len());
    }
}

/// Calls that are told to end come back at once; another client asks only now and then.
#[test]
fn returning_calls_do_not_keep_an_occasional_caller_out() {
    let scene = Scene::new();
    let mut held = Vec::new();
    for second in 0..10 {
        let at = 2_000 * second;
        held.retain(|call: &Grant| !call.end().is_cancelled());
        held.extend(std::iter::from_fn(|| scene.call(at)));
        let asked = scene.call(at + 1_000);
        assert!(asked.is_some_and(|call| call.receive(3 * SMALL_REQUEST_BYTES, scene.at(at))));
        let all_ended = held.iter().all(|call| call.end().is_cancelled());
        assert!(all_ended, "{second}");
    }
}

#[test]
fn returning_calls_do_not_keep_out_others_of_their_address() {
    let scene = Scene::new();
    let address = scene.share();
    let ask = |at| address.open(CallKind::Health, scene.at(at));
    let held: Vec<_> = std::iter::from_fn(|| ask(0)).collect();
    assert_eq!(held.len(), SHARE_BYTES_MAX / (32 * 1024));
    assert!(ask(100).is_none());
    // No more than it takes are ended for each.
    let asked = [ask(1_000), ask(1_000)];
    assert!(asked.iter().all(Option::is_some));
    assert_eq!(ended(&held), asked.len());
}

/// Three seconds of calls at the highest rate that all connections together may make, each from an address of its own,
/// and none ever finished; returns how many were refused after the shortest hold time.
fn refused_at_full_rate(scene: &Scene, kind: CallKind) -> u64 {
    let rate = match kind {
        CallKind::Stream => 2_000,
        CallKind::Health | CallKind::Other => 1_000,
    };
    let mut open: Vec<Grant> = Vec::new();
    let mut refused = 0;
    for number in 0..3 * rate {
        let now = scene.began + Duration::from_secs(1) * number / rate;
        open.retain(|grant| !grant.end().is_cancelled());
        match scene.share().open(kind, now) {
            Some(grant) => open.push(grant),
            None => refused += u64::from(now > scene.began + HOLD_TIME_MIN),
        }
    }
    refused
}

#[test]
fn streams_that_are_never_finished_keep_no_stream_out() {
    assert_eq!(refused_at_full_rate(&Scene::new(), CallKind::Stream), 0);
}

#[test]
fn health_checks_and_reflection_at_full_rate_keep_only_each_other_out() {
    for kind in [CallKind::Health, CallKind::Other] {
        let scene = Scene::new();
        assert!(refused_at_full_rate(&scene, kind) > 0, "{kind:?}");
        let still_open = scene.calls(CALLS_MAX, 0);
        assert_eq!(ended(&still_open), 0);
    }
}
