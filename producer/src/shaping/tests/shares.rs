//! Shares of a limit that change while cookies wait.

use limits::rules::Rules;

use super::{SECOND, START, World, rules};
use crate::shaping::{room::Offered, shaper::Shares};

fn shaped() -> &'static str {
    "unknown = \"unlimited\"\n[limits.seventeen]\nkeys = [17]\nmode = \"shape\"\nrules = [ { id = \"peak\", rate = \"300/s\", burst = 30 } ]\n"
}

/// So many millionths of each limit.
fn share(world: &mut World, rules: &Rules, millionths: u64) {
    let of = rules.limits.iter().map(|it| (it.name.clone(), millionths));
    let shares = Shares {
        of: of.collect(),
        members_max: Some(1),
        is_refused: false,
    };
    world.shaper.share(rules, shares, START + world.now);
}

/// 500 a second come.
fn come(world: &mut World, seconds: u64) {
    for number in 0..500 * seconds {
        let at = world.now + SECOND / 500;
        world.pass_to(at);
        world.offer(17, &format!("user-{at}-{number}"));
    }
}

#[test]
fn what_waits_goes_at_the_rate_of_the_share_as_it_is() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    for (second, millionths) in [(0, 500_000), (10, 100_000), (20, 1_000_000)] {
        assert_eq!(world.now, second * SECOND);
        share(&mut world, &rules, millionths);
        come(&mut world, 10);
    }
    let by_second = world.by_second(|_| true);
    for (second, count) in by_second[..30].iter().enumerate() {
        let rate = [150, 30, 300][second / 10];
        // A burst at the beginning, and one interval where shares change.
        let most = if second == 0 { rate + 15 } else { rate + 1 };
        assert!((rate - 2..=most).contains(count), "{second}: {by_second:?}");
    }
}

#[test]
fn without_a_share_all_waits_and_none_is_lost_when_one_comes() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    share(&mut world, &rules, 0);
    come(&mut world, 1);
    world.pass_to(6 * SECOND);
    // The one of a burst that is rounded up.
    assert_eq!(world.gone.len(), 1);
    share(&mut world, &rules, 1_000_000);
    world.pass_to(9 * SECOND);
    assert_eq!(
        (world.gone.len(), world.holding("seventeen").dead),
        (500, 0)
    );
}

#[test]
fn what_died_without_a_share_comes_back_when_there_is_one() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    share(&mut world, &rules, 0);
    come(&mut world, 1);
    world.pass_to(180 * SECOND);
    assert!(world.holding("seventeen").dead > 0);
    share(&mut world, &rules, 1_000_000);
    world.pass_to(1_800 * SECOND);
    assert_eq!(
        (world.gone.len(), world.holding("seventeen").dead),
        (500, 0)
    );
}

#[test]
fn demand_is_what_comes_and_what_waits() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    share(&mut world, &rules, 500_000);
    come(&mut world, 1);
    let waiting = world.holding("seventeen").waiting;
    let demands = world.shaper.demands(&rules, SECOND, 3 * SECOND);
    let expected = (500 + waiting / 3) * 1_000_000 / 300;
    assert_eq!(demands.len(), 1);
    assert!(
        demands[0].1.abs_diff(expected) < 10_000,
        "{demands:?} {expected}"
    );
    // Nothing came since.
    let demands = world.shaper.demands(&rules, SECOND, 3 * SECOND);
    assert!(demands[0].1.abs_diff(waiting / 3 * 1_000_000 / 300) < 10_000);
}

#[test]
fn share_outlasts_a_change_of_the_file() {
    let first = rules(shaped());
    let mut world = World::new(shaped());
    share(&mut world, &first, 100_000);
    come(&mut world, 2);
    world.change(&shaped().replace("300/s", "600/s"));
    come(&mut world, 5);
    let by_second = world.by_second(|_| true);
    for count in &by_second[3..7] {
        assert!((59..=61).contains(count), "{by_second:?}");
    }
    assert_eq!(world.offer(18, "user"), Offered::Release);
}

#[test]
fn of_a_window_nothing_goes_while_the_server_refuses() {
    let text = "unknown = \"unlimited\"\n[limits.seventeen]\nkeys = [17]\nmode = \"police\"\n\
        rules = [ { id = \"hourly\", rate = \"20/h\", algorithm = \"fixed_window\" } ]\n";
    let rules = rules(text);
    let mut world = World::new(text);
    let mut go = |is_refused, members_max| {
        let shares = Shares {
            of: [("seventeen".to_owned(), 0)].into(),
            members_max: Some(members_max),
            is_refused,
        };
        world.shaper.share(&rules, shares, START + world.now);
        let offered = (0..30).map(|user| world.offer(17, &format!("user-{user}")));
        offered.filter(|it| *it == Offered::Release).count()
    };
    assert_eq!(go(true, 2), 1, "the one of a burst that is rounded up");
    assert_eq!(go(false, 2), 9);
    assert_eq!(go(true, 2), 0);
    // A window of which nobody has a part, as [sharing] had no members_max at the start.
    assert_eq!(go(false, u64::MAX), 0);
}
