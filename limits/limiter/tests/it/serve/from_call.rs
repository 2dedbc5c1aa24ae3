//! Tests of clients that provide the rule with each call, in `GET delay` before the call and in `POST increment` after it.

use std::fs;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use testkit::http::HttpClient;

use crate::serve::harness::{Limiter, TIMEOUT, body, nanos};

const LIMITS: &str = "
[limits.partner]
from_call = true
[limits.a]
rules = [{ id = 'peak', rate = '1/s' }]
";

/// Seconds that a call with this counter and rule would have to wait.
async fn delay(client: &mut HttpClient, counter: &str, rule: &str) -> Result<u64> {
    let path = format!("/v1/limits/partner/{counter}/delay?{rule}");
    let slot = body(&client.get(&path, &[]).await?, 200);
    Ok((nanos(&slot["at"]) - nanos(&slot["now"])) / 1_000_000_000)
}

async fn increment(client: &mut HttpClient, counter: &str, rule: &str) -> Result<()> {
    let path = format!("/v1/limits/partner/{counter}/increment?{rule}");
    let request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    client.send(request.as_bytes()).await?;
    let result = body(&client.response().await?, 200);
    ensure!(result["counted"] == true, "{result}");
    Ok(())
}

async fn get(client: &mut HttpClient, path: &str, status: u16) -> Result<Value> {
    Ok(body(&client.get(path, &[]).await?, status))
}

#[tokio::test]
async fn counter_keeps_the_rule_of_its_calls_across_a_kill() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let mut client = limiter.client().await?;
    let (day, minute) = ("interval=86400&requests=3", "requests=2&interval=60");
    for _ in 0..3 {
        assert_eq!(delay(&mut client, "one", day).await?, 0);
        increment(&mut client, "one", day).await?;
    }
    ensure!(delay(&mut client, "one", day).await? > 80_000);
    // Another counter has its own rule.
    for _ in 0..2 {
        assert_eq!(delay(&mut client, "two", minute).await?, 0);
        increment(&mut client, "two", minute).await?;
    }
    ensure!((1..=61).contains(&delay(&mut client, "two", minute).await?));
    // A counter keeps its first rule.
    let other = format!("/v1/limits/partner/one/delay?{minute}");
    let problem = get(&mut client, &other, 422).await?;
    assert_eq!(problem["type"], "/v1/problems/invalid-rule");
    assert_eq!(
        problem["detail"],
        "counter partner/one is in use under rule 3/86400s; a different rule is accepted once that usage has expired"
    );
    for (path, status, word) in [
        ("partner/three/delay", 422, "and `requests`"),
        ("a/k/delay?interval=1&requests=1", 422, "omit `interval`"),
        ("partner/three/delay?interval=1", 400, "provided together"),
        (
            "partner/three/delay?interval=0&requests=1",
            400,
            "`interval` is 0: use 1 to 2678400 (seconds)",
        ),
        ("unknown/k/delay?interval=1&requests=1", 404, "unknown"),
        ("partner%201%2F1s/k/delay", 400, "slash"),
    ] {
        let problem = get(&mut client, &format!("/v1/limits/{path}"), status).await?;
        let detail = problem["detail"].as_str().unwrap_or_default();
        ensure!(detail.contains(word), "{path}: {problem}");
    }
    limiter.process.signal(Signal::KILL)?;
    limiter.process.wait(TIMEOUT).await?;
    limiter.restart().await?;
    let mut client = limiter.client().await?;
    ensure!(delay(&mut client, "one", day).await? > 80_000);
    get(&mut client, &other, 422).await?;
    // A change of other limits does not affect it.
    let more = format!("{LIMITS}[limits.b]\nrules = [{{ id = 'r', rate = '1/s' }}]");
    let before = limiter.metric("limiter_limits_version").await?;
    fs::write(limiter.file("limits.toml"), more)?;
    limiter
        .wait_metric("limiter_limits_version", before + 1)
        .await?;
    ensure!(delay(&mut client, "one", day).await? > 80_000);
    limiter.stop().await
}
