//! Tests of invariants under random traffic and random rule changes.

use fastrand::Rng;

use super::{MILLISECOND, SECOND, World, at};

fn draw(random: &mut Rng) -> String {
    let mut modes = || ["shape", "shape", "police", "observe"][random.usize(0..4)];
    let (first, second, others) = (modes(), modes(), modes());
    let rate = |random: &mut Rng| random.u64(1..200);
    let algorithm = match random.usize(0..5) {
        0 => format!(r#"rate = "{}/s", algorithm = "fixed_window""#, rate(random)),
        1 => format!(r#"rate = "{}/s", algorithm = "sliding_log""#, rate(random)),
        2 => format!(r#"rate = "{}/s", algorithm = "step_window""#, rate(random)),
        _ => format!(
            r#"rate = "{}/s", burst = {}"#,
            rate(random),
            random.u64(1..20)
        ),
    };
    let shape = |mode: &str| match mode {
        "shape" => {
            r#"shape = { max_wait = "1s", max_age = "3s", queue_bytes = "64KiB" }
            requeue = { base = "2s", cap = "5s", max = 2, share = 0.2 }"#
        }
        _ => "",
    };
    let global = if random.bool() {
        format!(
            r#"[limits.global]
            global = true
            rules = [ {{ id = "intake", rate = "{}/s", burst = 3 }} ]"#,
            rate(random)
        )
    } else {
        String::new()
    };
    format!(
        r#"
        unknown = "others"
        [limits.first]
        keys = [1, 2]
        mode = "{first}"
        {}
        rules = [ {{ id = "a", {algorithm} }} ]
        [limits.second]
        keys = [{}]
        mode = "{second}"
        {}
        rules = [ {{ id = "b", rate = "{}/s" }} ]
        [limits.others]
        mode = "{others}"
        {}
        rules = [ {{ id = "c", rate = "{}/s" }} ]
        {global}
        "#,
        shape(first),
        random.u32(3..5),
        shape(second),
        rate(random),
        shape(others),
        rate(random),
    )
}

/// Each cookie has one outcome or is in a queue. No cookie is released after a newer one of its pair. Queues keep their
/// bounds.
#[test]
fn counts_order_and_bounds_hold_under_random_rule_changes() {
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(&draw(&mut random));
        let (mut offered, mut then) = (0_u64, 0);
        for step in 0..4_000 {
            then += random.u64(0..20) * MILLISECOND;
            world.late = random.u64(0..3) * MILLISECOND;
            world.advance_to(then);
            match random.usize(0..400) {
                0 => world.set_rules(&draw(&mut random)),
                _ => {
                    let dsp = random.u32(1..8);
                    world.offer(dsp, &format!("u{}", random.u32(0..400)));
                    offered += 1;
                }
            }
            if step % 100 == 0 {
                world.summary("first");
            }
        }
        world.advance_to(then + 60 * SECOND);
        let all = world.dsp_limits.summaries(at(0));
        let accepted: u64 = all.values().map(|summary| summary.counters.accepted).sum();
        assert_eq!(accepted, offered, "seed {seed}");
        let oversized = all.values().find(|summary| summary.usage.bytes > 64 << 14);
        assert_eq!(oversized, None, "seed {seed}");
        world.summary("first");
    }
}

/// Checks every window of one second.
#[test]
fn no_window_exceeds_rate_plus_burst_when_the_rate_changes() {
    let limits = |rate: u64| {
        format!(
            r#"
            unknown = "unlimited"
            [limits.dsp]
            keys = [17]
            mode = "shape"
            rules = [ {{ id = "rate", rate = "{rate}/s", burst = 5 }} ]
            "#
        )
    };
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let mut rate_max = 50;
        let mut world = World::new(&limits(rate_max));
        for number in 0..20_000_u64 {
            if number % 2_000 == 1_999 {
                let rate = random.u64(20..200);
                rate_max = rate_max.max(rate);
                world.set_rules(&limits(rate));
            }
            let then = world.now + random.u64(0..2 * SECOND / 100);
            world.advance_to(then);
            world.offer(17, &format!("u{number}"));
        }
        let times: Vec<u64> = world.releases.iter().map(|release| release.at).collect();
        let mut first = 0;
        for (index, time) in times.iter().enumerate() {
            while times[first] + SECOND <= *time {
                first += 1;
            }
            let count = (index - first + 1) as u64;
            assert!(
                count <= rate_max + 5,
                "seed {seed}: {count} in a second at {rate_max}/s"
            );
        }
    }
}
