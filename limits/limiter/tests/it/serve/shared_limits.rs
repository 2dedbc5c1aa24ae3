//! Tests of two limiters that share their limits through a real Redis server, which is killed and restarted.
//! Skipped without a server program.

use std::{collections::BTreeSet, fs};

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::http::{HttpClient, Response};
use tokio::task::JoinSet;

use crate::serve::{
    harness::{Limiter, body, nanos},
    server::Server,
};

const QUOTA: u64 = 200;

/// A timeout that does not expire while the server runs, even on a busy machine.
const LONG_TIMEOUT: &str = "timeout = '60s'";

/// A limits file with exact sharing, and more keys of `[sharing]`.
fn limits_file(server: &Server, more: &str) -> String {
    format!(
        "[sharing]\nmode = 'exact'\nredis = 'redis://{}'\ngroup = 'test'\n{more}
        [limits.quota]
        rules = [{{ id = 'r', rate = '{QUOTA}/30days', algorithm = 'fixed_window' }}]
        [limits.slots]
        rules = [{{ id = 'r', rate = '1000/s' }}]
        [limits.slow]
        rules = [{{ id = 'r', rate = '1/25s' }}]
        [limits.whole]
        global = true
        rules = [{{ id = 'all', rate = '100000/s', burst = 1000 }}]",
        server.address()
    )
}

/// Starts a limiter and waits until the server decides.
async fn start(limits: &str) -> Result<Limiter> {
    let limiter = Limiter::start(limits, &[]).await?;
    wait_server(&limiter, 1).await?;
    Ok(limiter)
}

/// Waits until the server is available (1) or not (0) for a limiter.
async fn wait_server(limiter: &Limiter, is_up: u64) -> Result<()> {
    limiter
        .wait_metric("limiter_sharing_server_up", is_up)
        .await
}

/// Number of decisions by a decider.
async fn decided(limiter: &Limiter, by: &str) -> Result<u64> {
    let samples = testkit::admin::metrics(&limiter.admin).await?;
    Ok(samples.count("limiter_shared_decisions_total", &[("decided_by", by)]))
}

async fn reserve(client: &mut HttpClient, path: &str, n: u64, max_wait: u64) -> Result<Response> {
    let parameters = json!({ "n": n, "max_wait": max_wait }).to_string();
    let path = format!("/v1/limits/{path}/reserve");
    client.post(&path, &[], &parameters).await
}

/// Reserves `n` requests of a quota `times` times; returns the number of requests granted.
async fn take(limiter: &Limiter, times: u64, n: u64) -> Result<u64> {
    let mut client = limiter.client().await?;
    let mut taken = 0;
    for _ in 0..times {
        let response = reserve(&mut client, "quota/k", n, 0).await?;
        ensure!(matches!(response.status, 200 | 429), "{}", response.body);
        taken += if response.status == 200 { n } else { 0 };
    }
    Ok(taken)
}

fn remaining(response: &Response) -> u64 {
    let field = response.head.split("x-ratelimit-remaining: ").nth(1);
    let field = field.and_then(|it| it.split('\r').next());
    field.and_then(|it| it.parse().ok()).expect("a field")
}

