//! Tests of the call budget with greedy, slow and retrying clients, in virtual time.

use std::{cell::Cell, net::Ipv4Addr};

use super::*;

const CALLS_MAX: usize = ACTIVE_BYTES_MAX / (8 * 1024);

/// Number of requests of the maximum size that fit the budget.
const LARGE_MAX: usize = ACTIVE_BYTES_MAX / (COPIES * (REQUEST_BYTES_MAX - SMALL_REQUEST_BYTES));

struct Scene {
    budget: Arc<CallBudget>,
    started: Instant,
    addresses: Cell<u32>,
}

impl Scene {
    fn new() -> Self {
        let count = || IntCounter::new("count", "count").unwrap();
        Self {
            budget: Arc::new(CallBudget {
                state: Mutex::default(),
                bytes: IntGauge::new("bytes", "bytes").unwrap(),
                refused: count(),
                ended_early: count(),
            }),
            started: Instant::now(),
            addresses: Cell::new(0),
        }
    }

    /// The share of a new address.
    fn share(&self) -> AddressShare {
        let address = self.addresses.replace(self.addresses.get() + 1);
        AddressShare {
            budget: Arc::clone(&self.budget),
            network: Ipv4Addr::from_bits(address).into(),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.started + Duration::from_millis(millis)
    }

    /// A call from a new address.
    fn call(&self, millis: u64) -> Option<Grant> {
        self.share().open(CallKind::Stream, self.at(millis))
    }

    /// `count` calls, which must all be admitted.
    fn calls(&self, count: usize, millis: u64) -> Vec<Grant> {
        (0..count).map(|_| self.call(millis).unwrap()).collect()
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.budget.bytes.get()).unwrap()
    }
}

fn ended(calls: &[Grant]) -> usize {
    let ended = calls.iter().filter(|call| call.end().is_cancelled());
    ended.count()
}

#[test]
fn all_connections_together_stay_within_the_budget() {
    let scene = Scene::new();
    let calls = scene.calls(CALLS_MAX, 0);
    assert_eq!(scene.bytes(), CALLS_MAX * 8 * 1024);
    assert!(scene.call(0).is_none());
    let received = |call: &&Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert_eq!(calls.iter().filter(received).count(), LARGE_MAX);
    assert!(scene.bytes() <= BYTES_MAX, "{}", scene.bytes());
    let refused = scene.budget.refused.get();
    assert_eq!(refused, (1 + CALLS_MAX - LARGE_MAX) as u64);
    drop(calls);
    assert_eq!(scene.bytes(), 0);
    assert!(scene.call(0).is_some());
}

