//! Tests of an unavailable NATS server, a stream with other settings, invalid messages, and a shutdown.

use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream::{self, stream};
use rustix::process::Signal;

use super::harness::{Cluster, Origin, TIMEOUT, answer};

#[tokio::test]
async fn process_waits_for_a_broker_that_is_away() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 10, |_| String::new())?;
    cluster.nats.process.kill()?;
    cluster.nats.process.wait(TIMEOUT).await?;
    let mut one = cluster.spawn(&[])?;
    one.wait_readiness("NATS").await?;
    assert_eq!(one.get("/v1/jobs").await?.0, 503);
    cluster.nats.restart().await?;
    one.process.wait_ready(&one.admin, TIMEOUT).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_finished(&id).await?;
    Ok(())
}

#[tokio::test]
async fn stream_with_other_settings_is_refused() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    let context = jetstream::new(async_nats::connect(cluster.nats.url()).await?);
    let other = stream::Config {
        name: "REVALIDATOR_WORK".to_owned(),
        subjects: vec!["revalidator.work.*".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(other).await?;
    let mut one = cluster.spawn(&[])?;
    assert!(!one.process.wait(TIMEOUT).await?.success());
    let log = one.process.last_lines(20);
    assert!(
        log.contains(
            "REVALIDATOR_WORK exists with other settings: retention is \"limits\", not \"workqueue\""
        ),
        "{log}"
    );
    Ok(())
}

#[tokio::test]
async fn invalid_messages_are_ignored_and_counted() -> Result<()> {
    let origin = Origin::start(Duration::from_millis(20), |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 500, |_| String::new())?;
    let one = cluster.revalidator(&[]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    let context = jetstream::new(async_nats::connect(cluster.nats.url()).await?);
    for payload in [
        "no json",
        "{\"assets\": [], \"jobId\": \"other\", \"batch\": 0}",
    ] {
        context
            .publish(format!("revalidator.work.{id}"), payload.into())
            .await?
            .await?;
        context
            .publish(format!("revalidator.results.{id}"), payload.into())
            .await?
            .await?;
    }
    let jobs = context.get_key_value("revalidator_jobs").await?;
    jobs.put("stranger", "no json".into()).await?;
    let job = one.wait_finished(&id).await?;
    assert_eq!(job["counts"]["checked"], 500);
    assert!(
        one.metric("revalidator_invalid_messages_total", &[])
            .await?
            >= 4
    );
    Ok(())
}

#[tokio::test]
async fn shutdown_gives_back_the_batch_and_frees_the_slot() -> Result<()> {
    let origin = Origin::start(Duration::from_millis(400), |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 24, |_| String::new())?;
    let mut one = cluster.revalidator(&["--drain-timeout=0s"]).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    while origin.total() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    one.process.signal(Signal::TERM)?;
    assert!(
        one.process.wait(TIMEOUT).await?.success(),
        "{}",
        one.process.last_lines(20)
    );
    let context = jetstream::new(async_nats::connect(cluster.nats.url()).await?);
    let subscriptions = context.get_key_value("revalidator_subscriptions").await?;
    for key in [format!("slot.{id}.0"), format!("maker.{id}")] {
        assert_eq!(subscriptions.get(&key).await?, None, "{key}");
    }
    let two = cluster.revalidator(&[]).await?;
    let job = two.wait_finished(&id).await?;
    assert_eq!(job["counts"]["checked"], 24);
    Ok(())
}
