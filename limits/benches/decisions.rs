//! What a decision costs, beside `governor`'s keyed limiter in the same run.

use std::{num::NonZeroU32, time::Duration};

use divan::{Bencher, black_box};
use governor::{
    Quota, RateLimiter, clock::FakeRelativeClock, middleware::NoOpMiddleware, nanos::Nanos,
    state::keyed::HashMapStateStore,
};
use limits::{Algorithm, Demand, Limit, LimitId, Limits};

const KEYS: u64 = 1_000;

fn main() {
    divan::main();
}

fn rate() -> Algorithm {
    Algorithm::token_bucket("1000/s", 100).expect("a good rate")
}

fn demand(limit: LimitId, key: u64) -> Demand<u64> {
    Demand {
        limit,
        key,
        requests: 1,
    }
}

/// Keys in an order that no cache line foresees, and a time that goes on by what makes most decisions pass.
fn calls() -> impl FnMut() -> (u64, u64) {
    let (mut key, mut now) = (0, 1_000_000_000_000);
    move || {
        key = (key + 617) % KEYS;
        now += 2_000;
        (key, now)
    }
}

/// Decides once for each key, so that none is new any more.
fn known<T>(decide: &mut impl FnMut() -> T) {
    for _ in 0..KEYS {
        black_box(decide());
    }
}

#[divan::bench]
fn one_token_bucket(bencher: Bencher) {
    let mut limits = Limits::new(10_000);
    let limit = limits.add(rate()).expect("a good limit");
    let mut next = calls();
    let mut decide = || {
        let (key, now) = next();
        limits.reserve(black_box(&[demand(limit, key)]), now, Duration::ZERO)
    };
    known(&mut decide);
    bencher.bench_local(decide);
}

#[divan::bench]
fn three_limits_together(bencher: Bencher) {
    let mut limits = Limits::new(10_000);
    let own = limits.add(rate()).expect("a good limit");
    let contract = limits.add(rate()).expect("a good limit");
    let whole = Algorithm::token_bucket("1000000/s", 10_000).expect("a good rate");
    let whole = limits.add(whole).expect("a good limit");
    let mut next = calls();
    let mut decide = || {
        let (key, now) = next();
        let demands = [
            demand(own, key),
            demand(contract, key % 20),
            demand(whole, 0),
        ];
        limits.reserve(black_box(&demands), now, Duration::ZERO)
    };
    known(&mut decide);
    bencher.bench_local(decide);
}

#[divan::bench]
fn one_refused(bencher: Bencher) {
    let mut limits = Limits::new(10_000);
    let limit = Limit::from(Algorithm::token_bucket("1/h", 1).expect("a good rate"));
    let limit = limits.add(limit).expect("a good limit");
    let mut next = calls();
    let mut decide = || {
        let (key, now) = next();
        limits.reserve(black_box(&[demand(limit, key)]), now, Duration::ZERO)
    };
    known(&mut decide);
    bencher.bench_local(decide);
}

#[divan::bench]
fn governor_keyed(bencher: Bencher) {
    let clock = FakeRelativeClock::default();
    let burst = NonZeroU32::new(100).expect("not zero");
    let quota = Quota::per_second(NonZeroU32::new(1_000).expect("not zero")).allow_burst(burst);
    let store: HashMapStateStore<u64> = HashMapStateStore::default();
    let limiter: RateLimiter<u64, _, _, NoOpMiddleware<Nanos>> =
        RateLimiter::new(quota, store, clock.clone());
    let mut next = calls();
    let mut decide = || {
        let (key, _) = next();
        clock.advance(Duration::from_nanos(2_000));
        limiter.check_key(black_box(&key)).is_ok()
    };
    known(&mut decide);
    bencher.bench_local(decide);
}
