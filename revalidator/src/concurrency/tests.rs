//! Tests with simulated jobs on origins with known response times, including the example of the original design (docs/revalidator.md).

use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;

/// Response time in milliseconds for a number of parallel requests, in a batch.
type Origin = fn(concurrency: usize, batch: usize) -> f64;

fn settings(mode: Mode, max: usize) -> Settings {
    Settings {
        mode,
        max,
        ..Settings::default()
    }
}

/// Sends requests at constant concurrency; returns the response times, and the time of the last response.
fn send(
    origin: Origin,
    count: usize,
    concurrency: usize,
    batch: usize,
    start: f64,
) -> (Vec<f64>, f64) {
    let micros = |ms: f64| {
        u64::try_from(Duration::from_secs_f64(ms / 1e3).as_micros()).expect("a short time")
    };
    let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let (mut now, mut last, mut times) = (micros(start), micros(start), Vec::new());
    for _ in 0..count {
        if ends.len() == concurrency {
            now = ends.pop().expect("requests are in progress").0;
        }
        let time = origin(concurrency, batch);
        times.push(time);
        ends.push(Reverse(now + micros(time)));
        last = last.max(now + micros(time));
    }
    (times, last as f64 / 1e3)
}

struct Run {
    seconds: f64,
    mean: f64,
    /// After each batch.
    concurrency: Vec<usize>,
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn run(settings: Settings, origin: Origin, assets: usize) -> Run {
    let of_ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    let mean_of = |times: &[f64]| (!times.is_empty()).then(|| of_ms(mean(times)));
    let mut controller = Controller::new(settings);
    let start = Instant::now();
    let (mut now, mut all, mut concurrency) = (0.0, Vec::new(), Vec::new());
    for batch in 0..assets / 100 {
        let plan = controller.plan(start + of_ms(now));
        let probes = plan.probe_requests;
        let (probe, end) = send(origin, probes, settings.min, batch, now);
        let (rest, end) = send(origin, 100 - probes, plan.concurrency, batch, end);
        now = end;
        controller.finish(BatchTimes {
            probe: mean_of(&probe),
            mean: mean_of(&rest),
            has_failures: false,
        });
        concurrency.push(controller.concurrency);
        all.extend(probe);
        all.extend(rest);
    }
    Run {
        seconds: now / 1e3,
        mean: mean(&all),
        concurrency,
    }
}

/// Rows 1 to 20 of the table in annex 1 of the original design. Row 1 shows 6 requests, but its 100 ms are not above 350 ms, so the
/// rule of section 5.3 gives 8. All other rows follow the rule.
#[test]
fn a1_staircase_of_the_paper() {
    const ROWS: [u64; 20] = [
        100, 300, 500, 500, 650, 800, 300, 300, 300, 400, 400, 400, 400, 400, 400, 400, 600, 750,
        900, 1050,
    ];
    let mut controller = Controller::new(settings(Mode::Paper, 20));
    let (mut during, mut after) = (Vec::new(), Vec::new());
    for row in ROWS {
        during.push(controller.plan(Instant::now()).concurrency);
        controller.finish(BatchTimes {
            mean: Some(Duration::from_millis(row)),
            ..BatchTimes::default()
        });
        after.push(controller.concurrency);
    }
    let expected = [
        8, 6, 6, 8, 6, 6, 8, 10, 12, 10, 12, 14, 16, 18, 20, 20, 18, 16, 14, 12,
    ];
    assert_eq!(after, expected);
    let expected = [
        6, 8, 6, 6, 8, 6, 6, 8, 10, 12, 10, 12, 14, 16, 18, 20, 20, 18, 16, 14,
    ];
    assert_eq!(during, expected);
}

#[test]
fn a2_constant_origin_takes_the_calculated_time() {
    let constant: Origin = |_, _| 300.0;
    let fixed = run(settings(Mode::Paper, 6), constant, 100_000);
    assert!((fixed.seconds - 5100.0).abs() < 0.05, "{}", fixed.seconds);
    let paper = run(settings(Mode::Paper, 20), constant, 100_000);
    assert!((paper.seconds - 1510.5).abs() < 0.05, "{}", paper.seconds);
    let two = run(settings(Mode::Paper, 50), constant, 50_000);
    assert!((two.seconds - 324.3).abs() < 0.05, "{}", two.seconds);
    let floor = run(settings(Mode::Floor, 20), constant, 100_000);
    assert!(floor.seconds <= 1530.0, "{}", floor.seconds);
    let two = run(settings(Mode::Floor, 50), constant, 50_000);
    assert!(two.seconds <= 330.0, "{}", two.seconds);
}

#[test]
fn a3_floor_does_not_saturate_an_origin() {
    let saturating: Origin = |concurrency, _| 200.0 * (concurrency as f64 / 8.0).max(1.0);
    let paper = run(settings(Mode::Paper, 20), saturating, 12_000);
    assert_eq!(paper.concurrency.last(), Some(&20));
    assert!((paper.mean - 489.0).abs() < 1.0, "{}", paper.mean);
    assert!((paper.seconds - 302.0).abs() < 1.0, "{}", paper.seconds);
    let floor = run(settings(Mode::Floor, 20), saturating, 12_000);
    assert!(
        floor.concurrency.iter().all(|&it| it <= 12),
        "{:?}",
        floor.concurrency
    );
    assert!(floor.mean <= 300.0, "{}", floor.mean);
    assert!(
        floor.seconds <= 1.05 * paper.seconds,
        "{} {}",
        floor.seconds,
        paper.seconds
    );
}

#[test]
fn a4_floor_follows_an_origin_that_becomes_slower() {
    let slower: Origin = |concurrency, batch| {
        let capacity = (20.0 - 14.0 * batch as f64 / 60.0).max(6.0);
        200.0 * (concurrency as f64 / capacity).max(1.0)
    };
    let paper = run(settings(Mode::Paper, 20), slower, 6_000);
    assert_eq!(paper.concurrency.last(), Some(&20));
    let floor = run(settings(Mode::Floor, 20), slower, 6_000);
    assert!(floor.mean <= 300.0, "{}", floor.mean);
    let last = floor.concurrency.last().expect("batches");
    assert!((8..=10).contains(last), "{:?}", floor.concurrency);
}

#[test]
fn exactly_the_threshold_lowers() {
    for (second, expected) in [(299, 10), (300, 6)] {
        let mut controller = Controller::new(settings(Mode::Paper, 20));
        for ms in [200, second] {
            let mean = Some(Duration::from_millis(ms));
            controller.finish(BatchTimes {
                mean,
                ..BatchTimes::default()
            });
        }
        assert_eq!(controller.concurrency, expected, "{second}");
    }
}

#[test]
fn failures_lower_and_have_no_response_time() {
    let mut controller = Controller::new(settings(Mode::Floor, 20));
    let fast = BatchTimes {
        mean: Some(Duration::from_millis(100)),
        ..BatchTimes::default()
    };
    for _ in 0..4 {
        controller.finish(fast);
    }
    assert_eq!(controller.concurrency, 14);
    controller.finish(BatchTimes {
        has_failures: true,
        ..fast
    });
    controller.finish(BatchTimes {
        has_failures: true,
        ..BatchTimes::default()
    });
    assert_eq!(controller.concurrency, 10);
    controller.finish(BatchTimes::default());
    assert_eq!(controller.concurrency, 10);
}

#[test]
fn floor_is_measured_once_a_minute_above_the_minimum() {
    let mut controller = Controller::new(settings(Mode::Floor, 20));
    let fast = BatchTimes {
        mean: Some(Duration::from_millis(100)),
        ..BatchTimes::default()
    };
    let (start, mut probes) = (Instant::now(), Vec::new());
    for second in (0..180).step_by(30) {
        probes.push(
            controller
                .plan(start + Duration::from_secs(second))
                .probe_requests,
        );
        controller.finish(fast);
    }
    assert_eq!(probes, [0, 0, 12, 0, 12, 0]);
}

#[test]
fn fast_failures_do_not_lower_the_floor() {
    let times = |ms, has_failures| BatchTimes {
        probe: None,
        mean: Some(Duration::from_millis(ms)),
        has_failures,
    };
    let mut controller = Controller::new(settings(Mode::Floor, 20));
    for _ in 0..3 {
        controller.finish(times(300, false));
    }
    controller.finish(times(120, true));
    assert_eq!(controller.concurrency, 10);
    controller.finish(times(300, false));
    assert_eq!(controller.concurrency, 12);
}

#[test]
fn half_of_a_batch_is_compared_with_a_large_probe() {
    let mut controller = Controller::new(Settings {
        min: 60,
        ..settings(Mode::Floor, 100)
    });
    controller.finish(BatchTimes {
        mean: Some(Duration::from_millis(100)),
        ..BatchTimes::default()
    });
    let plan = controller.plan(Instant::now());
    assert_eq!((plan.probe_requests, plan.concurrency), (50, 62));
}
