//! What outlives a limiter, and what becomes of those who wait when it is stopped.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;

use crate::harness::{Limiter, TIMEOUT, body, nanos};

const QUOTA: &str = "[limits.a]\nrules = [{ id = 'r', rate = '1000/30days', algorithm = 'fixed_window', aligned = 'first_call' }]";

#[tokio::test]
async fn orderly_restart_costs_nothing() -> Result<()> {
    let mut limiter = Limiter::start(QUOTA, &[]).await?;
    let mut client = limiter.client().await?;
    for _ in 0..25 {
        let answer = client.post("/v1/limits/a/k/reserve", &[], "{}").await?;
        body(&answer, 200);
    }
    let said = "{\"status\": 429, \"retry_after\": \"3000\"}";
    let learned = client
        .post("/v1/limits/a/other/feedback", &[], said)
        .await?;
    assert_eq!(body(&learned, 200)["learned"], true);
    for _ in 0..2 {
        limiter.stop().await?;
        limiter.restart().await?;
        ensure!(limiter.remaining("a", "k").await? == 1_000 - 25);
        let mut client = limiter.client().await?;
        let next = client.get("/v1/limits/a/other/delay", &[]).await?;
        let next = body(&next, 200);
        assert_eq!(next["binding"], "learned");
        let wait = next["wait"].as_f64();
        ensure!(wait.is_some_and(|it| it > 0.0 && it <= 3_000.0), "{next}");
    }
    Ok(())
}

#[tokio::test]
async fn dir_is_of_one_limiter_and_damage_is_not_passed_over() -> Result<()> {
    let mut limiter = Limiter::start(QUOTA, &[]).await?;
    let state = format!("--state={}", limiter.file("state"));
    let second = Limiter::start(QUOTA, &[&state]).await;
    let why = second
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(why.contains("another limiter uses it"), "{why}");
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
    let why = limiter.process.last_lines(3);
    ensure!(why.contains("the store is damaged"), "{why}");
    Ok(())
}

#[tokio::test]
async fn who_waits_is_answered_when_the_limiter_stops_and_keeps_the_slot() -> Result<()> {
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1/25s' }]";
    let mut limiter = Limiter::start(limits, &["--drain-timeout=60s"]).await?;
    let mut client = limiter.client().await?;
    body(
        &client.post("/v1/limits/a/k/reserve", &[], "{}").await?,
        200,
    );
    let mut held = JoinSet::new();
    held.spawn(async move {
        let wait = "{\"wait\": true}";
        client.post("/v1/limits/a/k/reserve", &[], wait).await
    });
    limiter.wait_metric("limiter_waiting", 1).await?;
    limiter.stop().await?;
    let answered = held.join_next().await.context("nobody waits")?;
    let answer = body(&answered??, 200);
    ensure!(nanos(&answer["at"]) > nanos(&answer["now"]), "{answer}");
    limiter.restart().await?;
    let next = limiter
        .client()
        .await?
        .get("/v1/limits/a/k/delay", &[])
        .await?;
    let behind = nanos(&body(&next, 200)["at"]) - nanos(&answer["at"]);
    ensure!(behind == 25_000_000_000, "{behind}");
    Ok(())
}

#[tokio::test]
async fn file_is_followed_and_a_bad_version_is_refused_whole() -> Result<()> {
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
