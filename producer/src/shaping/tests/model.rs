//! Random traffic and changes: what holds always.

use fastrand::Rng;

use super::{MILLISECOND, SECOND, World};

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
            dead_letter = { base = "2s", cap = "5s", max_requeues = 2, share = 0.2 }"#
        }
        _ => "",
    };
    let whole = if random.bool() {
        format!(
            r#"[limits.whole]
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
        {whole}
        "#,
        shape(first),
        random.u32(3..5),
        shape(second),
        rate(random),
        shape(others),
        rate(random),
    )
}

/// Each cookie has one fate or is held; none goes after a later one of its pair; rooms keep their bounds.
#[test]
fn nothing_is_uncounted_out_of_order_or_beyond_its_bound_whatever_changes() {
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new(&draw(&mut random));
        let (mut offered, mut then) = (0_u64, 0);
        for step in 0..4_000 {
            then += random.u64(0..20) * MILLISECOND;
            world.late = random.u64(0..3) * MILLISECOND;
            world.pass_to(then);
            match random.usize(0..400) {
                0 => world.change(&draw(&mut random)),
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
        world.pass_to(then + 60 * SECOND);
        let all = world.shaper.summaries(0);
        let accepted: u64 = all.values().map(|summary| summary.figures.accepted).sum();
        assert_eq!(accepted, offered, "seed {seed}");
        let over = all
            .values()
            .find(|summary| summary.holding.bytes > 64 << 14);
        assert_eq!(over, None, "seed {seed}");
        world.summary("first");
    }
}

/// With one limit that shapes, as many go in any window as it allows, through changes of the rate.
#[test]
fn no_window_has_more_than_the_rate_and_the_burst_through_changes() {
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
        let mut most = 50;
        let mut world = World::new(&limits(most));
        for number in 0..20_000_u64 {
            if number % 2_000 == 1_999 {
                let rate = random.u64(20..200);
                most = most.max(rate);
                world.change(&limits(rate));
            }
            let then = world.now + random.u64(0..2 * SECOND / 100);
            world.pass_to(then);
            world.offer(17, &format!("u{number}"));
        }
        let times: Vec<u64> = world.gone.iter().map(|gone| gone.at).collect();
        let mut first = 0;
        for (index, time) in times.iter().enumerate() {
            while times[first] + SECOND <= *time {
                first += 1;
            }
            let count = (index - first + 1) as u64;
            assert!(
                count <= most + 5,
                "seed {seed}: {count} in a second, of {most}"
            );
        }
    }
}
