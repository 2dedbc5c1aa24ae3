//! Tests that a DSP above its limit does not affect other DSPs.

use super::{MILLISECOND, SECOND, World};
use crate::inlet::counters::CookieOutcome;

/// Limits of 100/s for each of twenty DSPs, and a global limit of `global` per second.
fn limits(global: u64) -> String {
    let dsps: Vec<String> = (1..=20).map(|dsp| dsp.to_string()).collect();
    format!(
        r#"
        unknown = "others"
        [limits.each]
        keys = [{}]
        mode = "shape"
        shape = {{ queue_bytes = "1MiB" }}
        rules = [ {{ id = "peak", rate = "100/s" }} ]
        [limits.others]
        mode = "shape"
        rules = [ {{ id = "peak", rate = "50/s" }} ]
        [limits.global]
        global = true
        rules = [ {{ id = "intake", rate = "{global}/s", burst = 20 }} ]
        "#,
        dsps.join(", ")
    )
}

/// Each DSP offers 80 cookies/s in bursts of 40 for 20 s; DSP 1 offers `factor` times as many. Returns the sorted delays
/// of the other DSPs, and the number of released cookies of each DSP.
fn delays(limits: &str, factor: u64) -> (Vec<u64>, Vec<u64>) {
    let mut world = World::new(limits);
    let mut number = 0;
    for half in 0..40_u64 {
        world.advance_to(half * SECOND / 2);
        for dsp in 1..=20 {
            let count = if dsp == 1 { 40 * factor } else { 40 };
            for _ in 0..count {
                number += 1;
                world.offer(dsp, &format!("u{number}"));
            }
        }
    }
    world.advance_to(60 * SECOND);
    world.summary("each");
    let of = |dsp: u32| {
        world
            .releases
            .iter()
            .filter(move |release| release.dsp == dsp)
    };
    let mut delays: Vec<u64> = (2..=20)
        .flat_map(of)
        .map(|release| release.at - release.accepted)
        .collect();
    delays.sort_unstable();
    let counts = (1..=20).map(|dsp| of(dsp).count() as u64).collect();
    (delays, counts)
}

#[track_caller]
fn check_flooder(global: u64) {
    let limits = limits(global);
    let ((without, _), (with, counts)) = (delays(&limits, 1), delays(&limits, 100));
    let p99 = |delays: &[u64]| delays[delays.len() * 99 / 100];
    let (without, with) = (p99(&without), p99(&with));
    assert!(
        with <= without * 6 / 5,
        "p99 delay: {with} ns with a flooder, {without} ns without"
    );
    assert!(
        counts[1..].iter().all(|count| *count == 1_600),
        "{counts:?}"
    );
    // The flooder gets its rate and no more.
    assert!(counts[0] <= 60 * 100 + 1, "{counts:?}");
}

#[test]
fn flooder_does_not_affect_others_if_the_global_limit_covers_all_limits() {
    check_flooder(2_000);
}

#[test]
fn flooder_does_not_affect_others_if_the_global_limit_is_lower() {
    // 20 limits of 100/s, and a global limit of 1,700/s, which suffices for the load of the other DSPs.
    check_flooder(1_700);
}

#[test]
fn policed_dsp_within_its_limit_loses_nothing_when_shaped_queues_are_active() {
    let mut world = World::new(
        r#"
        unknown = "others"
        [limits.others]
        rules = [ { id = "peak", rate = "1/s" } ]
        [limits.shaped]
        keys = [1]
        mode = "shape"
        rules = [ { id = "peak", rate = "10000/s" } ]
        [limits.policed]
        keys = [2]
        mode = "police"
        rules = [ { id = "peak", rate = "100/s" } ]
        [limits.global]
        global = true
        rules = [ { id = "intake", rate = "2000/s", burst = 200 } ]
        "#,
    );
    for millisecond in 0..2_000_u64 {
        world.advance_to(millisecond * MILLISECOND);
        for number in 0..5 {
            world.offer(1, &format!("u{millisecond}-{number}"));
        }
        if millisecond % 20 == 7 {
            world.offer(2, &format!("v{millisecond}"));
        }
    }
    assert_eq!(
        world
            .summary("policed")
            .counters
            .of(CookieOutcome::Released),
        100
    );
    let total = world.releases.len();
    assert!(total <= 2 * 2_000 + 200 + 20, "{total}");
}

#[test]
fn queues_share_a_global_limit_equally_regardless_of_their_length() {
    let mut world = World::new(&limits(1_000));
    for number in 0..20_000 {
        world.offer(1, &format!("u{number}"));
    }
    for dsp in 2..=20 {
        for number in 0..1_000 {
            world.offer(dsp, &format!("u{number}"));
        }
    }
    world.advance_to(10 * SECOND);
    let counts: Vec<usize> = (1..=20)
        .map(|dsp| {
            world
                .releases
                .iter()
                .filter(|release| release.dsp == dsp)
                .count()
        })
        .collect();
    let (min, max) = (counts.iter().min(), counts.iter().max());
    assert!(max.unwrap() - min.unwrap() <= 25, "{counts:?}");
    assert!(counts.iter().sum::<usize>() <= 10_020, "{counts:?}");
}

#[test]
fn unlisted_dsps_share_one_limit() {
    let mut world = World::new(&limits(2_000));
    for dsp in 100..1_100 {
        world.offer(dsp, "u");
    }
    world.advance_to(SECOND - 1);
    assert_eq!(world.releases.len(), 50);
    assert_eq!(world.summary("others").counters.accepted, 1_000);
    // A listed DSP waits for at most one slot of the global limit.
    world.offer(3, "u");
    world.advance_to(SECOND + MILLISECOND);
    assert!(world.releases.iter().any(|release| release.dsp == 3));
}
