//! Tests with a failing origin, and with an unavailable limiter.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Result;
use http::{HeaderMap, HeaderValue, header};
use rustix::process::Signal;
use testkit::{limiter::Limiter, programs::find};
use tokio::time::sleep;

use super::{
    harness::{Cluster, Origin, Revalidator, TIMEOUT, answer},
    number,
};

#[tokio::test]
async fn failing_origin_suspends_the_job_until_a_resume() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |path, _| {
        answer(if number(path) < 50 { 500 } else { 304 }, "")
    })
    .await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 100, |_| String::new())?;
    let one = cluster.revalidator(&[]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    let job = one
        .wait_job(&id, |job| job["revalidatorState"] == "Suspended")
        .await?;
    assert_eq!(job["reason"], "at least half of a batch failed (500)");
    assert_eq!(
        job["resumeAt"].as_u64().unwrap() - job["suspendedAt"].as_u64().unwrap(),
        60_000
    );
    assert_eq!(
        one.metric("revalidator_jobs", &[("state", "suspended")])
            .await?,
        1
    );
    let labels = [
        ("job", &*id),
        ("app", "shop"),
        ("state", "suspended"),
        ("reason", "at least half of a batch failed (500)"),
    ];
    let resumes = one.metric("revalidator_job_resume_unix_seconds", &labels);
    assert_eq!(resumes.await?, job["resumeAt"].as_u64().unwrap() / 1000);
    origin.set(|_, _| answer(304, ""));
    let (status, body) = one.post(&format!("/v1/jobs/{id}/resume"), "", "").await?;
    assert_eq!(status, 200, "{body}");
    let job = one.wait_finished(&id).await?;
    assert_eq!(
        (&job["counts"]["fresh"], &job["suspensions"]),
        (&100.into(), &0.into()),
        "{job}"
    );
    Ok(())
}

/// An origin that throttles for an hour, and the settings of its application.
async fn throttling(more: &str) -> Result<(Origin, Cluster, Revalidator)> {
    let origin = Origin::start(Duration::ZERO, |_, _| {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("3600"));
        (429, headers, "".into())
    })
    .await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, more)?;
    cluster.write_assets(&origin, 100, |_| String::new())?;
    let one = cluster.revalidator(&[]).await?;
    Ok((origin, cluster, one))
}

#[tokio::test]
async fn demand_of_a_cancelled_job_is_shown_on_waiting_jobs_and_can_be_lifted() -> Result<()> {
    let (origin, _cluster, one) = throttling("").await?;
    let first = one.create("{\"app\": \"shop\"}").await?;
    let suspended = one
        .wait_job(&first, |job| job["revalidatorState"] == "Suspended")
        .await?;
    let reason = "the origin demands fewer requests (429)";
    assert_eq!(suspended["reason"], reason);
    let until = &suspended["throttledUntil"];
    one.post(&format!("/v1/jobs/{first}/cancel"), "", "")
        .await?;
    let second = one.create("{\"app\": \"shop\"}").await?;
    let waiting = one
        .wait_job(&second, |job| !job["throttledUntil"].is_null())
        .await?;
    assert_eq!(
        (&waiting["throttledUntil"], &waiting["revalidatorState"]),
        (until, &"Waiting".into())
    );
    let reason = waiting["reason"].as_str().unwrap();
    assert_eq!(reason, "the origin demands fewer requests");
    let (_, jobs) = one.get("/v1/jobs").await?;
    assert_eq!(jobs.matches("\"throttledUntil\":null").count(), 0, "{jobs}");
    let labels = [
        ("job", &*second),
        ("app", "shop"),
        ("state", "waiting"),
        ("reason", reason),
    ];
    let resumes = one.metric("revalidator_job_resume_unix_seconds", &labels);
    assert_eq!(resumes.await?, until.as_u64().unwrap() / 1000);
    origin.set(|_, _| answer(304, ""));
    let (status, body) = one
        .post(&format!("/v1/jobs/{second}/resume"), "", "")
        .await?;
    assert_eq!(status, 200, "{body}");
    let job = one.wait_finished(&second).await?;
    assert_eq!(job["counts"]["fresh"], 100);
    let (status, _) = one
        .post(&format!("/v1/jobs/{second}/resume"), "", "")
        .await?;
    assert_eq!(status, 409);
    Ok(())
}

#[tokio::test]
async fn demand_of_an_origin_is_limited_by_a_setting() -> Result<()> {
    let (origin, _cluster, one) = throttling("retry_after_max = \"1s\"").await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    let suspended = one
        .wait_job(&id, |job| !job["throttledUntil"].is_null())
        .await?;
    let time = |field: &str| suspended[field].as_u64().unwrap();
    assert!(
        time("throttledUntil") <= time("createdAt") + 60_000,
        "{suspended}"
    );
    origin.set(|_, _| answer(304, ""));
    one.wait_finished(&id).await?;
    Ok(())
}

/// Requests per second that the limiter permits.
const RATE: u32 = 200;

/// Maximum requests that wait for a slot or have one.
const PARALLEL: usize = 6;

#[tokio::test]
async fn a11_no_request_is_sent_while_the_limiter_is_away() -> Result<()> {
    let times = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&times);
    let origin = Origin::start(Duration::ZERO, move |_, _| {
        record.lock().unwrap().push(Instant::now());
        answer(304, "")
    })
    .await?;
    let total = || times.lock().unwrap().len();
    let mut cluster = Cluster::start().await?;
    let settings =
        format!("limit = \"dsp-17/pull\"\nconcurrency = {{ min = {PARALLEL}, max = {PARALLEL} }}");
    cluster.write_apps(&origin, &settings)?;
    cluster.write_assets(&origin, 300, |_| String::new())?;
    let [program] = tokio::task::spawn_blocking(|| find(["limiter"])).await??;
    let limits = format!("[limits.dsp-17]\nrules = [{{ id = 'r', rate = '{RATE}/s' }}]\n");
    let mut starts = vec![(0, Instant::now())];
    let mut limiter = Limiter::start(&program, cluster.dir.path(), &limits, &[]).await?;
    let url = format!("--limiter=http://{}", limiter.address);
    let one = cluster.revalidator(&[&url]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    for signal in [Signal::TERM, Signal::KILL, Signal::STOP] {
        let middle = total() + 50;
        while total() < middle {
            assert!(one.job(&id).await?["endedAt"].is_null());
        }
        limiter.process.signal(signal)?;
        if signal != Signal::STOP {
            limiter.process.wait(TIMEOUT).await?;
        }
        let count_max = total() + PARALLEL;
        if signal != Signal::STOP {
            one.wait_readiness("limited requests wait").await?;
        }
        // Without the limit, many more requests would be sent in this time.
        sleep(Duration::from_millis(200)).await;
        assert!(total() <= count_max, "{signal:?}: {} requests", total());
        starts.push((total(), Instant::now()));
        if signal == Signal::STOP {
            limiter.process.signal(Signal::CONT)?;
        } else {
            limiter.process.restart()?;
        }
    }
    let job = one.wait_finished(&id).await?;
    assert_eq!(
        (&job["counts"]["fresh"], origin.total(), total()),
        (&300.into(), 300, 300)
    );
    // After each start of the limiter, a burst of one request is permitted, and requests with an earlier slot.
    let times = times.lock().unwrap();
    for (first, start) in starts {
        for (count, time) in (1..).zip(&times[first..]) {
            let slots = time.duration_since(start).as_secs_f64() * f64::from(RATE);
            let count_max = slots + 1.0 + PARALLEL as f64;
            assert!(f64::from(count) <= count_max, "{count} > {count_max}");
        }
    }
    Ok(())
}