#[test]
fn large_requests_do_not_block_small_ones() {
    let scene = Scene::new();
    let large = scene.calls(LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert!(large.iter().all(received));
    let small = scene.calls(CALLS_MAX - LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(SMALL_REQUEST_BYTES, scene.at(0));
    assert!(small.iter().all(received));
}

#[test]
fn health_checks_and_reflection_do_not_block_streams() {
    let scene = Scene::new();
    let open = |kind| scene.share().open(kind, scene.at(0));
    let health: Vec<_> = std::iter::from_fn(|| open(CallKind::Health)).collect();
    assert_eq!(health.len(), ACTIVE_BYTES_MAX / (32 * 1024));
    assert!(open(CallKind::Other).is_none());
    let streams = scene.calls(CALLS_MAX, 0);
    assert_eq!(ended(&streams), 0);
    assert!(scene.bytes() <= BYTES_MAX, "{}", scene.bytes());
}

#[test]
fn one_address_is_limited_to_its_share() {
    let scene = Scene::new();
    let now = scene.at(0);
    let greedy = scene.share();
    let first = greedy.open(CallKind::Stream, now).unwrap();
    // In frames.
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
fn old_calls_continue_while_there_is_capacity() {
    let scene = Scene::new();
    let calls = scene.calls(CALLS_MAX - 1, 0);
    assert!(scene.call(3_600_000).is_some());
    assert_eq!(ended(&calls), 0);
}

#[test]
fn oldest_calls_are_ended_when_others_need_capacity() {
    let scene = Scene::new();
    let older = scene.calls(2, 0);
    let younger = scene.calls(CALLS_MAX - 2, 3_000);
    let new = [scene.call(3_399).unwrap(), scene.call(3_399).unwrap()];
    assert_eq!((ended(&older), ended(&younger)), (2, 0));
    assert!(scene.call(3_399).is_none(), "the others are too young");
    // Ended calls count until they are dropped, and are ended only once.
    assert_eq!(scene.bytes(), (CALLS_MAX + 2) * 8 * 1024);
    drop(older);
    assert_eq!(scene.bytes(), CALLS_MAX * 8 * 1024);
    let last = scene.call(3_400).unwrap();
    assert_eq!(ended(&younger), 1);
    assert_eq!(scene.budget.ended_early.get(), 3);
    drop((new, last));
}

#[test]
fn only_calls_with_large_requests_are_ended_for_large_requests() {
    let scene = Scene::new();
    let small = scene.calls(10, 0);
    let large = scene.calls(LARGE_MAX, 0);
    let receive = |call: &Grant, millis| call.receive(REQUEST_BYTES_MAX, scene.at(millis));
    assert!(large.iter().all(|call| receive(call, 0)));
    let late = scene.call(1_000).unwrap();
    assert!(receive(&late, 1_000));
    assert_eq!((ended(&small), ended(&large)), (0, 1));
    assert!(!late.end().is_cancelled());
}

/// All connections together make a burst of calls and continue at their rate. No call is ever finished, and the requests'
/// half is full.
#[test]
fn unfinished_calls_block_others_only_during_their_burst() {
    let scene = Scene::new();
    let large = scene.calls(LARGE_MAX, 0);
    let received = |call: &Grant| call.receive(REQUEST_BYTES_MAX, scene.at(0));
    assert!(large.iter().all(received));
    let mut held = Vec::new();
    for millis in 0..2_000 {
        // An ended call is dropped a millisecond later.
        held.retain(|call: &Grant| !call.end().is_cancelled());
        let attempts = if millis == 0 { 8_000 } else { 2 };
        held.extend((0..attempts).filter_map(|_| scene.call(millis)));
        let is_admitted = scene.call(millis).is_some();
        assert!(is_admitted || millis <= 401, "{millis} ms: {}", held.len());
    }
}

/// Ended calls are retried immediately; another client calls periodically.
#[test]
fn retried_calls_do_not_block_another_client() {
    let scene = Scene::new();
    let mut held = Vec::new();
    for second in 0..10 {
        let at = 2_000 * second;
        held.retain(|call: &Grant| !call.end().is_cancelled());
        held.extend(std::iter::from_fn(|| scene.call(at)));
        held.retain(|call: &Grant| !call.end().is_cancelled());
        let call = scene.call(at + 1_000);
        assert!(call.is_some_and(|call| call.receive(3 * SMALL_REQUEST_BYTES, scene.at(at))));
    }
}

#[test]
fn retried_calls_do_not_block_others_of_their_address() {
    let scene = Scene::new();
    let address = scene.share();
    let open = |at| address.open(CallKind::Health, scene.at(at));
    let held: Vec<_> = std::iter::from_fn(|| open(0)).collect();
    assert_eq!(held.len(), SHARE_BYTES_MAX / (32 * 1024));
    assert!(open(100).is_none());
    // Only as many calls as needed are ended.
    let calls = [open(1_000), open(1_000)];
    assert!(calls.iter().all(Option::is_some));
    assert_eq!(ended(&held), calls.len());
}

/// Makes calls at the maximum rate of all connections for three seconds, each from a new address and never finished. Returns
/// the number of calls rejected after the minimum hold time.
fn refused_at_full_rate(scene: &Scene, kind: CallKind) -> u64 {
    let rate = match kind {
        CallKind::Stream => 2_000,
        CallKind::Health | CallKind::Other => 1_000,
    };
    let mut open: Vec<Grant> = Vec::new();
    let mut refused = 0;
    for number in 0..3 * rate {
        let now = scene.started + Duration::from_secs(1) * number / rate;
        open.retain(|grant| !grant.end().is_cancelled());
        match scene.share().open(kind, now) {
            Some(grant) => open.push(grant),
            None => refused += u64::from(now > scene.started + HOLD_TIME),
        }
    }
    refused
}

#[test]
fn unfinished_streams_at_full_rate_do_not_block_streams() {
    assert_eq!(refused_at_full_rate(&Scene::new(), CallKind::Stream), 0);
}

#[test]
fn health_checks_and_reflection_at_full_rate_block_only_each_other() {
    for kind in [CallKind::Health, CallKind::Other] {
        let scene = Scene::new();
        assert!(refused_at_full_rate(&scene, kind) > 0, "{kind:?}");
        let still_open = scene.calls(CALLS_MAX, 0);
        assert_eq!(ended(&still_open), 0);
    }
}
