//! Tests with a broker whose storage is full, with invalid messages, and with messages of other programs.

use std::time::Duration;

use revalidator::{
    engine::{Bucket, Engine as _},
    jobs,
    messages::{AllowDelete, JobStatus, RevalidatorState, ServerState},
    metrics,
    mirror::change_job,
};
use runtime::metrics::Registry;

use super::{
    APPS,
    failures::MINUTE,
    fresh,
    harness::{START, Simulation, clock},
    makers::{apps, cancel, write_assets},
};

const TIME: Duration = Duration::from_millis(200);

#[tokio::test(start_paused = true)]
async fn full_stream_of_batches_delays_the_maker() {
    let dir = tempfile::tempdir().unwrap();
    let lines = (0..3_000)
        .map(|it| format!("{{\"url\":\"https://origin.example/{it}\",\"eTag\":\"x\"}}\n"));
    std::fs::write(dir.path().join("assets"), lines.collect::<String>()).unwrap();
    let assets = format!("assets = \"{}/assets\"\n[apps.two]", dir.path().display());
    let mut simulation = Simulation::new(&APPS.replace("[apps.two]", &assets), fresh);
    simulation.model.set_work_bytes_max(30_000);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        simulation.status("a").await.server_state,
        ServerState::Transmitting
    );
    assert!((1..30).contains(&simulation.model.unsettled("a")));
    simulation.worker();
    let ended = simulation.wait_ended("a").await;
    assert_eq!(
        (ended.server_state, ended.counts.checked),
        (ServerState::Finished, 3_000)
    );
}

