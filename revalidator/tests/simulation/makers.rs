//! Tests of makers, the processes that send the batches of jobs to workers and count the results. They cover the order of
//! jobs, invalid results, takeover by another maker, assets that clients send with a job, and files that cannot be written.

use std::{fs, time::Duration};

use revalidator::{
    engine::{Bucket, Engine as _},
    jobs,
    lease::Lease,
    maker::bodies::{Bodies, Body, LARGE_BODIES},
    messages::{
        AllowDelete, Asset, AssetResult, JobResult, JobStatus, Outcome, RevalidatorState,
        ServerState,
    },
    mirror::{change_job, maker_key},
};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::time::{Instant, sleep};

use super::{
    fresh,
    harness::{Simulation, clock},
};

/// An application with this file of assets.
pub(crate) fn apps(dir: &TempDir) -> String {
    let file = dir.path().join("assets.ndjson");
    format!(
        "[apps.one]\nkind = \"list\"\nhosts = [\"origin.example\"]\nallow_delete = \"partial\"\nassets = {file:?}\n"
    )
}

pub(crate) fn write_assets(dir: &TempDir, count: usize) {
    let line = |number| {
        format!(
            "{{\"key\":\"k/{number}\",\"url\":\"https://origin.example/{number}\",\"eTag\":\"old\"}}\n"
        )
    };
    let lines: String = (0..count).map(line).collect();
    fs::write(dir.path().join("assets.ndjson"), lines).unwrap();
}

fn lines(dir: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(dir.path().join("assets.ndjson")).unwrap();
    let lines = text.lines();
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

fn result(job: &str, batch: u64, attempt: u32, assets: usize) -> JobResult {
    let one = |number| AssetResult {
        asset: Asset {
            key: format!("k/{number}"),
            e_tag: "new".to_owned(),
            ..Asset::default()
        },
        is_deleted: true,
        server_response: 1,
        server_error: false,
        was_stale: true,
        outcome: Outcome::Gone,
        held_back: false,
    };
    JobResult {
        average_response: 1,
        results: (0..assets).map(one).collect(),
        revalidator_id: "stranger".to_owned(),
        job_id: job.to_owned(),
        batch,
        attempt,
        restarts: 0,
    }
}

async fn publish(simulation: &Simulation, job: &str, result: &JobResult) {
    let payload = serde_json::to_vec(result).unwrap();
    // Each message counts, whatever its id.
    let id = fastrand::u64(..).to_string();
    let sent = simulation.model.send_result(job, &id, payload.into());
    sent.await.unwrap();
}

pub(crate) async fn cancel(simulation: &Simulation, job: &str) {
    let cancel = |job: &mut JobStatus| {
        jobs::cancel(job, "by an operator", clock());
    };
    change_job(&simulation.model, job, cancel).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn job_is_transmitted_when_the_older_one_of_its_application_has_ended() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 250);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    simulation.maker();
    simulation.job("one", "a", 100, |_| ()).await;
    sleep(Duration::from_millis(1)).await;
    simulation.list_job("one", "b", |_| ()).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(simulation.status("b").await.batch_count, 0);
    assert_eq!(simulation.model.unsettled("b"), 0);
    cancel(&simulation, "a").await;
    // The maker reads the file only now.
    write_assets(&dir, 150);
    simulation.worker();
    let ended = simulation.wait_ended("b").await;
    assert_eq!((ended.counts.checked, ended.batch_count), (150, 2));
    assert!(lines(&dir).iter().all(|it| it["checkedAt"].is_u64()));
}

#[tokio::test(start_paused = true)]
async fn job_without_results_holds_a_limited_number_of_batches() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 25_000);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(simulation.model.unsettled("a"), 200);
    let worker = simulation.worker();
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    worker.abort();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(simulation.model.unsettled("a"), 200);
    cancel(&simulation, "a").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(simulation.model.unsettled("a"), 0);
}

