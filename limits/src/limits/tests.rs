//! Tests of the heap memory of key states.

use std::time::Duration;

use super::*;
use crate::{algorithm::Algorithm, meter::Meter};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;

fn demand(limit: LimitId, key: u32) -> Demand<u32> {
    Demand {
        limit,
        key,
        requests: 1,
    }
}

#[test]
fn known_keys_take_no_more_bytes_than_new_ones() {
    let window = Duration::from_secs(1);
    let (limit, step) = (9, window / 10);
    for algorithm in [
        Algorithm::token_bucket("9/s", 3).unwrap(),
        Algorithm::SlidingCounter { limit, window },
        Algorithm::SlidingLog { limit, window },
        Algorithm::StepWindow {
            limit,
            window,
            step,
        },
    ] {
        let mut limits = Limits::new(9);
        let id = limits.add(algorithm).unwrap();
        for call in 0..100 {
            let now = START + call * SECOND / 17;
            limits.reserve(&[demand(id, 0)], now, Duration::ZERO);
            let bytes = limits.state_of(id, &0).heap_bytes();
            let expected = Meter::new(&algorithm).bytes_per_key();
            assert_eq!(bytes, expected, "{algorithm:?}");
        }
    }
}

#[test]
fn bytes_of_bookings_are_bounded() {
    let mut limits = Limits::new(9);
    let user = limits
        .add(Algorithm::token_bucket("1/s", 1).unwrap())
        .unwrap();
    let whole = limits
        .add(Algorithm::token_bucket("100/s", 10).unwrap())
        .unwrap();
    let both = [demand(whole, 0), demand(user, 1)];
    for _ in 0..4_100 {
        limits.reserve(&both, START, Duration::from_secs(86_400));
    }
    let bytes = limits.state_of(whole, &0).heap_bytes();
    assert!((60_000..70_000).contains(&bytes), "{bytes}");
}
