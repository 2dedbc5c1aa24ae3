//! Tests of batches that are in progress when the origin throttles, when the job ends or is paused, or when the worker loses its lease.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use revalidator::{
    engine::{Bucket, Engine as _},
    jobs,
    messages::{Asset, JobBatch, JobStatus},
    mirror::change_job,
};
use tokio::{task::AbortHandle, time::sleep};

use super::{
    APPS,
    failures::{MINUTE, TIME},
    fresh,
    harness::{START, Simulation, clock},
};

fn slow(_: &Asset, _: u64) -> (u16, Duration) {
    (304, Duration::from_secs(9))
}

#[tokio::test(start_paused = true)]
async fn a11_throttled_origin_gets_no_request_for_the_demanded_time() {
    // Applies to all workers and jobs of the application, even if processes are killed and replaced.
    let first = START + 10_000;
    let mut simulation = Simulation::new(APPS, move |asset, now| {
        let is_other = asset.key.starts_with('c');
        assert!(
            is_other || now <= first + 200 || now >= first + 30_000,
            "{now}"
        );
        let is_throttled = !is_other && (first..first + 30_000).contains(&now);
        (if is_throttled { 429 } else { 304 }, TIME)
    });
    let killed = [simulation.maker(), simulation.worker()];
    for _ in 0..2 {
        simulation.maker();
        simulation.worker();
    }
    simulation
        .job("one", "a", 3_000, |new| new.revalidators_needed = 2)
        .await;
    simulation.wait("a", |job| job.suspensions > 0).await;
    killed.iter().for_each(AbortHandle::abort);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "b", 50, |new| new.push = true).await;
    simulation.job("two", "c", 50, |_| ()).await;
    let other = simulation.wait_ended("c").await;
    assert!(other.ended_at.unwrap() < first + 20_000);
    for (id, count) in [("b", 50), ("a", 3_000)] {
        let ended = simulation.wait_ended(id).await;
        assert_eq!(
            (ended.counts.fresh, ended.retry_batch_count),
            (count, Some(0))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn job_of_an_origin_with_a_small_quota_progresses() {
    // The quota is 20 requests in 30 seconds; the harness demands pauses of 30 seconds.
    let quota = Arc::new(Mutex::new((0, 0)));
    let throttled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&throttled);
    let mut simulation = Simulation::new(APPS, move |_, now| {
        let mut quota = quota.lock().unwrap();
        let window = (now - START) / 30_000;
        if quota.0 != window {
            *quota = (window, 0);
        }
        quota.1 += 1;
        if quota.1 > 20 {
            count.fetch_add(1, Ordering::Relaxed);
        }
        (if quota.1 > 20 { 429 } else { 304 }, TIME)
    });
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 300, |_| ()).await;
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.counts.fresh, 300);
    assert!(ended.ended_at.unwrap() < START + 15 * MINUTE);
    let throttled = usize::try_from(throttled.load(Ordering::Relaxed)).unwrap();
    assert_eq!(simulation.requests(), 300 + throttled);
}

/// Runs a job on one worker, and changes it in its first batch. Returns the number of requests at the change and a minute later.
async fn interrupt(change: impl Fn(&mut JobStatus)) -> (usize, usize) {
    let mut simulation = Simulation::new(APPS, slow);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 300, |_| ()).await;
    sleep(Duration::from_secs(20)).await;
    change_job(&simulation.model, "a", change).await.unwrap();
    let requests = simulation.requests();
    simulation.job("two", "b", 6, |_| ()).await;
    let other = simulation.wait_ended("b").await;
    assert!(other.ended_at.unwrap() < START + MINUTE);
    (requests, simulation.requests() - 6)
}

#[tokio::test(start_paused = true)]
async fn cancellation_and_pause_end_a_running_batch() {
    let cancelled = interrupt(|job| jobs::cancel(job, "by an operator", clock())).await;
    assert!(
        cancelled.0 > 6 && cancelled.0 == cancelled.1,
        "{cancelled:?}"
    );
    let paused = interrupt(|job| jobs::pause(job, clock())).await;
    assert!(paused.0 > 6 && paused.0 == paused.1, "{paused:?}");
}

#[tokio::test(start_paused = true)]
async fn paused_batch_resumes_where_it_stopped() {
    let mut simulation = Simulation::new(APPS, slow);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 100, |_| ()).await;
    sleep(Duration::from_secs(60)).await;
    for change in [jobs::pause, jobs::resume] {
        let change = |job: &mut JobStatus| change(job, clock());
        change_job(&simulation.model, "a", change).await.unwrap();
        sleep(Duration::from_secs(60)).await;
    }
    let ended = simulation.wait_ended("a").await;
    // Only the requests in progress are repeated.
    assert_eq!(ended.counts.fresh, 100);
    assert!(simulation.requests() <= 106, "{}", simulation.requests());
}

