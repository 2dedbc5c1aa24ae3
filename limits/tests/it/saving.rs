//! Tests that restored states lead to the same decisions as live ones, also after a change of limits.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use limits::{
    Algorithm, Alignment, CarryOver, Decision, Demand, KeyState, Limit, LimitId, Limits,
    RecordError, RecordOutcome, RestoreError,
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// One algorithm per kind, with small parameters, so that edge cases are frequent.
fn algorithm(kind: usize, random: &mut Rng) -> Algorithm {
    let window = Duration::from_nanos(random.u64(1..=5) * SECOND);
    let limit = random.u64(1..=8);
    let rate = limits::Rate::new(random.u64(1..=7), window).expect("a valid rate");
    let burst = random.u64(1..=6);
    match kind % 10 {
        0 => Algorithm::TokenBucket { rate, burst },
        1 => Algorithm::SteppedBucket { rate, burst },
        2 => Algorithm::LeakyBucket {
            rate,
            capacity: burst,
        },
        3 => Algorithm::TokenBucket { rate, burst: 1 },
        4 => Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::Clock,
        },
        5 => Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::FirstCall,
        },
        6 => Algorithm::SlidingLog { limit, window },
        7 => Algorithm::SlidingCounter { limit, window },
        8 => Algorithm::StepWindow {
            limit,
            window,
            step: window / 10,
        },
        _ => Algorithm::WarmUp {
            rate,
            warm_up: window,
        },
    }
}

fn limit(kind: usize, random: &mut Rng) -> Limit {
    let algorithm = algorithm(kind, random);
    Limit {
        count_refused: matches!(kind % 10, 4..=8) && random.u8(..4) == 0,
        ..algorithm.into()
    }
}

fn demand(limit: LimitId, key: u32, requests: u64) -> Demand<u32> {
    Demand {
        limit,
        key,
        requests,
    }
}

/// The saved state of each key.
type Saved = BTreeMap<(LimitId, u32), String>;

fn written(state: &KeyState) -> String {
    serde_json::to_string(state).expect("serializable")
}

fn read(written: &str) -> KeyState {
    serde_json::from_str(written).expect("deserializable")
}

/// Saves changes since the last call.
fn save(limits: &mut Limits<u32>, saved: &mut Saved) {
    limits.take_changes(|limit, _, key, state| {
        match state {
            Some(state) => saved.insert((limit, *key), written(state)),
            None => saved.remove(&(limit, *key)),
        };
    });
}

/// Restores states saved under the limits `was`, under the limits `all`, like another process.
fn restored(all: &[Limit], was: &[Limit], saved: &Saved, now: u64) -> Limits<u32> {
    let mut limits = Limits::new(1_000);
    limits.track_changes();
    for limit in all {
        limits.add(*limit).expect("valid parameters");
    }
    for ((id, key), state) in saved {
        let was = &was[id.index()];
        let restored = limits.restore(*id, *key, was, read(state), now);
        restored.expect("a saved state");
    }
    limits
}

/// Makes the same random call to both limiters.
fn step(random: &mut Rng, ids: &[LimitId], now: u64, mut both: [&mut Limits<u32>; 2]) {
    let key = random.u32(..3);
    let demands: Vec<_> = ids
        .iter()
        .map(|id| demand(*id, key, random.u64(0..=3)))
        .collect();
    let max_wait = Duration::from_nanos(random.u64(..10) * SECOND);
    let from = if random.u8(..5) == 0 {
        now + random.u64(..SECOND)
    } else {
        0
    };
    let at = now - random.u64(..3 * SECOND);
    let choice = random.u8(..8);
    let decided = both.each_mut().map(|limits| match choice {
        0 => format!("{:?}", limits.record(&demands, at, now)),
        1 => format!("{:?}", limits.peek(&demands, from, now)),
        2 => format!("{:?}", limits.remaining(ids[0], &key, now)),
        _ => {
            format!("{:?}", limits.reserve_from(&demands, from, now, max_wait))
        }
    });
    let limits = ids.iter().map(|id| both[0].limit(*id)).collect::<Vec<_>>();
    assert_eq!(
        decided[0], decided[1],
        "{demands:?} at {now} under {limits:?}"
    );
}

#[test]
fn restored_limits_decide_like_live_ones() {
    for seed in 0..400 {
        let mut random = Rng::with_seed(seed);
        let kind = usize::try_from(seed).unwrap();
        let all = [limit(kind, &mut random), limit(kind / 10, &mut random)];
        let mut live = Limits::new(1_000);
        live.track_changes();
        let mut saved = Saved::new();
        let ids = all.map(|limit| live.add(limit).unwrap());
        let mut other = restored(&all, &all, &Saved::new(), START);
        let mut now = START;
        for _ in 0..8 {
            for _ in 0..random.usize(..25) {
                now += random.u64(..SECOND / 2);
                step(&mut random, &ids, now, [&mut live, &mut other]);
            }
            now += random.u64(..SECOND);
            // Idle keys are not saved, because they can be evicted at any time.
            live.evict_idle(1_000, now);
            save(&mut live, &mut saved);
            assert_eq!(saved.len(), live.keys());
            other = restored(&all, &all, &saved, now);
        }
    }
}

