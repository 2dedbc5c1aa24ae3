//! What becomes of single cookies.

use super::{MILLISECOND, Offered, SECOND, START, World};

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
        assert_eq!(world.offer(18, "u"), Offered::Release);
    }
    assert_eq!(world.summary("dsp").figures.accepted, 0);
}

#[test]
fn observed_excess_is_what_police_would_drop() {
    let rules = |mode: &str| with_mode(mode).replace("\"1/s\"", "\"50/s\", burst = 10");
    let [mut observed, mut policed] = ["observe", "police"].map(|mode| World::new(&rules(mode)));
    for number in 0..800 {
        for world in [&mut observed, &mut policed] {
            world.pass_to(number * SECOND / 80);
            world.offer(17, &format!("u{number}"));
        }
    }
    assert_eq!(observed.summary("dsp").figures.released, 800);
    // Of 80 a second, 30 are over 50 a second.
    let [delayed, refused] = observed.summary("dsp").figures.rules["rate"].over;
    assert_eq!(
        (delayed, refused),
        (0, policed.summary("dsp").figures.rules["rate"].over[1])
    );
    assert!((290..=300).contains(&refused), "{refused}");
}

#[test]
fn shaped_cookie_is_over_its_limit_once_however_often_it_asks() {
    let mut world = World::new(&shaped("", "1/s"));
    for number in 0..300 {
        world.pass_to(number * SECOND / 3);
        world.offer(17, &format!("u{number}"));
    }
    world.pass_to(200 * SECOND);
    let [delayed, refused] = world.summary("dsp").figures.rules["rate"].over;
    assert!(refused > 0, "{refused}");
    // The first goes at once.
    assert_eq!(delayed + refused, 299);
}

#[test]
fn policed_ones_are_dropped_over_the_limit() {
    let mut world = World::new(&with_mode("police"));
    assert_eq!(world.offer(17, "a"), Offered::Release);
    assert_eq!(world.offer(17, "b"), Offered::Dropped);
    world.pass_to(SECOND);
    assert_eq!(world.offer(17, "c"), Offered::Release);
    assert_eq!(world.summary("dsp").figures.rules["rate"].over, [0, 1]);
}

#[test]
fn newer_cookie_of_a_pair_takes_the_place_of_the_one_that_waits() {
    let mut world = World::new(&shaped("", "1/s"));
    world.offer(17, "first");
    world.offer(17, "a");
    world.offer(17, "b");
    world.pass_to(500 * MILLISECOND);
    assert_eq!(world.offer(17, "a"), Offered::Held);
    world.pass_to(3 * SECOND);
    let gone: Vec<_> = world
        .gone
        .iter()
        .map(|gone| (&*gone.user, gone.at, gone.accepted))
        .collect();
    let half = 500 * MILLISECOND;
    assert_eq!(
        gone,
        [("first", 0, 0), ("a", SECOND, half), ("b", 2 * SECOND, 0)]
    );
    assert_eq!(world.gone[1].buyer, format!("at-{half}"));
    assert_eq!(world.summary("dsp").figures.superseded, 1);
}

#[test]
fn beyond_the_max_wait_it_comes_back_after_its_wait() {
    let mut world = World::new(&shaped(
        r#"shape = { max_wait = "2s", max_age = "10s" }"#,
        "1/s",
    ));
    for user in ["now", "one", "two", "back"] {
        world.offer(17, user);
    }
    assert_eq!(world.holding("dsp").waiting, 3);
    world.pass_to(10 * SECOND);
    let gone: Vec<_> = world
        .gone
        .iter()
        .map(|gone| (&*gone.user, gone.at))
        .collect();
    let expected = [
        ("now", 0),
        ("one", SECOND),
        ("two", 2 * SECOND),
        ("back", 3 * SECOND),
    ];
    assert_eq!(gone, expected);
}

