//! Tests with a failing origin, and with an unavailable limiter.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Result;
use launcher::{limiter::Limiter, programs::find};
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    harness::{Cluster, Origin, TIMEOUT, answer},
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
