//! Tests of the outcomes of single cookies.

use super::{Admission, MILLISECOND, SECOND, World, at};
use crate::inlet::counters::CookieOutcome;

fn shaped(shape: &str, rate: &str) -> String {
    format!(
        r#"
        unknown = "unlimited"
        [limits.dsp]
        keys = [17]
        mode = "shape"
        {shape}
        rules = [ {{ id = "rate", rate = "{rate}" }} ]
        "#
    )
}

fn with_mode(mode: &str) -> String {
    format!(
        r#"
        unknown = "unlimited"
        [limits.dsp]
        keys = [17]
        mode = "{mode}"
        rules = [ {{ id = "rate", rate = "1/s" }} ]
        "#
    )
}

#[test]
fn dsp_under_no_limit_passes_and_is_not_counted() {
    let mut world = World::new(&shaped("", "1/s"));
    for _ in 0..10 {
        assert_eq!(world.offer(18, "u"), Admission::Release);
    }
    assert_eq!(world.summary("dsp").counters.accepted, 0);
}

#[test]
fn observe_counts_what_police_would_drop() {
    let rules = |mode: &str| with_mode(mode).replace("\"1/s\"", "\"50/s\", burst = 10");
    let [mut observed, mut policed] = ["observe", "police"].map(|mode| World::new(&rules(mode)));
    for number in 0..800 {
        for world in [&mut observed, &mut policed] {
            world.advance_to(number * SECOND / 80);
            world.offer(17, &format!("u{number}"));
        }
    }
    assert_eq!(
        observed.summary("dsp").counters.of(CookieOutcome::Released),
        800
    );
    // 80/s offered under a limit of 50/s.
    let [delayed, refused, ..] = observed.summary("dsp").counters.rules["rate"];
    assert_eq!(
        (delayed, refused),
        (0, policed.summary("dsp").counters.rules["rate"][1])
    );
    assert!((290..=300).contains(&refused), "{refused}");
}

#[test]
fn observe_counts_excess_under_the_rule_that_it_exceeds() {
    let mut world = World::new(
        r#"
        unknown = "dsp"
        [limits.dsp]
        keys = [17]
        mode = "observe"
        rules = [ { id = "rate", rate = "1000/s", burst = 1000 } ]
        [limits.all]
        global = true
        rules = [ { id = "sum", rate = "1/s" } ]
        "#,
    );
    for user in ["a", "b", "c"] {
        world.offer(17, user);
    }
    let rules = world.summary("dsp").counters.rules;
    assert_eq!(rules["rate"][..2], [0, 0]);
    assert_eq!(rules["all/sum"][..2], [0, 2]);
}

#[test]
fn rescheduled_cookie_counts_once_as_exceeding_its_limit() {
    let mut world = World::new(&shaped("", "1/s"));
    for number in 0..300 {
        world.advance_to(number * SECOND / 3);
        world.offer(17, &format!("u{number}"));
    }
    world.advance_to(200 * SECOND);
    let [delayed, refused, ..] = world.summary("dsp").counters.rules["rate"];
    assert!(refused > 0, "{refused}");
    // The first cookie is released immediately.
    assert_eq!(delayed + refused, 299);
}

#[test]
fn policed_cookie_above_the_limit_is_dropped() {
    let mut world = World::new(&with_mode("police"));
    assert_eq!(world.offer(17, "a"), Admission::Release);
    assert_eq!(world.offer(17, "b"), Admission::Dropped);
    world.advance_to(SECOND);
    assert_eq!(world.offer(17, "c"), Admission::Release);
    assert_eq!(world.summary("dsp").counters.rules["rate"][..2], [0, 1]);
}

