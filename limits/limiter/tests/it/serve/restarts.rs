//! Tests of the state after restarts, and of reloads of the limits file.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;

use crate::serve::harness::{Limiter, TIMEOUT, body, nanos};

const QUOTA: &str = "[limits.a]\nrules = [{ id = 'r', rate = '1000/30days', algorithm = 'fixed_window', aligned = 'first_call' }]";

#[tokio::test]
async fn clean_restart_keeps_the_exact_state() -> Result<()> {
    let mut limiter = Limiter::start(QUOTA, &[]).await?;
    let mut client = limiter.client().await?;
    for _ in 0..25 {
        let response = client.post("/v1/limits/a/k/reserve", &[], "{}").await?;
        body(&response, 200);
    }
    let feedback = "{\"status\": 429, \"retry_after\": \"3000\"}";
    let result = client
        .post("/v1/limits/a/other/feedback", &[], feedback)
        .await?;
    assert_eq!(body(&result, 200)["applied"], true);
    for _ in 0..2 {
        limiter.stop().await?;
        limiter.restart().await?;
        ensure!(limiter.remaining("a", "k").await? == 1_000 - 25);
        let mut client = limiter.client().await?;
        let next = client.get("/v1/limits/a/other/delay", &[]).await?;
        let next = body(&next, 200);
        assert_eq!(next["binding"], "feedback");
        let wait = next["wait"].as_f64();
        ensure!(wait.is_some_and(|it| it > 0.0 && it <= 3_000.0), "{next}");
    }
    Ok(())
}

#[tokio::test]
async fn state_directory_in_use_or_damaged_is_rejected() -> Result<()> {
    let mut limiter = Limiter::start(QUOTA, &[]).await?;
    let state = format!("--state={}", limiter.file("state"));
    let second = Limiter::start(QUOTA, &[&state]).await;
    let error = second
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(error.contains("in use by another limiter"), "{error}");
    limiter.stop().await?;
    let files = fs::read_dir(limiter.file("state"))?.collect::<Result<Vec<_>, _>>()?;
    let mut files = files.iter().map(fs::DirEntry::path);
    let journal = files.find(|path| path.extension().is_some_and(|it| it == "jnl"));
    let journal = journal.context("no journal")?;
    let mut bytes = fs::read(&journal)?;
    bytes[40] ^= 1;
    fs::write(&journal, bytes)?;
    limiter.process.restart()?;
    ensure!(!limiter.process.wait(TIMEOUT).await?.success());
    let log = limiter.process.last_lines(3);
    ensure!(log.contains("the store is damaged"), "{log}");
    Ok(())
}

#[tokio::test]
async fn waiting_reservation_gets_its_response_and_keeps_its_slot_at_shutdown() -> Result<()> {
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1/25s' }]";
    let mut limiter = Limiter::start(limits, &["--drain-timeout=60s"]).await?;
    let mut client = limiter.client().await?;
    body(
        &client.post("/v1/limits/a/k/reserve", &[], "{}").await?,
        200,
    );
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let wait = "{\"wait\": true}";
        client.post("/v1/limits/a/k/reserve", &[], wait).await
    });
    limiter.wait_metric("limiter_waiting", 1).await?;
    limiter.stop().await?;
    let response = waiting.join_next().await.context("no reservation")?;
    let response = body(&response??, 200);
    ensure!(
        nanos(&response["at"]) > nanos(&response["now"]),
        "{response}"
    );
    limiter.restart().await?;
    let next = limiter
        .client()
        .await?
        .get("/v1/limits/a/k/delay", &[])
        .await?;
    let distance = nanos(&body(&next, 200)["at"]) - nanos(&response["at"]);
    ensure!(distance == 25_000_000_000, "{distance}");
    Ok(())
}

#[tokio::test]
async fn changed_limits_file_takes_effect_unless_it_is_invalid() -> Result<()> {
    let mut limiter = Limiter::start(QUOTA, &[]).await?;
    let mut client = limiter.client().await?;
    let file = limiter.file("limits.toml");
    let more = format!("{QUOTA}\n[limits.b]\nrules = [{{ id = 'r', rate = '1/s' }}]");
    for (text, version, refused) in [
        ("[limits.b]\nrules = [{ id = 'r', rate = 'fast' }]", 1, true),
        (&*more, 2, false),
    ] {
        fs::write(&file, text)?;
        let rejected = u64::from(refused);
        limiter
            .wait_metric("limiter_limits_version_refused", rejected)
            .await?;
        limiter
            .wait_metric("limiter_limits_version", version)
            .await?;
        body(&client.get("/v1/limits/a/k/delay", &[]).await?, 200);
        let status = if refused { 404 } else { 200 };
        body(&client.get("/v1/limits/b/k/delay", &[]).await?, status);
    }
    limiter.stop().await
}

#[tokio::test]
async fn limits_file_that_needs_a_restart_is_logged_as_rejected_only() -> Result<()> {
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
    let mut limiter = Limiter::start(limits, &[]).await?;
    let sharing = "[sharing]\nmode = 'exact'\nredis = 'redis://127.0.0.1:1'\ngroup = 'test'\n";
    fs::write(limiter.file("limits.toml"), format!("{sharing}{limits}"))?;
    limiter.wait_readiness("restart the limiter").await?;
    let log = fs::read_to_string(limiter.file("log"))?;
    ensure!(log.contains("failed to reload changed files"), "{log}");
    ensure!(!log.contains("reloaded changed files"), "{log}");
    limiter.stop().await
}
