//! One DSP's trouble is not another's.

use super::{MILLISECOND, SECOND, World};

/// Twenty DSPs with 100 a second each, and 2,000 for all of them.
fn limits(whole: u64) -> String {
    let dsps: Vec<String> = (1..=20).map(|dsp| dsp.to_string()).collect();
    format!(
        r#"
        unknown = "others"
        [limits.each]
        keys = [{}]
        mode = "shape"
        shape = {{ queue_bytes = "1MiB" }}
        rules = [ {{ id = "peak", rate = "100/s" }} ]
        [limits.others]
        mode = "shape"
        rules = [ {{ id = "peak", rate = "50/s" }} ]
        [limits.whole]
        global = true
        rules = [ {{ id = "intake", rate = "{whole}/s", burst = 20 }} ]
        "#,
        dsps.join(", ")
    )
}

/// For 20 s each DSP offers 80 a second in bursts of 40, and the first `factor` times as many. The delays of the others, in order.
fn delays(limits: &str, factor: u64) -> (Vec<u64>, Vec<u64>) {
    let mut world = World::new(limits);
    let mut number = 0;
    for half in 0..40_u64 {
        world.pass_to(half * SECOND / 2);
        for dsp in 1..=20 {
            let count = if dsp == 1 { 40 * factor } else { 40 };
            for _ in 0..count {
                number += 1;
                world.offer(dsp, &format!("u{number}"));
            }
        }
    }
    world.pass_to(60 * SECOND);
    world.summary("each");
    let of = |dsp: u32| world.gone.iter().filter(move |gone| gone.dsp == dsp);
    let mut delays: Vec<u64> = (2..=20)
        .flat_map(of)
        .map(|gone| gone.at - gone.accepted)
        .collect();
    delays.sort_unstable();
    let counts = (1..=20).map(|dsp| of(dsp).count() as u64).collect();
    (delays, counts)
}

#[track_caller]
fn check_flooder(whole: u64) {
    let limits = limits(whole);
    let ((alone, _), (beside, counts)) = (delays(&limits, 1), delays(&limits, 100));
    let p99 = |delays: &[u64]| delays[delays.len() * 99 / 100];
    let (alone, beside) = (p99(&alone), p99(&beside));
    assert!(
        beside <= alone * 6 / 5,
        "{beside} ns beside a flooder, {alone} ns without"
    );
    assert!(
        counts[1..].iter().all(|count| *count == 1_600),
        "{counts:?}"
    );
    // It has its rate, and no more.
    assert!(counts[0] <= 60 * 100 + 1, "{counts:?}");
}

#[test]
fn flooder_takes_nothing_of_others_where_all_contracts_fit() {
    check_flooder(2_000);
}

#[test]
fn flooder_takes_nothing_of_others_where_they_do_not() {
    // 20 contracts of 100, and 1,700 for all: enough for what the others offer.
    check_flooder(1_700);
}

#[test]
fn policed_dsp_that_keeps_its_contract_loses_nothing_beside_shaped_lines() {
    let mut world = World::new(
        r#"
        unknown = "others"
        [limits.others]
        rules = [ { id = "peak", rate = "1/s" } ]
        [limits.shaped]
        keys = [1]
        mode = "shape"
        rules = [ { id = "peak", rate = "10000/s" } ]
        [limits.policed]
        keys = [2]
        mode = "police"
        rules = [ { id = "peak", rate = "100/s" } ]
        [limits.whole]
        global = true
        rules = [ { id = "intake", rate = "2000/s", burst = 200 } ]
        "#,
    );
    for millisecond in 0..2_000_u64 {
        world.pass_to(millisecond * MILLISECOND);
        for number in 0..5 {
            world.offer(1, &format!("u{millisecond}-{number}"));
        }
        if millisecond % 20 == 7 {
            world.offer(2, &format!("v{millisecond}"));
        }
    }
    assert_eq!(world.summary("policed").figures.released, 100);
    let whole = world.gone.len();
    assert!(whole <= 2 * 2_000 + 200 + 20, "{whole}");
}

#[test]
fn under_a_shared_limit_each_line_gets_as_much_however_long_it_is() {
    let mut world = World::new(&limits(1_000));
    for number in 0..20_000 {
        world.offer(1, &format!("u{number}"));
    }
    for dsp in 2..=20 {
        for number in 0..1_000 {
            world.offer(dsp, &format!("u{number}"));
        }
    }
    world.pass_to(10 * SECOND);
    let counts: Vec<usize> = (1..=20)
        .map(|dsp| world.gone.iter().filter(|gone| gone.dsp == dsp).count())
        .collect();
    let (least, most) = (counts.iter().min(), counts.iter().max());
    assert!(most.unwrap() - least.unwrap() <= 25, "{counts:?}");
    assert!(counts.iter().sum::<usize>() <= 10_020, "{counts:?}");
}

#[test]
fn all_that_no_limit_names_share_one_bucket() {
    let mut world = World::new(&limits(2_000));
    for dsp in 100..1_100 {
        world.offer(dsp, "u");
    }
    world.pass_to(SECOND - 1);
    assert_eq!(world.gone.len(), 50);
    assert_eq!(world.summary("others").figures.accepted, 1_000);
    // Another DSP does not feel them, but for the time of one cookie of the whole.
    world.offer(3, "u");
    world.pass_to(SECOND + MILLISECOND);
    assert!(world.gone.iter().any(|gone| gone.dsp == 3));
}