#[tokio::test(start_paused = true)]
async fn strange_results_neither_count_nor_keep_a_job_from_its_end() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 250);
    let mut simulation = Simulation::new(&apps(&dir), |asset, _| {
        (
            if asset.key == "k/249" { 500 } else { 304 },
            Duration::from_millis(200),
        )
    });
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    simulation
        .wait("a", |job| job.server_state == ServerState::WaitForResults)
        .await;
    for (job, batch, attempt, assets) in [
        ("a", 0, 0, 1),
        ("a", 1, 3, 1),
        ("a", 0, 2, 1),
        ("a", 3, 1, 1),
        ("a", 999, 1, 1),
        ("other", 1, 1, 1),
        ("a", 1, 1, 101),
    ] {
        publish(&simulation, "a", &result(job, batch, attempt, assets)).await;
    }
    sleep(Duration::from_secs(5)).await;
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Finished);
    let counts = ended.counts;
    assert_eq!(
        (counts.checked, counts.fresh, counts.failed, counts.gone),
        (250, 249, 1, 0)
    );
    assert_eq!(ended.retry_batch_count, Some(1));
    assert_eq!(simulation.metrics.invalid_messages.get(), 7);
    assert_eq!(lines(&dir).len(), 250);
}

#[tokio::test(start_paused = true)]
async fn results_cannot_remove_more_lines_than_max_removals_permits() {
    for (allow, removed) in [(AllowDelete::None, 0), (AllowDelete::Partial, 50)] {
        let dir = TempDir::new().unwrap();
        write_assets(&dir, 250);
        let mut simulation = Simulation::new(&apps(&dir), fresh);
        simulation.maker();
        simulation
            .list_job("one", "a", |job| job.allow_delete = allow)
            .await;
        simulation.wait("a", |job| job.batch_count == 3).await;
        for batch in 0..3 {
            // All results are for the first hundred assets.
            publish(&simulation, "a", &result("a", batch, 1, 100)).await;
        }
        simulation.wait_ended("a").await;
        let lines = lines(&dir);
        assert_eq!(lines.len(), 250 - removed, "{allow:?}");
        // Their objects may be missing, so the next job requests them unconditionally.
        let cleared = lines.iter().filter(|it| it["eTag"] == "").count();
        assert_eq!(cleared, 100 - removed);
    }
}

#[tokio::test(start_paused = true)]
async fn maker_that_was_suspended_does_not_change_a_job_that_another_one_ended() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 250);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    simulation
        .wait("a", |job| job.server_state == ServerState::WaitForResults)
        .await;
    // The lease expires while the maker is suspended, so the maker continues without noticing the other one.
    let (model, key) = (&simulation.model, maker_key("a"));
    model
        .put(Bucket::Subscriptions, &key, "other".into())
        .await
        .unwrap();
    let finish = |job: &mut JobStatus| {
        job.server_state = ServerState::Finished;
        job.revalidator_state = RevalidatorState::Finished;
        job.ended_at = Some(clock());
    };
    let ended = change_job(model, "a", finish).await.unwrap().unwrap();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(simulation.status("a").await, ended);
}

#[tokio::test(start_paused = true)]
async fn another_maker_continues_in_the_middle_of_the_list() {
    // Inside and outside the broker's window for duplicates, and with fewer batches than were transmitted.
    for (pause, removed) in [(0, 4_000..4_003), (300, 4_000..4_003), (0, 4_000..5_600)] {
        let dir = TempDir::new().unwrap();
        write_assets(&dir, 6_000);
        let mut simulation = Simulation::new(&apps(&dir), fresh);
        simulation.model.set_latency(20, 1);
        let first = simulation.maker();
        simulation.list_job("one", "a", |_| ()).await;
        simulation.wait("a", |job| job.batch_count == 40).await;
        sleep(Duration::from_millis(200)).await;
        first.abort();
        assert!((42..60).contains(&simulation.model.unsettled("a")));
        // Assets after the cursor disappear, so the repeated batches have different assets.
        let file = dir.path().join("assets.ndjson");
        let text = fs::read_to_string(&file).unwrap();
        let left = text
            .lines()
            .enumerate()
            .filter(|(number, _)| !removed.contains(number))
            .map(|(_, line)| format!("{line}\n"));
        fs::write(&file, left.collect::<String>()).unwrap();
        sleep(Duration::from_secs(pause)).await;
        simulation.maker();
        simulation.worker();
        let ended = simulation.wait_ended("a").await;
        let left = 6_000 - removed.len() as u64;
        assert_eq!(
            (ended.server_state, ended.batch_count, ended.asset_count),
            (ServerState::Finished, left.div_ceil(100), left)
        );
        assert_eq!(ended.counts.checked, left);
        for number in 0..6_000 {
            let count = simulation.requests_for(&format!("k/{number}"));
            assert!(count > 0 || removed.contains(&number), "{number}");
        }
        assert!(simulation.requests() <= 6_000 + 2_000);
    }
}