#[test]
fn newer_cookie_replaces_the_queued_one_of_its_pair() {
    let mut world = World::new(&shaped("", "1/s"));
    world.offer(17, "first");
    world.offer(17, "a");
    world.offer(17, "b");
    world.advance_to(500 * MILLISECOND);
    assert_eq!(world.offer(17, "a"), Admission::Queued);
    world.advance_to(3 * SECOND);
    let released: Vec<_> = world
        .releases
        .iter()
        .map(|release| (&*release.user, release.at, release.accepted))
        .collect();
    let half = 500 * MILLISECOND;
    assert_eq!(
        released,
        [("first", 0, 0), ("a", SECOND, half), ("b", 2 * SECOND, 0)]
    );
    assert_eq!(world.releases[1].buyer, format!("at-{half}"));
    assert_eq!(
        world.summary("dsp").counters.of(CookieOutcome::Superseded),
        1
    );
}

#[test]
fn older_cookie_of_a_bulk_request_does_not_replace_the_queued_one() {
    let mut world = World::new(&shaped("", "1/s"));
    world.advance_to(SECOND);
    world.offer(17, "first");
    for user in ["a", "b"] {
        world.offer(17, user);
    }
    assert_eq!(world.offer_accepted(17, "a", 0), Admission::Queued);
    world.advance_to(2 * SECOND);
    // In another mode, the older cookie is released before the newer one.
    world.set_rules(&shaped("", "1/s").replace("shape", "observe"));
    assert_eq!(world.offer_accepted(17, "b", 0), Admission::Release);
    world.advance_to(4 * SECOND);
    let released = world.releases.iter();
    let released: Vec<_> = released.map(|it| (&*it.user, it.accepted)).collect();
    assert_eq!(
        released,
        [("first", SECOND), ("a", SECOND), ("b", 0), ("b", SECOND)]
    );
    assert_eq!(
        world.summary("dsp").counters.of(CookieOutcome::Superseded),
        1
    );
}

#[test]
fn cookie_beyond_max_wait_is_deferred_and_then_released() {
    let mut world = World::new(&shaped(
        r#"shape = { max_wait = "2s", max_age = "10s" }"#,
        "1/s",
    ));
    for user in ["now", "one", "two", "back"] {
        world.offer(17, user);
    }
    assert_eq!(world.usage("dsp").queued, 3);
    world.advance_to(10 * SECOND);
    let released: Vec<_> = world
        .releases
        .iter()
        .map(|release| (&*release.user, release.at))
        .collect();
    let expected = [
        ("now", 0),
        ("one", SECOND),
        ("two", 2 * SECOND),
        ("back", 3 * SECOND),
    ];
    assert_eq!(released, expected);
}

#[test]
fn cookie_beyond_max_age_is_requeued_and_finally_parked() {
    let shape = r#"shape = { max_wait = "2s", max_age = "2s" }
        requeue = { base = "10s", cap = "20s", max = 0, share = 0.5 }"#;
    let mut world = World::new(&shaped(shape, "1/s"));
    for user in ["now", "one", "two", "late"] {
        world.offer(17, user);
    }
    // Newer cookies are always released first.
    for second in 1..200 {
        world.advance_to(second * SECOND - 1);
        for number in 0..2 {
            world.offer(17, &format!("other-{second}-{number}"));
        }
    }
    let summary = world.summary("dsp");
    assert!(
        world.releases.iter().all(|release| release.user != "late"),
        "{summary:#?}"
    );
    assert!(summary.usage.parked > 0, "{summary:#?}");
    // A new version of the limits unparks overdue cookies.
    world.set_rules(&shaped(shape, "1000/s"));
    world.advance_to(400 * SECOND);
    let now = world.usage("dsp");
    assert!(
        now.parked < summary.usage.parked && now.overdue == 0,
        "{now:?}"
    );
    assert!(world.releases.iter().any(|release| release.user == "late"));
}