#[tokio::test(start_paused = true)]
async fn checks_of_an_interrupted_batch_do_not_count_for_another_batch_with_its_number() {
    let mut simulation = Simulation::new(APPS, slow);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 100, |_| ()).await;
    sleep(Duration::from_secs(60)).await;
    let pause = |job: &mut JobStatus| jobs::pause(job, clock());
    change_job(&simulation.model, "a", pause).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    // Acts like a maker whose source has changed since the last cursor.
    simulation.model.purge("a", false).await.unwrap();
    let asset = |number| Asset {
        key: format!("a/other-{number}"),
        e_tag: "\"1\"".to_owned(),
        ..Asset::default()
    };
    let batch = JobBatch {
        assets: (0..100).map(asset).collect(),
        job_id: "a".to_owned(),
        batch: 0,
        attempt: 1,
        restarts: 0,
    };
    let payload = serde_json::to_vec(&batch).unwrap();
    let sent = simulation.model.send_batch("a", "other", payload.into());
    sent.await.unwrap();
    let resume = |job: &mut JobStatus| jobs::resume(job, clock());
    change_job(&simulation.model, "a", resume).await.unwrap();
    assert_eq!(simulation.wait_ended("a").await.counts.fresh, 100);
    for asset in &batch.assets {
        assert_eq!(simulation.requests_for(&asset.key), 1, "{}", asset.key);
    }
}

#[tokio::test(start_paused = true)]
async fn worker_without_its_lease_ends_its_batch() {
    let mut simulation = Simulation::new(APPS, slow);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 100, |_| ()).await;
    sleep(Duration::from_secs(20)).await;
    // Another worker has the slot, but sends nothing.
    let taken = simulation.model.put(
        Bucket::Subscriptions,
        "slot.a.0",
        Bytes::from_static(b"other"),
    );
    taken.await.unwrap();
    sleep(Duration::from_secs(11)).await;
    let requests = simulation.requests();
    sleep(Duration::from_secs(17)).await;
    assert_eq!(simulation.requests(), requests);
    // The other worker does not renew the lease, so it expires after 30 seconds.
    let ended = simulation.wait_ended("a").await;
    assert_eq!(ended.counts.fresh, 100);
}

#[tokio::test(start_paused = true)]
async fn single_check_is_served_between_the_batches_of_another_job() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.maker();
    simulation.worker();
    simulation.job("one", "a", 20_000, |_| ()).await;
    simulation.job("two", "b", 20_000, |_| ()).await;
    simulation.wait("a", |job| job.counts.checked >= 500).await;
    let created = clock();
    for app in ["one", "two"] {
        let id = format!("{app}-check");
        simulation.job(app, &id, 20, |new| new.push = true).await;
        let ended = simulation.wait_ended(&id).await;
        assert!(ended.ended_at.unwrap() < created + MINUTE / 2);
    }
    assert!(simulation.status("a").await.counts.checked < 10_000);
}

#[tokio::test(start_paused = true)]
async fn invalid_batches_are_acknowledged_and_counted() {
    let mut simulation = Simulation::new(APPS, fresh);
    simulation.worker();
    simulation
        .job("one", "a", 0, |new| new.foreign = true)
        .await;
    let asset = |bytes: usize| Asset {
        key: "k".repeat(bytes),
        ..Asset::default()
    };
    let batch = |assets: Vec<Asset>, job: &str| {
        let batch = JobBatch {
            assets,
            job_id: job.to_owned(),
            batch: 0,
            attempt: 1,
            restarts: 0,
        };
        serde_json::to_vec(&batch).unwrap()
    };
    let payloads = [
        b"not json".to_vec(),
        batch(vec![asset(1)], "other"),
        batch(vec![asset(1); 101], "a"),
        batch(vec![asset(4200)], "a"),
    ];
    let count = payloads.len() as u64;
    for (index, payload) in payloads.into_iter().enumerate() {
        let id = index.to_string();
        let sent = simulation.model.send_batch("a", &id, payload.into());
        sent.await.unwrap();
    }
    sleep(Duration::from_secs(30)).await;
    assert_eq!(simulation.metrics.invalid_messages.get(), count);
    assert_eq!(
        (simulation.model.unsettled("a"), simulation.requests()),
        (0, 0)
    );
}
