//! Tests of the ledger in which the server records the shares of all members. They use few members and one clock.

use limits_sharing::{
    member::{Member, ShareState},
    messages::{Grant, LeaseReply, LimitShare},
    terms::{Terms, WHOLE},
};

use crate::model::Ledger;

const SECOND: u64 = 1_000_000;
const LIMIT: &str = "limit";

/// A server and members with the same clock.
struct World {
    ledger: Ledger,
    terms: Terms,
    run: &'static str,
    now: u64,
}

impl World {
    fn new(members_max: u64) -> Self {
        let terms = terms(members_max);
        Self {
            ledger: Ledger::new(terms, "first", 0),
            terms,
            run: "first",
            now: 0,
        }
    }

    fn member(&self, name: &str, instance: u64) -> Member {
        Member::new(self.terms, name, instance, self.now)
    }

    /// One request with a reply in time.
    fn refresh(&mut self, member: &mut Member, demand: u64) -> LeaseReply {
        member.set_demands([(LIMIT.to_owned(), demand)]);
        let request = member.request(self.now);
        let reply = self
            .ledger
            .respond(&self.terms, self.run, self.now, &request);
        assert!(member.receive(request.number, reply.clone(), self.now));
        reply
    }

    /// All members send requests for `seconds` seconds.
    fn pass(&mut self, seconds: u64, members: &mut [(&mut Member, u64)]) {
        for _ in 0..seconds {
            for (member, demand) in &mut *members {
                self.refresh(member, *demand);
            }
            self.now += SECOND;
        }
    }
}

fn terms(members_max: u64) -> Terms {
    Terms {
        refresh: 1_000_000,
        timeout: 50_000,
        forget_after: 24 * 3_600_000_000,
        members_max,
    }
}

fn granted(reply: LeaseReply) -> Grant {
    match reply {
        LeaseReply::Granted(granted) => granted,
        other => panic!("{other:?}"),
    }
}

fn share(member: &Member) -> LimitShare {
    member.plan().granted(LIMIT).expect("it was granted")
}

#[test]
fn member_without_a_reply_waits_before_it_uses_its_guaranteed_share() {
    let member = World::new(2).member("a", 1);
    let plan = member.plan();
    let guaranteed_from = plan.changes(0).expect("it uses its guaranteed share");
    assert!(guaranteed_from > 18 * SECOND, "{guaranteed_from}");
    assert_eq!(plan.share(LIMIT, 0), 0);
    assert_eq!(plan.share(LIMIT, guaranteed_from - 1), 0);
    assert_eq!(plan.share(LIMIT, guaranteed_from), WHOLE / 2);
    assert_eq!(plan.changes(guaranteed_from), None);
}

#[test]
fn new_settings_apply_once_no_member_uses_the_old_ones() {
    let mut world = World::new(0);
    let (mut a, mut b) = (world.member("a", 1), world.member("b", 1));
    world.pass(8, &mut [(&mut a, WHOLE), (&mut b, WHOLE)]);
    world.terms = terms(2);
    let (mut new_a, mut new_b) = (world.member("a", 2), world.member("b", 2));
    assert_eq!(world.refresh(&mut new_a, WHOLE), LeaseReply::TermsMismatch);
    assert_eq!(new_a.plan().state(world.now), ShareState::Refused);
    world.terms = terms(0);
    assert_eq!(granted(world.refresh(&mut b, WHOLE)).members, 1);
    world.terms = terms(2);
    assert!(granted(world.refresh(&mut new_b, WHOLE)).is_learning);
    assert!(granted(world.refresh(&mut new_a, WHOLE)).is_learning);
    assert_eq!(new_a.plan().state(world.now), ShareState::Ok);
}

#[test]
fn settings_stay_while_a_silent_member_may_use_them() {
    let mut world = World::new(0);
    let (mut a, mut b) = (world.member("a", 1), world.member("b", 1));
    world.pass(8, &mut [(&mut a, WHOLE), (&mut b, WHOLE)]);
    world.terms = terms(2);
    for instance in 2..5 {
        let mut new = world.member("a", instance);
        assert_eq!(world.refresh(&mut new, WHOLE), LeaseReply::TermsMismatch);
    }
}