#[tokio::test(start_paused = true)]
async fn maker_without_the_file_leaves_the_job_to_another() {
    let (dir, empty) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write_assets(&dir, 250);
    let mut simulation = Simulation::new(&apps(&empty), fresh);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    let waiting = simulation.wait("a", |job| job.reason.is_some()).await;
    assert!(waiting.is_open());
    let reason = waiting.reason.unwrap();
    assert!(reason.contains("assets.ndjson"), "{reason}");
    simulation.set_apps(&apps(&dir));
    simulation.maker();
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(
        (ended.counts.checked, ended.server_state, ended.reason),
        (250, ServerState::Finished, None)
    );
    assert!(lines(&dir).iter().all(|it| it["checkedAt"].is_u64()));
}

/// A job whose assets were received by the process with these bodies.
async fn body_job(simulation: &Simulation, id: &str, bodies: &Bodies) {
    let file = NamedTempFile::new().unwrap().into_temp_path();
    let line = |number| format!("{{\"url\":\"https://origin.example/{number}\",\"eTag\":\"1\"}}\n");
    let text: String = (0..250).map(line).collect();
    fs::write(&file, format!("{{\"app\":\"one\"}}\n{text}")).unwrap();
    let (model, mirror) = (&simulation.model, &simulation.mirror);
    let lease = Lease::acquire(model, mirror, maker_key(id), id)
        .await
        .unwrap();
    let permit = LARGE_BODIES.acquire().await.unwrap();
    let at = Instant::now();
    let body = Body {
        file,
        start: 14,
        has_keys: false,
        lease,
        at,
        permit,
    };
    bodies.lock().insert(id.to_owned(), body);
    simulation
        .list_job("one", id, |job| {
            (job.has_body, job.cursor) = (true, "14".to_owned())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn assets_of_a_request_are_transmitted_by_the_process_that_received_them() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 0);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    let bodies = Bodies::default();
    for _ in 0..3 {
        simulation.maker();
    }
    simulation.maker_with(Bodies::clone(&bodies));
    simulation.job("one", "older", 100, |_| ()).await;
    sleep(Duration::from_millis(1)).await;
    body_job(&simulation, "a", &bodies).await;
    // The older job takes longer than a lease.
    sleep(Duration::from_secs(120)).await;
    cancel(&simulation, "older").await;
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(
        (ended.counts.checked, ended.server_state),
        (250, ServerState::Finished)
    );
    sleep(Duration::from_secs(5)).await;
    assert!(bodies.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn job_whose_assets_are_lost_is_cancelled_without_batches() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 0);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    let bodies = Bodies::default();
    let process = simulation.maker_with(Bodies::clone(&bodies));
    simulation.job("one", "older", 100, |_| ()).await;
    sleep(Duration::from_millis(1)).await;
    body_job(&simulation, "a", &bodies).await;
    sleep(Duration::from_secs(120)).await;
    process.abort();
    bodies.lock().clear();
    simulation.maker();
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.server_state, ServerState::Cancelled);
    let reason = ended.reason.unwrap();
    assert_eq!(reason, "the process that received the assets has ended");
    assert_eq!(simulation.model.unsettled("a"), 0);
}

#[tokio::test(start_paused = true)]
async fn results_that_cannot_be_written_back_are_retried_with_a_reason() {
    let dir = TempDir::new().unwrap();
    write_assets(&dir, 250);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    simulation.wait("a", |job| job.batch_count == 3).await;
    let (file, other) = (dir.path().join("assets.ndjson"), dir.path().join("other"));
    fs::rename(&file, &other).unwrap();
    simulation.worker();
    let is_explained = |job: &JobStatus| {
        job.reason
            .as_ref()
            .is_some_and(|it| it.contains("retrying"))
    };
    let waiting = simulation.wait("a", is_explained).await;
    assert_eq!(waiting.server_state, ServerState::ProcessingResults);
    let messages = simulation.model.calls();
    sleep(Duration::from_secs(600)).await;
    // Each attempt reads all results again, so there must be few attempts.
    let messages = simulation.model.calls() - messages;
    assert!(messages < 2000, "{messages}");
    fs::rename(&other, &file).unwrap();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(
        (ended.server_state, ended.reason),
        (ServerState::Finished, None)
    );
    assert!(lines(&dir).iter().all(|it| it["checkedAt"].is_u64()));
}
