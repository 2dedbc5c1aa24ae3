//! Tests with the long run of the original design (docs/revalidator.md): 12 hours, three workers, jobs every few minutes.

use std::time::Duration;

use revalidator::messages::ServerState;
use tokio::time::sleep;

use super::harness::{START, Simulation, clock, seeds};

const APPS: &str = "
[apps.one]
kind = \"list\"
hosts = [\"origin.example\"]
concurrency = { max = 50 }
[apps.two]
kind = \"list\"
hosts = [\"origin.example\"]
concurrency = { max = 50 }
[apps.three]
kind = \"list\"
hosts = [\"origin.example\"]
concurrency = { max = 50 }
";

const HOUR: u64 = 3_600_000;

/// A normally distributed delay with mean 350 ms and standard deviation 83 ms, from 100 to 600 ms.
fn delay(random: &mut fastrand::Rng) -> Duration {
    loop {
        let sum: f64 = (0..12).map(|_| random.f64()).sum();
        let millis = 350.0 + 83.0 * (sum - 6.0);
        if (100.0..600.0).contains(&millis) {
            return Duration::from_secs_f64(millis / 1e3);
        }
    }
}

/// Runs three makers for some hours; returns the numbers of jobs and batches. With `faults`, the origin fails 5 % of the requests and
/// is down for ten minutes. Workers, makers and the broker fail at random times.
async fn run(seed: u64, hours: u64, has_faults: bool) -> (usize, u64) {
    let random = std::sync::Mutex::new(fastrand::Rng::with_seed(seed));
    let down = START + HOUR / 2..START + HOUR * 2 / 3;
    let mut simulation = Simulation::new(APPS, move |_, now| {
        let mut random = random.lock().unwrap();
        let fails = has_faults && (down.contains(&now) || random.u32(0..20) == 0);
        (if fails { 503 } else { 304 }, delay(&mut random))
    });
    if has_faults {
        simulation.skew_clocks();
    }
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut makers = vec![simulation.maker()];
    let mut workers: Vec<_> = (0..3).map(|_| simulation.worker()).collect();
    let mut next = [START; 3].map(|start| start + random.u64(0..300_000));
    let mut next_fault = START + 10 * 60_000;
    let (mut jobs, mut batches, mut kills) = (Vec::new(), 0, 0);
    while clock() < START + hours * HOUR {
        let (index, at) = next
            .iter()
            .copied()
            .enumerate()
            .min_by_key(|it| it.1)
            .unwrap();
        if has_faults && next_fault < at {
            sleep(Duration::from_millis(next_fault.saturating_sub(clock()))).await;
            next_fault += random.u64(300_000..900_000);
            kills += 1;
            match random.u32(0..4) {
                0 => {
                    simulation.model.set_down(true);
                    sleep(Duration::from_secs(random.u64(1..90))).await;
                    simulation.model.set_down(false);
                }
                1 => {
                    makers.pop().unwrap().abort();
                    makers.push(simulation.maker());
                }
                _ => {
                    workers.swap_remove(random.usize(0..3)).abort();
                    workers.push(simulation.worker());
                }
            }
            continue;
        }
        sleep(Duration::from_millis(at.saturating_sub(clock()))).await;
        next[index] = at + random.u64(60_000..300_000);
        // Log-uniform from 100 to 10,000.
        let assets = (100.0 * 100.0_f64.powf(random.f64())).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "100 to 10,000"
        )]
        let assets = assets as usize;
        let needed = random.u32(1..4);
        let id = format!("job-{}", jobs.len());
        simulation
            .job(["one", "two", "three"][index], &id, assets, |new| {
                new.revalidators_needed = needed
            })
            .await;
        batches += assets.div_ceil(100) as u64;
        jobs.push((id, assets as u64, needed as usize));
    }
    let mut repeated = 0;
    for (id, assets, needed) in &jobs {
        let ended = simulation.wait_ended(id).await;
        assert_eq!(ended.server_state, ServerState::Finished, "{ended:?}");
        assert_eq!(ended.counts.checked, *assets);
        assert!(simulation.workers_max(id) <= *needed, "{id}");
        assert_eq!(simulation.model.unsettled(id), 0);
        repeated += simulation.repeated(id);
    }
    // A killed worker repeats one batch; a broker outage may repeat one of each worker.
    assert!(
        repeated <= 3 * kills,
        "{repeated} repeated after {kills} faults"
    );
    println!(
        "{} jobs, {batches} batches, {} requests, {} messages",
        jobs.len(),
        simulation.requests(),
        simulation.model.calls()
    );
    (jobs.len(), batches)
}

/// Hours of the long run; `SIM_HOURS=12` is the run of the original design.
fn hours() -> u64 {
    std::env::var("SIM_HOURS").map_or(1, |hours| hours.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a5_jobs_of_three_makers_all_finish() {
    let hours = hours();
    for seed in seeds("1..2") {
        let (jobs, batches) = run(seed, hours, false).await;
        if hours == 12 {
            assert!((685..=760).contains(&jobs), "seed {seed}: {jobs}");
            assert!(
                (13_800..=18_500).contains(&batches),
                "seed {seed}: {batches}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a6_jobs_finish_despite_faults() {
    for seed in seeds("2..3") {
        run(seed, hours(), true).await;
    }
}