#[test]
fn restarted_member_with_a_slow_clock_takes_over() {
    let mut world = World::new(0);
    let (mut before, mut after) = (world.member("a", 9), world.member("a", 5));
    world.pass(1, &mut [(&mut before, WHOLE)]);
    assert_eq!(world.refresh(&mut after, WHOLE), LeaseReply::Replaced(9));
    assert_ne!(after.plan().state(world.now), ShareState::Refused);
    granted(world.refresh(&mut after, WHOLE));
    assert_eq!(world.refresh(&mut before, WHOLE), LeaseReply::Replaced(10));
    assert_eq!(before.plan().state(world.now), ShareState::Refused);
}

#[test]
fn member_restarted_during_data_loss_gets_its_share() {
    let mut world = World::new(2);
    let (mut a, mut b) = (world.member("a", 1), world.member("b", 1));
    world.pass(8, &mut [(&mut a, WHOLE), (&mut b, WHOLE)]);
    world.ledger = Ledger::new(world.terms, "second", world.now);
    world.run = "second";
    let mut b = world.member("b", 2);
    world.pass(8, &mut [(&mut a, WHOLE), (&mut b, WHOLE)]);
    for member in [&a, &b] {
        let share = share(member);
        assert_eq!(
            (share.lease, share.fallback, share.reserved),
            (WHOLE / 2, WHOLE / 2, 0)
        );
    }
}

#[test]
fn total_excludes_usage_reported_to_an_older_copy_of_the_ledger() {
    let mut world = World::new(0);
    let (mut a, mut b) = (world.member("a", 1), world.member("b", 1));
    world.pass(8, &mut [(&mut a, 9 * WHOLE / 10), (&mut b, WHOLE / 10)]);
    let copy = world.ledger.clone();
    world.pass(8, &mut [(&mut a, WHOLE / 10), (&mut b, 9 * WHOLE / 10)]);
    assert!(share(&b).lease > WHOLE / 2);
    (world.ledger, world.run) = (copy, "second");
    world.refresh(&mut b, 9 * WHOLE / 10);
    assert!(share(&b).total <= WHOLE, "{:?}", share(&b));
}

#[test]
fn fallback_share_of_a_dead_member_stays_reserved() {
    let mut world = World::new(0);
    let (mut a, mut b) = (world.member("a", 1), world.member("b", 1));
    world.pass(8, &mut [(&mut a, 2 * WHOLE), (&mut b, 0)]);
    let lease = share(&a).lease;
    assert!(lease > 9 * WHOLE / 10, "{lease}");
    // b is dead, and a loses the replies of some seconds.
    for _ in 0..5 {
        a.set_demands([(LIMIT.to_owned(), 2 * WHOLE)]);
        let request = a.request(world.now);
        world
            .ledger
            .respond(&world.terms, world.run, world.now, &request);
        world.now += SECOND;
    }
    world.refresh(&mut a, 2 * WHOLE);
    assert!(share(&a).total <= WHOLE, "{:?}", share(&a));
}

#[test]
fn demand_follows_a_changed_load_but_not_chance() {
    let mut member = World::new(0).member("a", 1);
    let mut reported = |demand| {
        member.set_demands([(LIMIT.to_owned(), demand)]);
        member.request(0).limits[0].demand
    };
    let first = reported(141_000);
    for chance in [148_000, 134_000, 147_000, 136_000, 140_000] {
        assert!(reported(chance).abs_diff(first) <= 2_048);
    }
    assert!((210_000..=212_000).contains(&reported(280_000)));
    assert!((104_000..=108_000).contains(&reported(0)));
    // An idle member leaves everything to others.
    let idle = (0..40).map(|_| reported(0)).last();
    assert!(idle <= Some(1), "{idle:?}");
}
