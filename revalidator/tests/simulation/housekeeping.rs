//! Tests of schedules, of jobs that are cancelled, of the removal of ended jobs, and of the space that results take.

use std::time::Duration;

use revalidator::{
    engine::{Bucket, Engine as _, RESULT_BYTES_MAX},
    jobs::{self, DAY_MS, JOB_MS_MAX},
    messages::{JobStatus, RevalidatorState, ServerState},
    mirror::change_job,
};
use tempfile::TempDir;
use tokio::time::sleep;

use super::{
    APPS, fresh,
    harness::{START, Simulation, clock},
    makers::{apps, cancel, write_assets},
};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

async fn sleep_until(time: u64) {
    sleep(Duration::from_millis(time - clock())).await;
}

/// Time between two firings of the schedule.
const STEP: u64 = 10 * MINUTE;

/// Two makers of an application with a schedule, shortly before the first firing.
async fn scheduled(dir: &TempDir, more: &str) -> Simulation {
    write_assets(dir, 100);
    let apps = format!("{}schedule = \"*/10 * * * * UTC\"\n{more}", apps(dir));
    let mut simulation = Simulation::new(&apps, fresh);
    for _ in 0..2 {
        simulation.maker();
    }
    sleep_until(START + STEP - MINUTE).await;
    simulation
}

/// Id of the job of a firing.
fn id(firing: u64) -> String {
    format!("one-{}", START + firing * STEP)
}

fn ids(simulation: &Simulation) -> Vec<String> {
    let jobs = simulation.mirror.jobs();
    let mut ids: Vec<_> = jobs.iter().map(|it| it.job_id.clone()).collect();
    ids.sort();
    ids
}

#[tokio::test(start_paused = true)]
async fn firing_is_skipped_while_a_job_is_open_and_not_made_up_for() {
    let dir = TempDir::new().unwrap();
    let simulation = scheduled(&dir, "").await;
    assert!(ids(&simulation).is_empty());
    // A job that an operator created earlier does not replace the scheduled one.
    simulation.list_job("one", "manual", |_| ()).await;
    cancel(&simulation, "manual").await;
    sleep_until(START + STEP + MINUTE).await;
    assert_eq!(ids(&simulation), ["manual".to_owned(), id(1)]);
    sleep_until(START + 2 * STEP + 5 * MINUTE).await;
    cancel(&simulation, &id(1)).await;
    sleep_until(START + 3 * STEP - MINUTE).await;
    assert_eq!(ids(&simulation), ["manual".to_owned(), id(1)]);
    sleep_until(START + 3 * STEP + MINUTE).await;
    assert_eq!(ids(&simulation), ["manual".to_owned(), id(1), id(3)]);
}

#[tokio::test(start_paused = true)]
async fn removed_job_is_not_created_again() {
    let dir = TempDir::new().unwrap();
    let simulation = scheduled(&dir, "").await;
    sleep_until(START + STEP + MINUTE).await;
    let id_1 = id(1);
    let removed = simulation.model.delete(Bucket::Jobs, &id_1, None);
    removed.await.unwrap();
    sleep_until(START + 2 * STEP - MINUTE).await;
    assert!(ids(&simulation).is_empty());
    sleep_until(START + 2 * STEP + MINUTE).await;
    assert_eq!(ids(&simulation), [id(2)]);
}

#[tokio::test(start_paused = true)]
async fn firing_without_a_maker_is_made_up_for_once() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 100);
    let apps = format!("{}schedule = \"*/10 * * * * UTC\"\n", apps(&dir));
    let mut simulation = Simulation::new(&apps, fresh);
    let maker = simulation.maker();
    sleep_until(START + STEP - MINUTE).await;
    maker.abort();
    sleep_until(START + 2 * STEP + MINUTE).await;
    for _ in 0..2 {
        simulation.maker();
    }
    sleep_until(START + 2 * STEP + 2 * MINUTE).await;
    assert_eq!(ids(&simulation), [id(2)]);
}