#[test]
fn restored_usage_follows_changed_limits() {
    for seed in 0..400 {
        let mut random = Rng::with_seed(seed);
        let kind = usize::try_from(seed).unwrap();
        let was = [limit(kind, &mut random), limit(kind / 10, &mut random)];
        let is = [limit(kind / 3, &mut random), limit(kind, &mut random)];
        let mut live = Limits::new(1_000);
        live.track_changes();
        let mut saved = Saved::new();
        let ids = was.map(|limit| live.add(limit).unwrap());
        let mut twin = restored(&was, &was, &Saved::new(), START);
        let mut now = START;
        for _ in 0..random.usize(..40) {
            now += random.u64(..SECOND / 2);
            step(&mut random, &ids, now, [&mut live, &mut twin]);
        }
        live.evict_idle(1_000, now);
        save(&mut live, &mut saved);
        now += random.u64(..SECOND);
        let mut other = restored(&is, &was, &saved, now);
        for (id, limit) in ids.into_iter().zip(is) {
            live.change_all(&[(id, limit, CarryOver::Usage)], now)
                .unwrap();
        }
        // Converted states are saved under the new limits.
        for limits in [&mut live, &mut other] {
            save(limits, &mut saved);
            let mut again = restored(&is, &is, &saved, now);
            again.evict_idle(1_000, now);
            limits.evict_idle(1_000, now);
            assert_eq!(again.keys(), limits.keys());
        }
        for _ in 0..30 {
            now += random.u64(..SECOND / 2);
            step(&mut random, &ids, now, [&mut live, &mut other]);
        }
    }
}

#[test]
fn state_of_another_algorithm_is_rejected() {
    let mut random = Rng::with_seed(7);
    let all: Vec<Limit> = (0..10).map(|kind| limit(kind, &mut random)).collect();
    for of in &all {
        let mut limits = Limits::new(1);
        limits.track_changes();
        let id = limits.add(*of).unwrap();
        limits.reserve(&[demand(id, 1, 1)], START, Duration::ZERO);
        let mut saved = Saved::new();
        save(&mut limits, &mut saved);
        let state = &saved[&(id, 1)];
        let full = limits.restore(id, 2, of, read(state), START);
        assert_eq!(full, Err(RestoreError::TableFull));
        for other in &all {
            let mut limits = Limits::new(1);
            let id = limits.add(*other).unwrap();
            // Every accepted state can be used.
            match limits.restore(id, 1, other, read(state), START) {
                Ok(_) => drop(limits.reserve(&[demand(id, 1, 1)], START, Duration::MAX)),
                Err(error) => assert_eq!((error, limits.keys()), (RestoreError::Mismatch, 0)),
            }
        }
    }
}

#[test]
fn old_reports_are_ignored_and_future_ones_rejected() {
    let window = Duration::from_secs(10);
    for (algorithm, reach, step) in [
        (Algorithm::token_bucket("1/s", 4).unwrap(), 4, 10),
        (Algorithm::SlidingLog { limit: 9, window }, 10, 10),
        (
            Algorithm::StepWindow {
                limit: 9,
                window,
                step: Duration::from_secs(1),
            },
            10,
            1_000,
        ),
        (Algorithm::token_bucket("1/min", 2).unwrap(), 120, 1_000),
    ] {
        let mut limits = Limits::new(9);
        let id = limits.add(algorithm).unwrap();
        let demands = [demand(id, 1, 1)];
        let used =
            |limits: &Limits<u32>| algorithm.max_burst() - limits.remaining(id, &1, START).requests;
        let too_old = limits.record(&demands, START - reach * SECOND, START);
        assert_eq!(too_old, Ok(RecordOutcome::TooOld), "{algorithm:?}");
        assert_eq!(used(&limits), 0);
        let late = START - (reach - 1) * SECOND;
        assert_eq!(
            limits.record(&demands, late, START),
            Ok(RecordOutcome::Counted)
        );
        assert_eq!(used(&limits), 1);
        let ahead = START + step * SECOND / 1_000;
        assert_eq!(
            limits.record(&demands, ahead, START),
            Ok(RecordOutcome::Counted)
        );
        let future = limits.record(&demands, ahead + 1, START);
        assert!(
            matches!(future, Err(RecordError::TooEarly)),
            "{algorithm:?}"
        );
        assert_eq!(used(&limits), 2);
    }
}

#[test]
fn call_is_not_made_before_its_minimum_time() {
    let mut limits = Limits::new(9);
    let id = limits
        .add(Algorithm::token_bucket("1/s", 2).unwrap())
        .unwrap();
    let demands = [demand(id, 1, 1)];
    let from = START + 5 * SECOND;
    let max_wait = Duration::from_secs(5);
    assert_eq!(limits.peek(&demands, from, START), Ok((from, None)));
    let refused = limits.reserve_from(&demands, from + 1, START, max_wait);
    assert!(matches!(refused, Decision::Refused { .. }));
    let waiting = Decision::At {
        at: from,
        limit: id,
    };
    assert_eq!(
        limits.reserve_from(&demands, from, START, max_wait),
        waiting
    );
    // Later calls that need not wait get earlier slots.
    for at in [0, 0, 1, 2, 3, 4] {
        let decision = limits.reserve(&demands, START, max_wait * 2);
        assert_eq!(decision.at(START), Some(START + at * SECOND));
    }
    let later = limits.reserve(&demands, START, max_wait * 2);
    assert_eq!(later.at(START), Some(from + SECOND));
}