#[test]
fn what_is_too_old_dies_is_revived_and_at_last_parked() {
    let shape = r#"shape = { max_wait = "2s", max_age = "2s" }
        dead_letter = { base = "10s", cap = "20s", max_requeues = 0, share = 0.5 }"#;
    let mut world = World::new(&shaped(shape, "1/s"));
    for user in ["now", "one", "two", "late"] {
        world.offer(17, user);
    }
    // Others always come first.
    for second in 1..200 {
        world.pass_to(second * SECOND - 1);
        for number in 0..2 {
            world.offer(17, &format!("other-{second}-{number}"));
        }
    }
    let summary = world.summary("dsp");
    assert!(
        world.gone.iter().all(|gone| gone.user != "late"),
        "{summary:#?}"
    );
    assert!(summary.holding.parked > 0, "{summary:#?}");
    // Another version gives those that are parked another chance.
    world.change(&shaped(shape, "1000/s"));
    world.pass_to(400 * SECOND);
    let now = world.holding("dsp");
    assert!(
        now.parked < summary.holding.parked && now.dead == 0,
        "{now:?}"
    );
    assert!(world.gone.iter().any(|gone| gone.user == "late"));
}

#[test]
fn who_is_renewed_is_not_the_oldest_when_the_room_is_full() {
    let mut world = World::new(&shaped(r#"shape = { queue_bytes = "64KiB" }"#, "1/s"));
    world.offer(17, "now");
    world.offer(17, "renewed");
    for number in 0..250 {
        world.pass_to(number * MILLISECOND);
        world.offer(17, &format!("u{number}"));
    }
    world.offer(17, "renewed");
    for number in 250..400 {
        world.pass_to(number * MILLISECOND);
        world.offer(17, &format!("u{number}"));
    }
    assert!(
        world
            .summary("dsp")
            .figures
            .dropped(super::super::counters::Dropped::Bound)
            > 50
    );
    world.pass_to(3600 * SECOND);
    assert!(world.gone.iter().any(|gone| gone.user == "renewed"));
    assert!(world.gone.iter().all(|gone| gone.user != "u0"));
}

#[test]
fn dead_letter_that_finds_the_line_full_was_not_revived() {
    let mut world = World::new(&shaped("", "10/s"));
    let mut offered = 0;
    while world.now < 3600 * SECOND {
        world.offer(17, &format!("u{offered}"));
        offered += 1;
        world.pass_to(offered * SECOND / 20);
    }
    let (figures, held) = (world.summary("dsp").figures, world.holding("dsp"));
    assert!(held.dead > 10_000, "{held:?}");
    // Each that is parked was put back eight times.
    assert!(figures.requeued >= 8 * held.parked, "{figures:?} {held:?}");
    // Of the line a tenth, at most.
    assert!(
        figures.requeued > 0 && figures.requeued <= 3_600,
        "{figures:?}"
    );

    // Without more that come all go, at the rate.
    world.pass_to(60_000 * SECOND);
    assert_eq!(world.gone.len() as u64, offered);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 20), "{seconds:?}");
}

