//! Tests of deletions of queued cookies.

use proto::{
    units::{DspId, UnixMicros},
    wire::Scope,
};

use super::{SECOND, World};
use crate::{inlet::counters::CookieOutcome, log::Deletion};

const LIMITS: &str = r#"
unknown = "unlimited"
[limits.a]
keys = [1, 2]
mode = "shape"
rules = [ { id = "limit", rate = "1/s", burst = 1 } ]
[limits.b]
keys = [3]
mode = "shape"
rules = [ { id = "limit", rate = "1/s", burst = 1 } ]
"#;

fn deletion(user: &str, dsp_id: u32, until: Option<UnixMicros>) -> Deletion {
    Deletion {
        scope: Scope::from_ids(user.to_owned(), DspId(dsp_id)),
        until,
    }
}

/// Offers cookies of three users to three DSPs; returns the cookies that are released after `deletion`.
fn released_after(deletion: &Deletion) -> (Vec<(u32, String)>, u64) {
    let mut world = World::new(LIMITS);
    // The first cookies use up the bursts.
    for dsp in 1..=3 {
        world.offer(dsp, "first");
    }
    world.releases.clear();
    for user in ["u", "v", "w"] {
        world.advance_to(world.now + 1_000);
        for dsp in 1..=3 {
            world.offer(dsp, user);
        }
    }
    world.dsp_limits.delete(deletion);
    world.advance_to(60 * SECOND);
    let mut released: Vec<_> = world
        .releases
        .iter()
        .map(|it| (it.dsp, it.user.clone()))
        .collect();
    released.sort();
    let dropped = ["a", "b"].map(|limit| world.summary(limit).counters.of(CookieOutcome::Deleted));
    (released, dropped.iter().sum())
}

#[track_caller]
fn check(deletion: Deletion, is_deleted: impl Fn(u32, &str) -> bool) {
    let all = (1..=3).flat_map(|dsp| ["u", "v", "w"].map(|user| (dsp, user.to_owned())));
    let expected: Vec<_> = all.filter(|(dsp, user)| !is_deleted(*dsp, user)).collect();
    let dropped = 9 - expected.len() as u64;
    assert_eq!(released_after(&deletion), (expected, dropped));
}

#[test]
fn deletion_drops_the_queued_cookies_of_its_scope_only() {
    check(deletion("v", 2, None), |dsp, user| (dsp, user) == (2, "v"));
    check(deletion("v", 0, None), |_, user| user == "v");
    check(deletion("", 2, None), |dsp, _| dsp == 2);
    check(deletion("x", 0, None), |_, _| false);
    check(deletion("", 9, None), |_, _| false);
}

#[test]
fn cookie_accepted_after_the_time_of_a_deletion_is_kept() {
    check(deletion("u", 0, Some(UnixMicros::NONE)), |_, _| false);
}
