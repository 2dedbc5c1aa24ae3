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
    APPS, fresh,
    harness::{Simulation, clock},
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
async fn removal_of_all_objects_is_subject_to_the_brake_and_to_a_confirmation() {
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
    metrics::register_state(&registry, simulation.mirror.clone()).unwrap();
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
    assert_eq!(series(&registry, "revalidator_job_resume_unix_seconds"), []);
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