#[tokio::test(start_paused = true)]
async fn job_with_an_invalid_or_impossible_status_is_suspended() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 3_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    for text in ["no json", "{\"jobId\": \"a\", \"assetCount\": -1}"] {
        let put = simulation.model.put(Bucket::Jobs, "a", text.into());
        put.await.unwrap();
        let suspended = simulation
            .wait("a", |job| {
                job.revalidator_state == RevalidatorState::Suspended
            })
            .await;
        assert_eq!(
            suspended.reason.as_deref(),
            Some("another program wrote an invalid status")
        );
        let resume = |job: &mut JobStatus| jobs::resume(job, clock());
        change_job(&simulation.model, "a", resume).await.unwrap();
    }
    // States that the maker did not write.
    let changes: [fn(&mut JobStatus); 6] = [
        |job| job.server_state = ServerState::Transmitting,
        |job| job.server_state = ServerState::Finished,
        |job| job.server_state = ServerState::Other("Sleeping".to_owned()),
        |job| job.revalidator_state = RevalidatorState::Finished,
        |job| job.batch_count = 7,
        |job| job.retry_batch_count = Some(0),
    ];
    for change in changes {
        let changed = change_job(&simulation.model, "a", change);
        changed.await.unwrap();
        let suspended = simulation
            .wait("a", |job| {
                job.revalidator_state == RevalidatorState::Suspended
            })
            .await;
        assert_eq!(
            suspended.reason.as_deref(),
            Some("another program wrote an impossible state")
        );
        let resume = |job: &mut JobStatus| jobs::resume(job, clock());
        change_job(&simulation.model, "a", resume).await.unwrap();
    }
    // Not a job: ignored.
    for key in ["stranger", "a.b"] {
        let text = format!("{{\"jobId\": \"{key}\", \"assetCount\": -1}}");
        simulation
            .model
            .put(Bucket::Jobs, key, text.into())
            .await
            .unwrap();
    }
    let ended = simulation.wait_ended("a").await;
    assert_eq!(
        (ended.server_state, ended.counts.checked),
        (ServerState::Finished, 3_000)
    );
    assert!(simulation.mirror.jobs().len() == 1 && simulation.metrics.invalid_messages.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn removal_of_all_objects_is_subject_to_max_removals_and_to_a_confirmation() {
    let apps = APPS.replace("partial", "all");
    for (confirm, deleted, requests) in [
        (None, 50, 250),
        (Some("two"), 50, 250),
        (Some("one"), 50, 0),
    ] {
        let mut simulation = Simulation::new(&apps, |asset, _| {
            let number: usize = asset.key.rsplit('/').next().unwrap().parse().unwrap();
            (if number % 10 < 3 { 404 } else { 304 }, TIME)
        });
        simulation.maker();
        simulation.worker();
        simulation
            .job("one", "a", 250, |new| {
                new.allow_delete = AllowDelete::All;
                new.confirm = confirm.map(ToOwned::to_owned);
            })
            .await;
        let ended = simulation.wait_ended("a").await;
        assert_eq!(
            (ended.counts.deleted, simulation.requests()),
            (deleted, requests),
            "{confirm:?}"
        );
    }
}

/// Series of a metric: values of its labels, and its value.
fn series(registry: &Registry, name: &str) -> Vec<(Vec<String>, f64)> {
    let families = registry.gather();
    let family = families.iter().filter(|it| it.name() == name);
    let metrics = family.flat_map(|it| it.get_metric());
    let series = metrics.map(|metric| {
        let labels = metric.get_label().iter().map(|it| it.value().to_owned());
        (labels.collect(), metric.get_gauge().get_value())
    });
    series.collect()
}

#[tokio::test(start_paused = true)]
async fn workers_of_all_processes_and_reasons_of_suspended_jobs_are_exported() {
    let mut simulation = Simulation::new(APPS, |_, _| (304, TIME));
    let registry = Registry::new();
    let apps = simulation.apps();
    metrics::register_state(&registry, simulation.mirror.clone(), apps).unwrap();
    simulation.maker();
    simulation.worker();
    simulation.worker();
    simulation.job("one", "a", 1_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 100).await;
    let workers = || {
        let mut series = series(&registry, "revalidator_concurrency");
        series.iter_mut().for_each(|it| drop(it.0.remove(0)));
        series.sort_by(|a, b| a.0.cmp(&b.0));
        series
    };
    let [idle, busy] = &workers()[..] else {
        panic!("{:?}", workers());
    };
    assert_eq!(
        *idle,
        (
            vec![String::new(), String::new(), "available".to_owned()],
            0.0
        )
    );
    assert_eq!(busy.0, ["one", "a", "subscribed"]);
    assert!(busy.1 >= 6.0, "{busy:?}");
    let suspend = |job: &mut JobStatus| {
        jobs::suspend(
            job,
            "objects cannot be stored: disk /x/1 is full",
            None,
            clock(),
        );
    };
    let job = change_job(&simulation.model, "a", suspend).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(workers(), [idle.clone(), idle.clone()]);
    let labels = ["a", "one", "suspended", "objects cannot be stored"];
    let resume_at = job.unwrap().resume_at.unwrap();
    assert_eq!(
        series(&registry, "revalidator_job_resume_unix_seconds"),
        [(
            labels.map(str::to_owned).to_vec(),
            resume_at as f64 / 1000.0
        )]
    );
    simulation.wait_ended("a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let finished = ["a", "one", "finished", ""].map(str::to_owned).to_vec();
    assert_eq!(
        series(&registry, "revalidator_job_resume_unix_seconds"),
        [(finished, 0.0)]
    );
}

#[tokio::test(start_paused = true)]
async fn messages_of_no_job_are_removed_and_counted() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    let model = simulation.model.clone();
    let sent = model.send_batch("stranger", "1", "x".into());
    sent.await.unwrap();
    let sent = model.send_result("other", "2", "x".into());
    sent.await.unwrap();
    // Batches may exist before their job.
    simulation.job("one", "a", 300, |_| ()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((model.unsettled("stranger"), model.unsettled("a")), (0, 3));
    assert!(model.all_results("other").is_empty());
    assert_eq!(simulation.metrics.invalid_messages.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_of_strangers_take_limited_memory() {
    let simulation = Simulation::new(APPS, fresh);
    let bucket = Bucket::Subscriptions;
    for number in 0..20_010 {
        let (key, value) = (format!("worker.{number}"), vec![b'x'; 2_000]);
        let put = simulation.model.put(bucket, &key, value.into());
        put.await.unwrap();
    }
    let long = format!("worker.{}", "x".repeat(250));
    let put = simulation.model.put(bucket, &long, "{}".into());
    put.await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(simulation.mirror.lost().len(), 20_000);
    assert_eq!(simulation.metrics.invalid_messages.get(), 11);
}

/// What the broker loses.
type Loss = fn(&Simulation);

const LOSSES: [(&str, Loss); 8] = [
    ("consumer", |it| it.model.lose_consumer("a", false)),
    ("batches", |it| it.model.lose_consumer("a", true)),
    ("results", |it| it.model.lose_results("a")),
    ("jobs", |it| it.model.lose_keys(Bucket::Jobs, true)),
    ("leases", |it| {
        it.model.lose_keys(Bucket::Subscriptions, true)
    }),
    ("bucket of jobs", |it| {
        it.model.lose_keys(Bucket::Jobs, false)
    }),
    ("bucket of leases", |it| {
        it.model.lose_keys(Bucket::Subscriptions, false)
    }),
    ("everything", |it| {
        it.model.lose_consumer("a", true);
        it.model.lose_results("a");
        for bucket in [Bucket::Jobs, Bucket::Subscriptions, Bucket::Matches] {
            it.model.lose_keys(bucket, false);
        }
    }),
];

#[tokio::test(start_paused = true)]
async fn job_whose_data_the_broker_loses_is_completed() {
    for (lost, lose) in LOSSES {
        // While the job is transmitted, or later.
        let is_early = lost == "batches" || lost == "everything";
        for (transmitted, later) in [(21_000, 700), (1_500, 1_400)] {
            if transmitted > 20_000 && !is_early {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            write_assets(&dir, transmitted);
            let mut simulation = Simulation::new(&apps(&dir), fresh);
            simulation.maker();
            simulation.maker();
            simulation.worker();
            simulation
                .list_job("one", "a", |job| job.revalidators_needed = 2)
                .await;
            for count in [500, later] {
                simulation
                    .wait("a", |job| job.counts.checked >= count)
                    .await;
                lose(&simulation);
                simulation.worker();
            }
            let lost_at = clock();
            let ended = simulation.wait_ended("a").await;
            assert_eq!(
                (&ended.server_state, ended.counts.checked),
                (&ServerState::Finished, transmitted as u64),
                "{lost}: {ended:?}"
            );
            let time = transmitted as u64 * 30 + 3 * MINUTE;
            assert!(ended.ended_at.unwrap() - lost_at < time, "{lost}");
            // Nothing is left over that stops the next job.
            simulation.list_job("one", "b", |_| ()).await;
            let ended = simulation.wait_ended("b").await;
            assert_eq!(ended.server_state, ServerState::Finished, "{lost}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn job_whose_only_copy_is_lost_ends_with_the_reason() {
    for (lost, lose) in LOSSES {
        let mut simulation = Simulation::new(APPS, fresh);
        simulation.maker();
        simulation.job("one", "a", 300, |job| job.push = true).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        lose(&simulation);
        simulation.worker();
        let ended = simulation.wait_ended("a").await;
        let has_batches = !matches!(lost, "batches" | "everything");
        assert_eq!(ended.server_state == ServerState::Finished, has_batches);
        if !has_batches {
            let reason = ended.reason.unwrap();
            assert!(reason.contains("NATS has lost batches"), "{reason}");
            assert!(ended.ended_at.unwrap() < START + MINUTE, "{lost}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn job_is_begun_again_a_limited_number_of_times() {
    let dir = tempfile::tempdir().unwrap();
    write_assets(&dir, 2_500);
    let mut simulation = Simulation::new(&apps(&dir), fresh);
    simulation.maker();
    simulation.list_job("one", "a", |_| ()).await;
    for restarts in 1..=3 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        simulation.model.lose_consumer("a", true);
        let again = simulation.wait("a", |job| job.restarts == restarts).await;
        assert!(again.is_open());
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    simulation.model.lose_consumer("a", true);
    assert!(simulation.wait_ended("a").await.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn job_of_a_foreign_maker_that_died_stops_no_other_job() {
    let mut simulation = Simulation::new(APPS, fresh);
    let registry = Registry::new();
    let shown = simulation.mirror.clone();
    metrics::register_state(&registry, shown, simulation.apps()).unwrap();
    simulation.maker();
    // It has sent two batches, and is still transmitting.
    let foreign = |job: &mut JobStatus| {
        (job.foreign, job.server_state) = (true, ServerState::Transmitting);
    };
    simulation.job("one", "foreign", 200, foreign).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    simulation.job("one", "b", 100, |_| ()).await;
    // A batch that is not processed yet is a message.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(simulation.status("foreign").await.quiet_since, None);
    let worker = simulation.worker();
    let ended = simulation.wait_ended("b").await;
    assert_eq!(simulation.results("foreign").len(), 2);
    let delay = ended.ended_at.unwrap() - START;
    assert!((3600 * 1000 + MINUTE..3600 * 1000 + 3 * MINUTE).contains(&delay));
    let quiet = simulation.status("foreign").await;
    assert_eq!(quiet.reason.as_deref(), Some(jobs::QUIET));
    // Jobs that wait behind it are counted.
    worker.abort();
    simulation.job("one", "c", 100, |_| ()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let waiting = series(&registry, "revalidator_jobs");
    let waiting = waiting.iter().find(|it| it.0 == ["waiting"]);
    assert_eq!(waiting.map(|it| it.1), Some(2.0));
    // The maker continues.
    let batch = simulation.model.send_batch("foreign", "3", "{}".into());
    batch.await.unwrap();
    let again = simulation
        .wait("foreign", |job| job.quiet_since.is_none())
        .await;
    assert_eq!(again.reason, None);
    cancel(&simulation, "foreign").await;
}

/// A worker suspends a job while its own copy is old, and the lease that it releases wakes it at once.
#[tokio::test(start_paused = true)]
async fn worker_with_an_old_copy_of_a_job_makes_pauses() {
    let mut simulation = Simulation::new(APPS, |_, _| (503, TIME));
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 3_000, |_| ()).await;
    let is_suspended = |job: &JobStatus| job.revalidator_state == RevalidatorState::Suspended;
    while !is_suspended(&simulation.status("a").await) {
        simulation.model.end_watches(Bucket::Jobs);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(is_suspended(&simulation.status("a").await));
}
