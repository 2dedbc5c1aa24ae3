//! Tests of an unavailable NATS server, a stream with other settings, invalid messages, and a shutdown.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use async_nats::jetstream::{self, stream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

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
    let context = jetstream::new(async_nats::connect(cluster.nats.uri()).await?);
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
    let context = jetstream::new(async_nats::connect(cluster.nats.uri()).await?);
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
    let context = jetstream::new(async_nats::connect(cluster.nats.uri()).await?);
    let subscriptions = context.get_key_value("revalidator_subscriptions").await?;
    for key in [format!("slot.{id}.0"), format!("maker.{id}")] {
        assert_eq!(subscriptions.get(&key).await?, None, "{key}");
    }
    let two = cluster.revalidator(&[]).await?;
    let job = two.wait_finished(&id).await?;
    assert_eq!(job["counts"]["checked"], 24);
    Ok(())
}

async fn context(cluster: &Cluster) -> Result<jetstream::Context> {
    let client = async_nats::connect(cluster.nats.uri()).await?;
    Ok(jetstream::new(client))
}

/// The broker loses something while a job is processed, and again while there is none. Both that job and the next one finish.
async fn check_loss(
    what: &str,
    lose: impl AsyncFn(&mut Cluster, &str) -> Result<()>,
) -> Result<()> {
    let origin = Origin::start(Duration::from_millis(20), |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 3_000, |_| String::new())?;
    let one = cluster.revalidator(&["--workers=2"]).await?;
    let job = "{\"app\": \"shop\", \"revalidatorsNeeded\": 2}";
    let first = one.create(job).await?;
    let is_active = |job: &Value| job["counts"]["checked"].as_u64() > Some(500);
    one.wait_job(&first, is_active).await?;
    lose(&mut cluster, &first).await?;
    let first = one.wait_finished(&first).await?;
    lose(&mut cluster, first["jobId"].as_str().unwrap_or_default()).await?;
    // Requests can fail until the loss is noticed.
    let deadline = Instant::now() + TIMEOUT;
    let second = loop {
        match one.create(job).await {
            Ok(id) => break id,
            Err(error) => ensure!(Instant::now() < deadline, "{what}: {error}"),
        }
    };
    let second = one.wait_finished(&second).await?;
    for job in [first, second] {
        assert_eq!(job["counts"]["fresh"], 3_000, "{what}: {job}");
    }
    Ok(())
}