#[test]
fn replaced_cookie_is_not_the_oldest_of_a_full_queue() {
    let mut world = World::new(&shaped(r#"shape = { queue_bytes = "64KiB" }"#, "1/s"));
    world.offer(17, "now");
    world.offer(17, "replaced");
    for number in 0..250 {
        world.advance_to(number * MILLISECOND);
        world.offer(17, &format!("u{number}"));
    }
    world.offer(17, "replaced");
    for number in 250..400 {
        world.advance_to(number * MILLISECOND);
        world.offer(17, &format!("u{number}"));
    }
    assert!(world.summary("dsp").counters.of(CookieOutcome::Bound) > 50);
    world.advance_to(3600 * SECOND);
    assert!(
        world
            .releases
            .iter()
            .any(|release| release.user == "replaced")
    );
    assert!(world.releases.iter().all(|release| release.user != "u0"));
}

#[test]
fn overdue_cookie_is_not_requeued_while_the_fifo_is_full() {
    let mut world = World::new(&shaped("", "10/s"));
    let mut offered = 0;
    while world.now < 3600 * SECOND {
        world.offer(17, &format!("u{offered}"));
        offered += 1;
        world.advance_to(offered * SECOND / 20);
    }
    let (counters, usage) = (world.summary("dsp").counters, world.usage("dsp"));
    assert!(usage.overdue > 10_000, "{usage:?}");
    // Each parked cookie was requeued eight times.
    assert!(
        counters.requeued >= 8 * usage.parked,
        "{counters:?} {usage:?}"
    );
    // At most a tenth of the rate.
    assert!(
        counters.requeued > 0 && counters.requeued <= 3_600,
        "{counters:?}"
    );

    // Without new cookies, all are released at the rate.
    world.advance_to(60_000 * SECOND);
    assert_eq!(world.releases.len() as u64, offered);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 20), "{seconds:?}");
}

#[test]
fn full_queue_keeps_the_newest_cookies() {
    let mut world = World::new(&shaped(r#"shape = { queue_bytes = "64KiB" }"#, "10/s"));
    for number in 0..1_000 {
        world.offer(17, &format!("u{number}"));
        world.advance_to((number + 1) * MILLISECOND);
    }
    let (summary, usage) = (world.summary("dsp"), world.usage("dsp"));
    assert!(
        usage.bytes <= 64 << 10 && usage.bytes > 63 << 10,
        "{usage:?}"
    );
    world.advance_to(3600 * SECOND);
    let is_released = |user: &str| world.releases.iter().any(|release| release.user == user);
    assert!(
        is_released("u999") && is_released("u900") && !is_released("u100"),
        "{summary:#?}"
    );
}

#[test]
fn slow_rate_queues_no_cookie_beyond_max_age() {
    let mut world = World::new(&shaped("", "1/h"));
    world.offer(17, "now");
    assert_eq!(world.offer(17, "later"), Admission::Queued);
    world.advance_to(30 * SECOND);
    assert_eq!(world.usage("dsp").queued, 1);
    world.advance_to(61 * SECOND);
    assert_eq!(world.usage("dsp").overdue, 1, "{:#?}", world.summary("dsp"));
    // Requeues use a tenth of the rate: one cookie in ten hours.
    world.advance_to(24 * 3600 * SECOND);
    assert_eq!(world.releases.len(), 2, "{:#?}", world.summary("dsp"));
}

#[test]
fn queued_cookies_are_released_first_when_shaping_is_turned_off() {
    let mut world = World::new(&with_mode("shape"));
    for user in ["a", "b", "c"] {
        world.offer(17, user);
    }
    world.advance_to(100 * MILLISECOND);
    world.set_rules(&with_mode("observe"));
    // A newer cookie passes, and the queued cookie of the same pair is never released.
    assert_eq!(world.offer(17, "b"), Admission::Release);
    world.advance_to(200 * MILLISECOND);
    let users: Vec<_> = world
        .releases
        .iter()
        .map(|release| &*release.user)
        .collect();
    assert_eq!(users, ["a", "b", "c"]);
    let counters = world.summary("dsp").counters;
    assert_eq!(
        (
            counters.of(CookieOutcome::Superseded),
            counters.of(CookieOutcome::ReleasedEarly)
        ),
        (1, 1)
    );
}

#[test]
fn queued_cookies_are_released_when_their_limit_is_removed() {
    let mut world = World::new(&with_mode("shape"));
    for user in ["a", "b", "c"] {
        world.offer(17, user);
    }
    let other = with_mode("shape").replace("limits.dsp", "limits.other");
    world.set_rules(&other);
    world.advance_to(MILLISECOND);
    let released: Vec<_> = world
        .releases
        .iter()
        .map(|release| &*release.user)
        .collect();
    assert_eq!(released, ["a", "b", "c"]);
    assert_eq!(world.offer(17, "d"), Admission::Release);
    assert_eq!(world.summary("other").counters.accepted, 1);
}

#[test]
fn new_rate_keeps_used_quota_and_replans_queued_cookies() {
    let mut world = World::new(&shaped("", "1/s"));
    for number in 0..30 {
        world.offer(17, &format!("u{number}"));
    }
    world.advance_to(10 * SECOND);
    assert_eq!(world.releases.len(), 11);
    world.set_rules(&shaped("", "10/s"));
    world.advance_to(12 * SECOND);
    assert!(
        (29..=30).contains(&world.releases.len()),
        "{}",
        world.releases.len()
    );
    world.advance_to(20 * SECOND);
    world.set_rules(&shaped("", "1/min"));
    for number in 0..3 {
        world.offer(17, &format!("v{number}"));
    }
    world.advance_to(79 * SECOND);
    assert_eq!(world.releases.len(), 31);
}

#[test]
fn full_leaky_bucket_releases_no_cookie_early() {
    let limits = shaped("", "1000/s").replace(
        r#"rate = "1000/s""#,
        r#"rate = "1000/s", algorithm = "leaky_bucket", capacity = 2"#,
    );
    let mut world = World::new(&limits);
    for number in 0..3_000 {
        world.offer(17, &format!("u{number}"));
    }
    world.advance_to(10 * SECOND);
    assert_eq!(world.releases.len(), 3_000);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 1_001), "{seconds:?}");
}