#[tokio::test]
async fn two_limiters_share_one_quota_across_a_restart_and_a_kill() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let mut limiters = [
        start(&limits_file(&server, LONG_TIMEOUT)).await?,
        start(&limits_file(&server, LONG_TIMEOUT)).await?,
    ];
    let mut reports = JoinSet::new();
    for limiter in &limiters {
        let mut client = limiter.client().await?;
        reports.spawn(async move {
            for _ in 0..30 {
                let counted = client
                    .post("/v1/limits/quota/k/increment", &[], "{}")
                    .await?;
                assert_eq!(body(&counted, 200)["counted"], true);
            }
            anyhow::Ok(())
        });
    }
    let (one, other) = tokio::try_join!(take(&limiters[0], 15, 2), take(&limiters[1], 15, 2))?;
    while let Some(report) = reports.join_next().await {
        report??;
    }
    assert_eq!(one + other, 60);
    // A kill neither loses nor charges usage: both limiters have 80 remaining.
    for limiter in &mut limiters {
        let mut client = limiter.client().await?;
        let path = "/v1/limits/quota/k/delay";
        assert_eq!(remaining(&client.get(path, &[]).await?), 80);
        limiter.process.kill()?;
        limiter.restart().await?;
        wait_server(limiter, 1).await?;
        let mut client = limiter.client().await?;
        assert_eq!(remaining(&client.get(path, &[]).await?), 80);
    }
    let (one, other) = tokio::try_join!(take(&limiters[0], 40, 3), take(&limiters[1], 40, 3))?;
    assert_eq!(one + other, 78);
    assert_eq!(
        take(&limiters[0], 3, 1).await? + take(&limiters[1], 3, 1).await?,
        2
    );
    for limiter in &mut limiters {
        let mut client = limiter.client().await?;
        let next = client.get("/v1/limits/quota/k/delay", &[]).await?;
        assert_eq!(remaining(&next), 0);
        let next = body(&next, 200);
        assert_eq!(next["binding"], "quota/r");
        ensure!(nanos(&next["at"]) > nanos(&next["now"]), "{next}");
        // A reported time is compared with the server's clock.
        let early = json!({ "at": "2100-01-01T00:00:00Z" }).to_string();
        let early = client
            .post("/v1/limits/quota/k/increment", &[], &early)
            .await?;
        body(&early, 422);
        limiter
            .wait_readiness("counter \\\"k\\\" of quota has used 100 %")
            .await?;
        assert_eq!(decided(limiter, "none").await?, 0);
        limiter.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn clients_of_two_limiters_get_distinct_slots_and_wait_for_them() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let limiters = [
        start(&limits_file(&server, LONG_TIMEOUT)).await?,
        start(&limits_file(&server, LONG_TIMEOUT)).await?,
    ];
    // Fewer calls than the 256 future slots of `whole` that the server remembers, which a fast machine would exhaust.
    let mut pending = JoinSet::new();
    for limiter in limiters.iter().cycle().take(8) {
        let mut client = limiter.client().await?;
        pending.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..30 {
                let response = reserve(&mut client, "slots/k", 1, 30).await?;
                mine.push(nanos(&body(&response, 200)["at"]));
            }
            anyhow::Ok(mine)
        });
    }
    let mut taken = BTreeSet::new();
    while let Some(mine) = pending.join_next().await {
        taken.extend(mine??);
    }
    assert_eq!(taken.len(), 240);
    let slots: Vec<u64> = taken.into_iter().collect();
    let too_close = slots.windows(2).find(|two| two[1] - two[0] < 1_000_000);
    ensure!(too_close.is_none(), "{too_close:?}");

    // A call that waits under its own limit does not block the global limit, except for some microseconds around its slot.
    let mut client = limiters[0].client().await?;
    body(&reserve(&mut client, "slow/k", 1, 1).await?, 200);
    let waits = body(&reserve(&mut client, "slow/k", 1, 30).await?, 200);
    ensure!(waits["wait"].as_f64() > Some(20.0), "{waits}");
    let mut client = limiters[1].client().await?;
    body(&reserve(&mut client, "slots/other", 1, 1).await?, 200);

    // A held response is sent once the server's clock has passed the slot.
    let held = json!({ "wait": true, "n": 1 }).to_string();
    reserve(&mut client, "slots/other", 1, 30).await?;
    let held = client
        .post("/v1/limits/slots/other/reserve", &[], &held)
        .await?;
    let held = body(&held, 200);
    ensure!(nanos(&held["now"]) >= nanos(&held["at"]), "{held}");

    // Feedback restricts calls of the limiter that receives it only.
    let feedback = json!({ "status": 429, "retry_after": "3000" }).to_string();
    let result = client
        .post("/v1/limits/slots/l/feedback", &[], &feedback)
        .await?;
    let result = body(&result, 200);
    assert_eq!(
        (&result["applied"], &result["binding"]),
        (&json!(true), &json!("feedback"))
    );
    body(&reserve(&mut client, "slots/l", 1, 30).await?, 429);
    let mut other = limiters[0].client().await?;
    body(&reserve(&mut other, "slots/l", 1, 1).await?, 200);
    Ok(())
}