#[test]
fn full_room_keeps_the_newest() {
    let mut world = World::new(&shaped(r#"shape = { queue_bytes = "64KiB" }"#, "10/s"));
    for number in 0..1_000 {
        world.offer(17, &format!("u{number}"));
        world.pass_to((number + 1) * MILLISECOND);
    }
    let (summary, room) = (world.summary("dsp"), world.holding("dsp"));
    assert!(room.bytes <= 64 << 10 && room.bytes > 63 << 10, "{room:?}");
    world.pass_to(3600 * SECOND);
    let went = |user: &str| world.gone.iter().any(|gone| gone.user == user);
    assert!(
        went("u999") && went("u900") && !went("u100"),
        "{summary:#?}"
    );
}

#[test]
fn slow_rate_lets_nothing_wait_beyond_its_age() {
    let mut world = World::new(&shaped("", "1/h"));
    world.offer(17, "now");
    assert_eq!(world.offer(17, "later"), Offered::Held);
    world.pass_to(30 * SECOND);
    assert_eq!(world.holding("dsp").waiting, 1);
    world.pass_to(61 * SECOND);
    assert_eq!(world.holding("dsp").dead, 1, "{:#?}", world.summary("dsp"));
    // It takes ten hours until a tenth of the rate is one.
    world.pass_to(24 * 3600 * SECOND);
    assert_eq!(world.gone.len(), 2, "{:#?}", world.summary("dsp"));
}

#[test]
fn limit_that_shapes_no_more_releases_what_waits_before_anything_newer() {
    let mut world = World::new(&with_mode("shape"));
    for user in ["a", "b", "c"] {
        world.offer(17, user);
    }
    world.pass_to(100 * MILLISECOND);
    world.change(&with_mode("observe"));
    // A newer one of a pair that waits passes, and the older never goes.
    assert_eq!(world.offer(17, "b"), Offered::Release);
    world.pass_to(200 * MILLISECOND);
    let users: Vec<_> = world.gone.iter().map(|gone| &*gone.user).collect();
    assert_eq!(users, ["a", "b", "c"]);
    let figures = world.summary("dsp").figures;
    assert_eq!((figures.superseded, figures.released_early), (1, 1));
}

#[test]
fn limit_that_is_no_more_releases_what_waits() {
    let mut world = World::new(&with_mode("shape"));
    for user in ["a", "b", "c"] {
        world.offer(17, user);
    }
    let other = with_mode("shape").replace("limits.dsp", "limits.other");
    world.change(&other);
    world.pass_to(MILLISECOND);
    let gone: Vec<_> = world.gone.iter().map(|gone| &*gone.user).collect();
    assert_eq!(gone, ["a", "b", "c"]);
    assert_eq!(world.offer(17, "d"), Offered::Release);
    assert_eq!(world.summary("other").figures.accepted, 1);
}

#[test]
fn live_change_keeps_the_debt_and_plans_anew() {
    let mut world = World::new(&shaped("", "1/s"));
    for number in 0..30 {
        world.offer(17, &format!("u{number}"));
    }
    world.pass_to(10 * SECOND);
    assert_eq!(world.gone.len(), 11);
    world.change(&shaped("", "10/s"));
    world.pass_to(12 * SECOND);
    assert!(
        (29..=30).contains(&world.gone.len()),
        "{}",
        world.gone.len()
    );
    world.pass_to(20 * SECOND);
    world.change(&shaped("", "1/min"));
    for number in 0..3 {
        world.offer(17, &format!("v{number}"));
    }
    world.pass_to(79 * SECOND);
    assert_eq!(world.gone.len(), 31);
}

#[test]
fn queue_of_the_limits_own_that_is_full_lets_nothing_go_too_early() {
    let limits = shaped("", "1000/s").replace(
        r#"rate = "1000/s""#,
        r#"rate = "1000/s", algorithm = "leaky_bucket", capacity = 2"#,
    );
    let mut world = World::new(&limits);
    for number in 0..3_000 {
        world.offer(17, &format!("u{number}"));
    }
    world.pass_to(10 * SECOND);
    assert_eq!(world.gone.len(), 3_000);
    let seconds = world.by_second(|_| true);
    assert!(seconds.iter().all(|count| *count <= 1_001), "{seconds:?}");
}

#[test]
fn those_that_were_sent_back_ask_again_when_the_limits_change() {
    let shape = r#"shape = { max_wait = "1s", max_age = "1h" }"#;
    let mut world = World::new(&shaped(shape, "1/min"));
    for number in 0..300 {
        world.offer(17, &format!("u{number}"));
    }
    assert_eq!(world.holding("dsp").waiting, 299);
    world.change(&shaped(shape, "1000/s"));
    world.pass_to(2 * SECOND);
    assert_eq!(world.gone.len(), 300);
}

#[test]
fn what_the_file_names_no_more_is_forgotten_when_nothing_of_it_is_held() {
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
        // Those of the file before have a place while cookies wait under them.
        world.change(&file(version, "shape"));
        let before = format!("dsp-1-of-{}", version - 1);
        assert_eq!(world.holding(&before).waiting, 2);
        world.pass_to(world.now + 60 * SECOND);
        let all = world.shaper.summaries(START + world.now);
        let expected = (1..=20)
            .flat_map(|dsp| [format!("all-{dsp}"), format!("dsp-{dsp}-of-{version}")])
            .collect::<std::collections::BTreeSet<_>>();
        assert!(all.keys().eq(expected.iter()), "{:?}", all.keys());
        let rules: Vec<_> = all["all-1"].figures.rules.keys().collect();
        assert_eq!(rules, [&format!("of-{version}")]);
        // What stays in the file goes on counting.
        counted += 3;
        assert_eq!(world.summary("all-1").figures.accepted, counted);
    }
}
