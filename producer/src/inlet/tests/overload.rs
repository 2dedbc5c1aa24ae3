//! Tests of overload: 350 to 450, and 600 cookies per second under a limit of 300 per second.

use super::{MILLISECOND, SECOND, World};
use crate::inlet::counters::CookieOutcome;

const LIMITS: &str = r#"
unknown = "unlimited"
[limits.gateway]
keys = [17]
mode = "shape"
rules = [ { id = "limit", rate = "300/s" } ]
"#;

/// Offers `rate(second)` cookies per second for `seconds`, each of a different user; returns their number.
fn offer(world: &mut World, seconds: u64, rate: impl Fn(u64) -> u64) -> u64 {
    let (begin, mut count) = (world.now, 0);
    for second in 0..seconds {
        let rate = rate(second);
        for index in 0..rate {
            world.advance_to(begin + second * SECOND + index * SECOND / rate);
            world.offer(17, &format!("u{begin}-{count}"));
            count += 1;
        }
    }
    world.advance_to(begin + seconds * SECOND);
    count
}

#[track_caller]
fn check_every_second(world: &World) {
    let seconds = world.by_second(|_| true);
    // The last second is incomplete.
    let full = &seconds[..seconds.len() - 1];
    assert!(full.iter().all(|count| *count == 300), "{seconds:?}");
}

#[test]
fn varying_overload_is_released_at_exactly_the_rate() {
    let mut world = World::new(LIMITS);
    let count = offer(&mut world, 600, |second| 350 + second * 37 % 101);
    check_every_second(&world);
    let summary = world.summary("gateway");
    assert_eq!(summary.counters.accepted, count);
    // The expected wait is at its maximum, and excess cookies are counted.
    let [delayed, refused, ..] = summary.counters.rules["limit"];
    assert!(delayed > 100_000 && refused > 10_000, "{summary:#?}");
    assert!(summary.usage.queued > 8_000, "{:?}", summary.usage);
    assert!(summary.usage.overdue > 1_000, "{:?}", summary.usage);
}

#[test]
fn constant_overload_is_released_at_exactly_the_rate() {
    let mut world = World::new(LIMITS);
    offer(&mut world, 180, |_| 600);
    check_every_second(&world);
    // Only requeued cookies are older than max_age.
    let summary = world.summary("gateway");
    let late = world
        .releases
        .iter()
        .filter(|release| release.at - release.accepted > 60 * SECOND);
    assert!(late.count() as u64 <= summary.counters.requeued);
}

#[test]
fn overdue_cookies_are_all_released_after_the_overload() {
    let mut world = World::new(LIMITS);
    let count = offer(&mut world, 180, |_| 600);
    let overdue = world.usage("gateway").overdue;
    assert!(overdue > 10_000, "{overdue}");
    // Without new cookies, the queue drains; overdue cookies are requeued at a tenth of the rate.
    world.advance_to(180 * SECOND + 3600 * SECOND);
    let summary = world.summary("gateway");
    assert_eq!(
        summary.usage.queued + summary.usage.overdue + summary.usage.parked,
        0
    );
    assert_eq!(summary.counters.of(CookieOutcome::Released), count);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 300), "{seconds:?}");
}

#[test]
fn requeued_cookies_use_a_tenth_of_the_rate() {
    let mut world = World::new(LIMITS);
    offer(&mut world, 180, |_| 600);
    world.advance_to(240 * SECOND);
    let before = world.summary("gateway").counters.requeued;
    world.advance_to(300 * SECOND);
    let requeued = world.summary("gateway").counters.requeued - before;
    assert!(
        (1_700..=1_801).contains(&requeued),
        "{requeued} requeued in a minute"
    );
}

#[test]
fn late_timer_does_not_lower_the_rate() {
    let mut world = World::new(LIMITS);
    world.late = 2 * MILLISECOND;
    offer(&mut world, 60, |_| 600);
    assert!(
        (17_990..=18_001).contains(&world.releases.len()),
        "{}",
        world.releases.len()
    );
}