#[tokio::test]
async fn without_the_server_all_calls_are_refused() -> Result<()> {
    let Some(mut server) = Server::start().await else {
        return Ok(());
    };
    let limiter = start(&limits_file(&server, LONG_TIMEOUT)).await?;
    let mut client = limiter.client().await?;
    body(&reserve(&mut client, "quota/k", 1, 0).await?, 200);
    server.kill();
    for (operation, parameters) in [
        ("reserve", json!({})),
        ("increment", json!({})),
        ("feedback", json!({ "status": 200 })),
    ] {
        let path = format!("/v1/limits/quota/k/{operation}");
        let lost = client.post(&path, &[], &parameters.to_string()).await?;
        assert_eq!(
            body(&lost, 503)["type"],
            "/v1/problems/sharing-server-unavailable"
        );
        ensure!(lost.head.contains("\r\nretry-after: "), "{}", lost.head);
    }
    let lost = client.get("/v1/limits/quota/k/delay", &[]).await?;
    body(&lost, 503);
    wait_server(&limiter, 0).await?;
    let status = testkit::admin::get(&limiter.admin, "/readyz").await?;
    assert_eq!(status.status, 503);
    ensure!(
        status.body.contains("refusing all calls"),
        "{}",
        status.body
    );
    assert_eq!(decided(&limiter, "none").await?, 4);
    server.restart().await;
    wait_server(&limiter, 1).await?;
    body(&reserve(&mut client, "quota/k", 1, 0).await?, 200);
    Ok(())
}

/// Replaces the limits file of a limiter, and waits until it takes effect.
async fn change(limiter: &Limiter, limits: &str) -> Result<()> {
    let before = limiter.metric("limiter_limits_version").await?;
    fs::write(limiter.file("limits.toml"), limits)?;
    limiter
        .wait_metric("limiter_limits_version", before + 1)
        .await
}

#[tokio::test]
async fn limits_change_at_runtime_unless_the_server_cannot_decide_on_them() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let limits = limits_file(&server, LONG_TIMEOUT);
    let limiters = [start(&limits).await?, start(&limits).await?];
    let mut clients = [limiters[0].client().await?, limiters[1].client().await?];
    assert_eq!(
        remaining(&reserve(&mut clients[0], "quota/k", 50, 0).await?),
        150
    );
    // Other limiters use their own limits file.
    let quota = format!("rate = '{QUOTA}/30days'");
    let larger = limits.replace(&quota, "rate = '300/30days'");
    change(&limiters[0], &larger).await?;
    assert_eq!(
        remaining(&reserve(&mut clients[0], "quota/k", 50, 0).await?),
        200
    );
    assert_eq!(
        remaining(&reserve(&mut clients[1], "quota/k", 50, 0).await?),
        50
    );
    // Usage is carried over to another algorithm.
    let window = format!("{quota}, algorithm = 'fixed_window'");
    let bucket = limits.replace(&window, "rate = '1/day', burst = 151");
    change(&limiters[0], &bucket).await?;
    assert_eq!(
        remaining(&reserve(&mut clients[0], "quota/k", 1, 0).await?),
        0
    );

    let with_log = format!(
        "{limits}\n[limits.new]\nrules = [{{ id = 'r', rate = '10/h', algorithm = 'sliding_log' }}]"
    );
    let refused = Limiter::start(&with_log, &[]).await.err();
    let refused = refused.map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        refused.contains("a sliding_log cannot use exact mode"),
        "{refused}"
    );
    for (text, why) in [
        (with_log, "a sliding_log cannot use exact mode"),
        (limits.replace("'exact'", "'lease'"), "restart the limiter"),
    ] {
        fs::write(limiters[1].file("limits.toml"), text)?;
        limiters[1].wait_readiness(why).await?;
    }
    Ok(())
}