#[tokio::test]
async fn jobs_finish_after_the_broker_has_lost_consumers_or_messages() -> Result<()> {
    check_loss("consumer", async |cluster, id| {
        let context = context(cluster).await?;
        let work = context.get_stream("REVALIDATOR_WORK").await?;
        drop(work.delete_consumer(id).await);
        Ok(())
    })
    .await?;
    for stream in [
        "REVALIDATOR_WORK",
        "REVALIDATOR_RESULTS",
        "KV_revalidator_jobs",
    ] {
        check_loss(stream, async |cluster, _| {
            let stream = context(cluster).await?.get_stream(stream).await?;
            stream.purge().await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn jobs_finish_after_the_broker_has_lost_a_stream_or_a_bucket() -> Result<()> {
    for stream in [
        "REVALIDATOR_WORK",
        "REVALIDATOR_RESULTS",
        "KV_revalidator_jobs",
        "KV_revalidator_subscriptions",
    ] {
        check_loss(stream, async |cluster, _| {
            context(cluster).await?.delete_stream(stream).await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn jobs_finish_after_the_broker_has_lost_its_store() -> Result<()> {
    check_loss("store", async |cluster, _| {
        cluster.nats.process.kill()?;
        cluster.nats.process.wait(TIMEOUT).await?;
        fs::remove_dir_all(cluster.path("jetstream"))?;
        cluster.nats.restart().await
    })
    .await
}

#[tokio::test]
async fn missing_stream_is_an_error_until_it_can_be_created() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 10, |_| String::new())?;
    let mut one = cluster.revalidator(&[]).await?;
    let context = context(&cluster).await?;
    context.delete_stream("REVALIDATOR_WORK").await?;
    // Another stream has its subjects.
    let other = stream::Config {
        name: "other".to_owned(),
        subjects: vec!["revalidator.work.*".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(other).await?;
    one.wait_readiness("cannot open stream REVALIDATOR_WORK")
        .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let log = one.process.last_lines(100);
    assert_eq!(log.matches("NATS lost data").count(), 1, "{log}");
    context.delete_stream("other").await?;
    one.process.wait_ready(&one.admin, TIMEOUT).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_finished(&id).await?;
    Ok(())
}

#[tokio::test]
async fn larger_streams_are_accepted_and_kept() -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start().await?;
    cluster.write_apps(&origin, "")?;
    cluster.revalidator(&[]).await?;
    let context = context(&cluster).await?;
    let streams = [("REVALIDATOR_WORK", 2 << 30), ("KV_revalidator_jobs", -1)];
    for (stream, max_bytes) in streams {
        let config = context
            .get_stream(stream)
            .await?
            .cached_info()
            .config
            .clone();
        let config = stream::Config {
            max_bytes,
            ..config
        };
        context.update_stream(config).await?;
    }
    cluster.revalidator(&[]).await?;
    for (stream, max_bytes) in streams {
        let found = context.get_stream(stream).await?;
        assert_eq!(found.cached_info().config.max_bytes, max_bytes);
    }
    Ok(())
}

/// A job finishes with a server that has these settings. `flags` returns the URL and further flags, and without the credentials,
/// the server is not available.
async fn check_credentials(
    dir: TempDir,
    settings: &str,
    credentials: &str,
    flags: &[&str],
) -> Result<()> {
    let origin = Origin::start(Duration::ZERO, |_, _| answer(304, "")).await?;
    let mut cluster = Cluster::start_with(dir, settings).await?;
    cluster.write_apps(&origin, "")?;
    cluster.write_assets(&origin, 10, |_| String::new())?;
    let url = cluster.nats.uri();
    let without = cluster.spawn(&[])?;
    without.wait_readiness("connecting to NATS").await?;
    let url = format!(
        "--nats={}",
        url.replace("://", &format!("://{credentials}"))
    );
    let one = cluster.revalidator(&[&[&*url], flags].concat()).await?;
    let id = one.create("{\"app\": \"shop\"}").await?;
    one.wait_finished(&id).await?;
    for log in [without, one] {
        assert!(!log.process.last_lines(100).contains("s3cret"));
    }
    Ok(())
}

#[tokio::test]
async fn server_authenticates_by_user_and_password_or_by_token() -> Result<()> {
    let user = "authorization { user: \"a@b\", password: \"s3cret/:\" }";
    check_credentials(TempDir::new()?, user, "a%40b:s3cret%2F%3A@", &[]).await?;
    let token = "authorization { token: \"s3cret-token\" }";
    check_credentials(TempDir::new()?, token, "s3cret-token@", &[]).await
}

#[tokio::test]
async fn server_authenticates_by_client_certificate() -> Result<()> {
    let dir = TempDir::new()?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let file = |name: &str| dir.path().join(name).display().to_string();
    fs::write(file("ca.pem"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        fs::write(
            file(&format!("{name}.pem")),
            params.signed_by(&key, &issuer)?.pem(),
        )?;
        fs::write(file(&format!("{name}.key")), key.serialize_pem())?;
    }
    let settings = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    let flags = [
        format!("--nats-tls-ca={}", file("ca.pem")),
        format!("--nats-tls-cert={}", file("client.pem")),
        format!("--nats-tls-key={}", file("client.key")),
    ];
    let flags: Vec<_> = flags.iter().map(|it| &**it).collect();
    check_credentials(dir, &settings, "", &flags).await
}