#[tokio::test(start_paused = true)]
async fn overdue_jobs_of_other_programs_and_unknown_applications_are_cancelled() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    let almost = START - JOB_MS_MAX + 5 * MINUTE;
    simulation
        .job("one", "foreign", 100, |job| {
            (job.foreign, job.created_at) = (true, almost)
        })
        .await;
    simulation
        .job("two", "unknown", 100, |job| {
            job.created_at = almost;
            job.app_name = "other".to_owned();
        })
        .await;
    // A status with the fields of the original design only.
    simulation
        .job("two", "paper", 100, |job| {
            (job.created_at, job.revalidators_needed) = (0, 0)
        })
        .await;
    sleep_until(START + 4 * MINUTE).await;
    assert!(simulation.status("foreign").await.is_open());
    sleep_until(START + 6 * MINUTE).await;
    for id in ["foreign", "unknown"] {
        let job = simulation.status(id).await;
        assert_eq!(job.reason.as_deref(), Some("not finished within 6 days"));
        assert_eq!(
            (job.is_cancelled(), simulation.model.unsettled(id)),
            (true, 0)
        );
    }
    let job = simulation.status("paper").await;
    assert!(job.is_open() && job.foreign && (START..START + MINUTE).contains(&job.created_at));
    simulation.worker();
    sleep_until(START + 10 * MINUTE).await;
    assert_eq!(simulation.results("paper").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn batches_of_a_cancelled_job_without_a_maker_are_removed() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation
        .job("one", "a", 300, |job| job.foreign = true)
        .await;
    sleep_until(START + MINUTE).await;
    cancel(&simulation, "a").await;
    sleep_until(START + 2 * MINUTE).await;
    assert_eq!(simulation.model.unsettled("a"), 0);
    // The foreign maker does not notice the cancellation, and transmits a batch much later.
    sleep_until(START + HOUR).await;
    let sent = simulation.model.send_batch("a", "late", "batch".into());
    sent.await.unwrap();
    sleep_until(START + HOUR + MINUTE).await;
    assert_eq!(simulation.model.unsettled("a"), 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_jobs_are_kept_until_acknowledged_and_checks_do_not_displace_jobs() {
    let mut simulation = Simulation::new(APPS, fresh);
    let ended = async |id: &str, state: ServerState, age: u64, change: fn(&mut JobStatus)| {
        let set = |job: &mut JobStatus| {
            job.server_state = state;
            job.ended_at = Some(START - age);
            job.revalidator_state = RevalidatorState::Finished;
            change(job);
        };
        simulation.list_job("one", id, set).await;
    };
    let (old, day) = (8 * DAY_MS, DAY_MS);
    // Four minutes after the start, this job is 20 days old.
    let almost = 20 * day - 4 * MINUTE;
    ended("cancelled", ServerState::Cancelled, almost, |_| ()).await;
    ended("acknowledged", ServerState::Cancelled, old, |job| {
        job.acknowledged = true
    })
    .await;
    ended("finished", ServerState::Finished, old, |_| ()).await;
    ended("new", ServerState::Finished, day, |_| ()).await;
    ended("check", ServerState::Finished, 2 * HOUR, |job| {
        job.push = true
    })
    .await;
    // The origin of this job still demands a pause.
    ended("throttled", ServerState::Finished, 2 * HOUR, |job| {
        (job.push, job.throttled_until) = (true, Some(START + 4 * MINUTE))
    })
    .await;
    for number in 0..1010 {
        let check = |job: &mut JobStatus| job.push = true;
        ended(
            &format!("check-{number:04}"),
            ServerState::Finished,
            0,
            check,
        )
        .await;
    }
    simulation.maker();
    sleep_until(START + 2 * MINUTE).await;
    let left = ids(&simulation);
    assert_eq!(left.len(), 1003);
    for (id, is_left) in [
        ("cancelled", true),
        ("acknowledged", false),
        ("finished", false),
        ("new", true),
        ("check", false),
        ("throttled", true),
        ("check-0009", false),
        ("check-0010", true),
    ] {
        assert_eq!(left.iter().any(|it| it == id), is_left, "{id}");
    }
    // The job is written again, because the bucket removes keys after 14 days without a change.
    let (_, revision) = simulation
        .model
        .get(Bucket::Jobs, "cancelled")
        .await
        .unwrap()
        .unwrap();
    sleep_until(START + 5 * MINUTE).await;
    let (_, newer) = simulation
        .model
        .get(Bucket::Jobs, "cancelled")
        .await
        .unwrap()
        .unwrap();
    assert!(newer > revision);
    let acknowledge = |job: &mut JobStatus| job.acknowledged = true;
    change_job(&simulation.model, "cancelled", acknowledge)
        .await
        .unwrap();
    sleep_until(START + 6 * MINUTE).await;
    let left = ids(&simulation);
    let has = |id: &str| left.iter().any(|it| it == id);
    assert!(!has("cancelled") && !has("throttled") && has("new"));
}

#[tokio::test(start_paused = true)]
async fn results_of_the_oldest_ended_jobs_are_removed_while_half_of_the_stream_is_full() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    for id in ["a", "b", "c"] {
        simulation.job("one", id, 300, |_| ()).await;
        simulation.wait_ended(id).await;
    }
    let stop = |job: &mut JobStatus| {
        jobs::pause(job, clock());
        job.foreign = true;
    };
    simulation.job("one", "open", 0, stop).await;
    simulation.model.set_result_size(1);
    let bytes = simulation.model.result_bytes().await.unwrap();
    // The results of one job must be removed.
    simulation
        .model
        .set_result_size(RESULT_BYTES_MAX / 2 / bytes + 1);
    sleep(Duration::from_secs(60)).await;
    let left = |id| simulation.model.all_results(id).len();
    assert_eq!((left("a"), left("b"), left("c")), (0, 3, 3));
    assert_eq!(ids(&simulation), ["b", "c", "open"]);
}

#[tokio::test(start_paused = true)]
async fn only_the_oldest_job_is_transmitted_while_results_fill_their_stream() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 25_000);
    let one = apps(&dir);
    let two = one.replace("apps.one", "apps.two");
    let mut simulation = Simulation::new(&format!("{one}{two}"), fresh);
    simulation.maker();
    simulation
        .job("one", "open", 0, |job| job.app_name = "other".to_owned())
        .await;
    let sent = simulation.model.send_result("open", "", "result".into());
    sent.await.unwrap();
    simulation.model.set_result_size(RESULT_BYTES_MAX);
    simulation.list_job("one", "old", |_| ()).await;
    sleep(Duration::from_millis(1)).await;
    simulation.list_job("two", "new", |_| ()).await;
    sleep(Duration::from_secs(600)).await;
    let unsettled = |id| simulation.model.unsettled(id);
    assert_eq!((unsettled("old"), unsettled("new")), (200, 20));
    let bytes = simulation.metrics.result_bytes.get();
    assert_eq!(u64::try_from(bytes).unwrap(), 6 * RESULT_BYTES_MAX);
    cancel(&simulation, "old").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(simulation.model.unsettled("new"), 200);
}