#[test]
fn deferred_cookies_are_rescheduled_when_the_limits_change() {
    let shape = r#"shape = { max_wait = "1s", max_age = "1h" }"#;
    let mut world = World::new(&shaped(shape, "1/min"));
    for number in 0..300 {
        world.offer(17, &format!("u{number}"));
    }
    assert_eq!(world.usage("dsp").queued, 299);
    world.set_rules(&shaped(shape, "1000/s"));
    world.advance_to(2 * SECOND);
    assert_eq!(world.releases.len(), 300);
}

#[test]
fn counters_of_a_removed_limit_are_dropped_when_its_queues_are_empty() {
    let file = |version: u32, mode: &str| {
        let limits = (1..=20).map(|dsp| {
            format!(
                r#"
                [limits.dsp-{dsp}-of-{version}]
                keys = [{dsp}]
                mode = "{mode}"
                rules = [ {{ id = "rate", rate = "1/s" }} ]
                [limits.all-{dsp}]
                keys = [{}]
                mode = "{mode}"
                rules = [ {{ id = "of-{version}", rate = "1/s" }} ]
                "#,
                100 + dsp
            )
        });
        limits.fold("unknown = \"unlimited\"".to_owned(), |all, it| all + &it)
    };
    let mut world = World::new(&file(0, "shape"));
    let mut counted = 0;
    for version in 1..=5 {
        for dsp in (1..=20).chain(101..=120) {
            for user in ["a", "b", "c"] {
                world.offer(dsp, user);
            }
        }
        // Limits of the previous version exist while they have queued cookies.
        world.set_rules(&file(version, "shape"));
        let previous = format!("dsp-1-of-{}", version - 1);
        assert_eq!(world.usage(&previous).queued, 2);
        world.advance_to(world.now + 60 * SECOND);
        let all = world.dsp_limits.summaries(at(world.now));
        let expected = (1..=20)
            .flat_map(|dsp| [format!("all-{dsp}"), format!("dsp-{dsp}-of-{version}")])
            .collect::<std::collections::BTreeSet<_>>();
        assert!(all.keys().eq(expected.iter()), "{:?}", all.keys());
        let rules: Vec<_> = all["all-1"].counters.rules.keys().collect();
        assert_eq!(rules, [&format!("of-{version}")]);
        // Limits that remain in the file keep their counters.
        counted += 3;
        assert_eq!(world.summary("all-1").counters.accepted, counted);
    }
}
