//! Tests of shares of a limit that change while cookies are queued.

use limits::rules::Rules;

use super::{SECOND, World, at, rules};
use crate::inlet::{dsp_limits::Shares, queue::Admission};

fn shaped() -> &'static str {
    "unknown = \"unlimited\"\n[limits.seventeen]\nkeys = [17]\nmode = \"shape\"\nrules = [ { id = \"peak\", rate = \"300/s\", burst = 30 } ]\n"
}

/// Sets this share of each limit.
fn set_share(world: &mut World, rules: &Rules, millionths: u64) {
    let by_limit = rules.limits.iter().map(|it| (it.name.clone(), millionths));
    let shares = Shares {
        by_limit: by_limit.collect(),
        members_max: Some(1),
        is_refused: false,
    };
    world.dsp_limits.set_shares(rules, shares, at(world.now));
}

/// Offers 500 cookies per second.
fn offer(world: &mut World, seconds: u64) {
    for number in 0..500 * seconds {
        let at = world.now + SECOND / 500;
        world.advance_to(at);
        world.offer(17, &format!("user-{at}-{number}"));
    }
}

#[test]
fn queued_cookies_are_released_at_the_rate_of_the_current_share() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    for (second, millionths) in [(0, 500_000), (10, 100_000), (20, 1_000_000)] {
        assert_eq!(world.now, second * SECOND);
        set_share(&mut world, &rules, millionths);
        offer(&mut world, 10);
    }
    let by_second = world.by_second(|_| true);
    for (second, count) in by_second[..30].iter().enumerate() {
        let rate = [150, 30, 300][second / 10];
        // One burst at the start, and one cookie when the share changes.
        let max = if second == 0 { rate + 15 } else { rate + 1 };
        assert!((rate - 2..=max).contains(count), "{second}: {by_second:?}");
    }
}

#[test]
fn cookies_wait_for_a_share_and_none_is_lost() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    set_share(&mut world, &rules, 0);
    offer(&mut world, 1);
    world.advance_to(6 * SECOND);
    // The share of the burst is rounded up to one cookie.
    assert_eq!(world.releases.len(), 1);
    set_share(&mut world, &rules, 1_000_000);
    world.advance_to(9 * SECOND);
    assert_eq!(
        (world.releases.len(), world.usage("seventeen").overdue),
        (500, 0)
    );
}

#[test]
fn overdue_cookies_are_released_after_a_share_is_granted() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    set_share(&mut world, &rules, 0);
    offer(&mut world, 1);
    world.advance_to(180 * SECOND);
    assert!(world.usage("seventeen").overdue > 0);
    set_share(&mut world, &rules, 1_000_000);
    world.advance_to(1_800 * SECOND);
    assert_eq!(
        (world.releases.len(), world.usage("seventeen").overdue),
        (500, 0)
    );
}

#[test]
fn demand_includes_new_and_queued_cookies() {
    let rules = rules(shaped());
    let mut world = World::new(shaped());
    set_share(&mut world, &rules, 500_000);
    offer(&mut world, 1);
    let queued = world.usage("seventeen").queued;
    let demands = world.dsp_limits.demands(&rules, SECOND, 3 * SECOND);
    let expected = (500 + queued / 3) * 1_000_000 / 300;
    assert_eq!(demands.len(), 1);
    assert!(
        demands[0].1.abs_diff(expected) < 10_000,
        "{demands:?} {expected}"
    );
    // No new cookies since the previous call.
    let demands = world.dsp_limits.demands(&rules, SECOND, 3 * SECOND);
    assert!(demands[0].1.abs_diff(queued / 3 * 1_000_000 / 300) < 10_000);
}

#[test]
fn share_is_kept_when_the_file_changes() {
    let first = rules(shaped());
    let mut world = World::new(shaped());
    set_share(&mut world, &first, 100_000);
    offer(&mut world, 2);
    world.set_rules(&shaped().replace("300/s", "600/s"));
    offer(&mut world, 5);
    let by_second = world.by_second(|_| true);
    for count in &by_second[3..7] {
        assert!((59..=61).contains(count), "{by_second:?}");
    }
    assert_eq!(world.offer(18, "user"), Admission::Release);
}

#[test]
fn window_has_no_share_while_the_server_refuses() {
    let text = "unknown = \"unlimited\"\n[limits.seventeen]\nkeys = [17]\nmode = \"police\"\n\
        rules = [ { id = \"hourly\", rate = \"20/h\", algorithm = \"fixed_window\" } ]\n";
    let rules = rules(text);
    let mut world = World::new(text);
    let mut released = |is_refused, members_max| {
        let shares = Shares {
            by_limit: [("seventeen".to_owned(), 0)].into(),
            members_max: Some(members_max),
            is_refused,
        };
        world.dsp_limits.set_shares(&rules, shares, at(world.now));
        let offered = (0..30).map(|user| world.offer(17, &format!("user-{user}")));
        offered.filter(|it| *it == Admission::Release).count()
    };
    assert_eq!(released(true, 2), 1, "the burst is rounded up");
    assert_eq!(released(false, 2), 9);
    assert_eq!(released(true, 2), 0);
    // No share of a window: [sharing] had no members_max at the start.
    assert_eq!(released(false, u64::MAX), 0);
}
