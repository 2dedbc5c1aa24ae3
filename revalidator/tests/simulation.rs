//! Tests of jobs in simulated time, with a model of the broker, with makers (which send the batches of jobs), workers
//! (which check them), and an origin with a known behavior.

#![expect(clippy::unwrap_used, reason = "a simulation that fails panics")]

#[path = "simulation/broker.rs"]
mod broker;
#[path = "simulation/failures.rs"]
mod failures;
#[path = "simulation/harness.rs"]
mod harness;
#[path = "simulation/housekeeping.rs"]
mod housekeeping;
#[path = "simulation/interruptions.rs"]
mod interruptions;
#[path = "simulation/kills.rs"]
mod kills;
#[path = "simulation/long_run.rs"]
mod long_run;
#[path = "simulation/makers.rs"]
mod makers;
#[path = "simulation/matches.rs"]
mod matches;
mod model;

use std::time::Duration;

use revalidator::{
    jobs,
    messages::{RevalidatorState, ServerState},
    mirror::change_job,
};

use harness::{Simulation, clock};

/// Two applications without stored contents.
pub(crate) const APPS: &str = "
[apps.one]
kind = \"list\"
hosts = [\"origin.example\"]
allow_delete = \"partial\"
[apps.two]
kind = \"list\"
hosts = [\"origin.example\"]
";

pub(crate) fn fresh(_: &revalidator::messages::Asset, _: u64) -> (u16, Duration) {
    (304, Duration::from_millis(300))
}

#[tokio::test(start_paused = true)]
async fn job_with_all_results_finishes() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 250, |_| ()).await;
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Finished);
    assert_eq!(ended.revalidator_state, RevalidatorState::Finished);
    assert_eq!((ended.counts.checked, ended.counts.fresh), (250, 250));
    assert_eq!(
        (ended.retry_batch_count, simulation.requests()),
        (Some(0), 250)
    );
    assert_eq!(
        (
            simulation.results("a").len(),
            simulation.model.unsettled("a")
        ),
        (3, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn job_without_assets_finishes() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.job("one", "a", 0, |_| ()).await;
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Finished);
}

#[tokio::test(start_paused = true)]
async fn a7_jobs_never_have_more_workers_than_needed_and_are_taken_in_order() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    for _ in 0..5 {
        simulation.worker();
    }
    let app = |number| if number % 2 == 0 { "one" } else { "two" };
    for number in 0..200_usize {
        let workers = u32::try_from(1 + number % 3).unwrap();
        simulation
            .job(
                app(number),
                &format!("job-{number:03}"),
                1 + number % 4 * 100,
                |new| new.revalidators_needed = workers,
            )
            .await;
    }
    let mut started = [0, 0];
    for number in 0..200 {
        let id = format!("job-{number:03}");
        let ended = simulation.wait_ended(&id).await;
        assert_eq!(ended.server_state, ServerState::Finished);
        assert!(simulation.workers_max(&id) <= 1 + number % 3, "{id}");
        let before = std::mem::replace(&mut started[number % 2], ended.started_at.unwrap());
        assert!(
            before <= started[number % 2],
            "{id} began before an older job of its application"
        );
    }
    assert_eq!(simulation.model.unsettled("job-199"), 0);
    assert_eq!(simulation.metrics.batches_repeated.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_worker_takes_another_job() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    // A job of another program that transmits nothing.
    simulation.job("one", "a", 0, |_| ()).await;
    change_job(&simulation.model, "a", |job| {
        job.server_state = ServerState::Transmitting;
        job.foreign = true;
    })
    .await
    .unwrap();
    simulation
        .wait("a", |job| {
            job.revalidator_state == RevalidatorState::Revalidating
        })
        .await;
    simulation.job("two", "b", 100, |_| ()).await;
    let ended = simulation.wait_ended("b").await;
    assert_eq!(ended.server_state, ServerState::Finished);
    assert!(simulation.status("a").await.is_open());
}

#[tokio::test(start_paused = true)]
async fn paused_job_waits_for_its_operator_and_a_cancelled_one_ends() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 5_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    let pause = |job: &mut revalidator::messages::JobStatus| {
        jobs::pause(job, clock());
    };
    change_job(&simulation.model, "a", pause).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let requests = simulation.requests();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(simulation.requests(), requests);
    let resume = |job: &mut revalidator::messages::JobStatus| {
        jobs::resume(job, clock());
    };
    change_job(&simulation.model, "a", resume).await.unwrap();
    simulation
        .wait("a", |job| job.counts.checked >= 2_000)
        .await;
    let cancel = |job: &mut revalidator::messages::JobStatus| {
        jobs::cancel(job, "by an operator", clock());
    };
    change_job(&simulation.model, "a", cancel).await.unwrap();
    let ended = simulation
        .wait("a", |job| {
            job.revalidator_state == RevalidatorState::Cancelled
        })
        .await;
    assert!(ended.counts.checked < 5_000 && ended.is_cancelled());
    simulation.job("one", "b", 100, |_| ()).await;
    simulation.wait_ended("b").await;
}
