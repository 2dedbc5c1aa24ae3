//! The runs of the gateway that this was learnt from: 350 to 450 a second, and 600, against a contract of 300.

use super::{MILLISECOND, SECOND, World};

const LIMITS: &str = r#"
unknown = "unlimited"
[limits.gateway]
keys = [17]
mode = "shape"
rules = [ { id = "contract", rate = "300/s" } ]
"#;

/// Offers `rate` a second, each of another user, for so many seconds; `rate` is told the second.
fn offered(world: &mut World, seconds: u64, rate: impl Fn(u64) -> u64) -> u64 {
    let (begin, mut count) = (world.now, 0);
    for second in 0..seconds {
        let rate = rate(second);
        for index in 0..rate {
            world.pass_to(begin + second * SECOND + index * SECOND / rate);
            world.offer(17, &format!("u{begin}-{count}"));
            count += 1;
        }
    }
    world.pass_to(begin + seconds * SECOND);
    count
}

#[track_caller]
fn check_every_second(world: &World) {
    let seconds = world.by_second(|_| true);
    // The last has only begun.
    let full = &seconds[..seconds.len() - 1];
    assert!(full.iter().all(|count| *count == 300), "{seconds:?}");
}

#[test]
fn between_350_and_450_a_second_for_ten_minutes_let_300_go_in_each() {
    let mut world = World::new(LIMITS);
    let count = offered(&mut world, 600, |second| 350 + second * 37 % 101);
    check_every_second(&world);
    let summary = world.summary("gateway");
    assert_eq!(summary.figures.accepted, count);
    // The debt is at the maximum wait, and what is beyond is told.
    let [delayed, refused] = summary.figures.rules["contract"].over;
    assert!(delayed > 100_000 && refused > 10_000, "{summary:#?}");
    assert!(summary.holding.waiting > 8_000, "{:?}", summary.holding);
    assert!(summary.holding.dead > 1_000, "{:?}", summary.holding);
}

#[test]
fn six_hundred_a_second_for_three_minutes_let_300_go_in_each() {
    let mut world = World::new(LIMITS);
    offered(&mut world, 180, |_| 600);
    check_every_second(&world);
    // None went that was older than allowed, but for those that were requeued.
    let summary = world.summary("gateway");
    let late = world
        .gone
        .iter()
        .filter(|gone| gone.at - gone.accepted > 60 * SECOND);
    assert!(late.count() as u64 <= summary.figures.requeued);
}

#[test]
fn dead_letters_come_back_when_load_falls_and_nothing_is_lost() {
    let mut world = World::new(LIMITS);
    let count = offered(&mut world, 180, |_| 600);
    let dead = world.holding("gateway").dead;
    assert!(dead > 10_000, "{dead}");
    // Nothing is offered any more: what waits goes, and the dead at a tenth of the rate.
    world.pass_to(180 * SECOND + 3600 * SECOND);
    let summary = world.summary("gateway");
    assert_eq!(
        summary.holding.waiting + summary.holding.dead + summary.holding.parked,
        0
    );
    assert_eq!(summary.figures.released, count);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 300), "{seconds:?}");
}

#[test]
fn revived_ones_take_a_tenth_of_the_rate() {
    let mut world = World::new(LIMITS);
    offered(&mut world, 180, |_| 600);
    world.pass_to(240 * SECOND);
    let before = world.summary("gateway").figures.requeued;
    world.pass_to(300 * SECOND);
    let requeued = world.summary("gateway").figures.requeued - before;
    assert!(
        (1_700..=1_801).contains(&requeued),
        "{requeued} in a minute"
    );
}

#[test]
fn timer_that_is_late_costs_no_rate() {
    let mut world = World::new(LIMITS);
    world.late = 2 * MILLISECOND;
    offered(&mut world, 60, |_| 600);
    assert!(
        (17_990..=18_001).contains(&world.gone.len()),
        "{}",
        world.gone.len()
    );
}
