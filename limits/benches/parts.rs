//! Benchmark of a decision, compared with `governor`'s keyed limiter in the same run.
//!
//! The measured functions are in [`counted`]: `cargo bench -p limits` measures their time, and `.ci/instructions`
//! counts their instructions. Each function makes [`ITEMS`] decisions per call, for known keys.

use std::num::NonZeroU32;

use divan::{Bencher, counter::ItemsCount};
use governor::{Quota, RateLimiter, clock::FakeRelativeClock};
use limits::{Algorithm, Limits};

/// Decisions per call of a function; `.ci/instructions` divides by it.
const ITEMS: u64 = 10_000;

const KEYS: u64 = 1_000;

fn main() {
    divan::main();
}

/// The measured functions. They are not inlined and not generic, so that each function is one symbol. Only the
/// benchmark of the same name calls a function, because `.ci/instructions` counts every call.
mod counted {
    use std::{hint::black_box, time::Duration};

    use governor::{
        RateLimiter, clock::FakeRelativeClock, middleware::NoOpMiddleware, nanos::Nanos,
        state::keyed::HashMapStateStore,
    };
    use limits::{Demand, LimitId, Limits};

    use super::{ITEMS, KEYS};

    pub(super) type Governor =
        RateLimiter<u64, HashMapStateStore<u64>, FakeRelativeClock, NoOpMiddleware<Nanos>>;

    /// Keys in an order that defeats prefetching, at times at which a limit of 1000/s admits nearly all calls.
    fn calls(from: u64) -> impl Iterator<Item = (u64, u64)> {
        (from..from + ITEMS).map(|number| (number * 617 % KEYS, number * 2_000))
    }

    fn demand(limit: LimitId, key: u64) -> Demand<u64> {
        Demand {
            limit,
            key,
            requests: 1,
        }
    }

    /// Decisions under one token bucket that admit the call.
    #[inline(never)]
    pub(super) fn one(limits: &mut Limits<u64>, limit: LimitId, from: u64) {
        for (key, now) in calls(from) {
            black_box(limits.reserve(&[demand(limit, key)], now, Duration::ZERO));
        }
    }

    /// Decisions under three token buckets: one for the key, one for its group (of twenty), and a global one.
    #[inline(never)]
    pub(super) fn three(limits: &mut Limits<u64>, ids: [LimitId; 3], from: u64) {
        let [own, group, global] = ids;
        for (key, now) in calls(from) {
            let demands = [demand(own, key), demand(group, key % 20), demand(global, 0)];
            black_box(limits.reserve(&demands, now, Duration::ZERO));
        }
    }

    /// Decisions of `governor` under one limit.
    #[inline(never)]
    pub(super) fn governor(limiter: &Governor, clock: &FakeRelativeClock, from: u64) {
        for (key, _) in calls(from) {
            clock.advance(Duration::from_nanos(2_000));
            black_box(limiter.check_key(&key).is_ok());
        }
    }
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::token_bucket(rate, burst).expect("a valid rate")
}

/// Runs a function repeatedly with increasing times; once before the measurement, so that all keys are known.
fn measure(bencher: Bencher<'_, '_>, mut part: impl FnMut(u64)) {
    let mut from = 1_000_000;
    let mut next = || {
        part(from);
        from += ITEMS;
    };
    next();
    bencher.counter(ItemsCount::new(ITEMS)).bench_local(next);
}

#[divan::bench]
fn one(bencher: Bencher<'_, '_>) {
    let mut limits = Limits::new(10_000);
    let limit = limits.add(bucket("1000/s", 100)).expect("a valid limit");
    measure(bencher, |from| counted::one(&mut limits, limit, from));
}

#[divan::bench]
fn three(bencher: Bencher<'_, '_>) {
    let mut limits = Limits::new(10_000);
    let ids = [
        bucket("1000/s", 100),
        bucket("50000/s", 100),
        bucket("1000000/s", 1_000),
    ];
    let ids = ids.map(|limit| limits.add(limit).expect("a valid limit"));
    measure(bencher, |from| counted::three(&mut limits, ids, from));
}

#[divan::bench]
fn governor(bencher: Bencher<'_, '_>) {
    let clock = FakeRelativeClock::default();
    let number = |number| NonZeroU32::new(number).expect("not zero");
    let quota = Quota::per_second(number(1_000)).allow_burst(number(100));
    let limiter: counted::Governor = RateLimiter::new(quota, Default::default(), clock.clone());
    measure(bencher, |from| counted::governor(&limiter, &clock, from));
}
