//! Failing origins, and an unavailable limiter.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;

use super::{
    harness::{Cluster, Origin, answer},
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
    assert_eq!(job["reason"], "at least half of a batch failed");
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
        ("reason", "at least half of a batch failed"),
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

#[tokio::test]
async fn a11_no_request_is_sent_while_the_limiter_is_away() -> Result<()> {
    let is_away = Arc::new(AtomicBool::new(true));
    let limiter_state = Arc::clone(&is_away);
    let limiter = Origin::start(Duration::ZERO, move |path, _| {
        assert_eq!(path, "/v1/limits/dsp-17/pull/reserve");
        if limiter_state.load(Ordering::Relaxed) {
            answer(500, "")
        } else {
            answer(200, "{\"wait\": 0.0}")
        }
    })
    .await?;
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "limit = \"dsp-17/pull\"")?;
    cluster.write_assets(&origin, 100, |_| String::new())?;
    let one = cluster
        .revalidator(&[&format!("--limiter=http://{}", limiter.address)])
        .await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_readiness("limited requests wait").await?;
    assert_eq!(origin.total(), 0);
    is_away.store(false, Ordering::Relaxed);
    let job = one.wait_finished(&id).await?;
    assert_eq!(
        (&job["counts"]["fresh"], origin.total()),
        (&100.into(), 100)
    );
    assert!(limiter.total() >= 100);
    Ok(())
}
