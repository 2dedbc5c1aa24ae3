//! Two limiters that share their limits by way of a real server, which is paused, killed and comes back. Without a server program, nothing
//! is tested.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Result, ensure};
use launcher::http::{HttpClient, Response};
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    harness::{Limiter, body, nanos},
    server::Server,
};

const QUOTA: u64 = 200;

/// A server that runs is waited for, however busy the machine is.
const PATIENT: &str = "timeout = '60s'";

/// Limits that a server shares; with more said of that.
fn file(server: &Server, more: &str) -> String {
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

/// A limiter of which the server decides.
async fn start(limits: &str) -> Result<Limiter> {
    let limiter = Limiter::start(limits, &[]).await?;
    until_server(&limiter, 1).await?;
    Ok(limiter)
}

/// Waits until the server is there, or is not.
async fn until_server(limiter: &Limiter, is_there: u64) -> Result<()> {
    loop {
        let samples = launcher::admin::metrics(&limiter.admin).await?;
        if samples.count("limiter_sharing_server_up", &[]) == is_there {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// How many calls were decided on by whom.
async fn decided(limiter: &Limiter, by: &str) -> Result<u64> {
    let samples = launcher::admin::metrics(&limiter.admin).await?;
    Ok(samples.count("limiter_shared_decisions_total", &[("by", by)]))
}

async fn reserve(client: &mut HttpClient, path: &str, n: u64, max_wait: u64) -> Result<Response> {
    let asked = json!({ "n": n, "max_wait": max_wait }).to_string();
    let path = format!("/v1/limits/{path}/reserve");
    client.post(&path, &[], &asked).await
}

/// Takes one after the other from a quota, so many times; how many requests it got. Each call is answered.
async fn take(limiter: &Limiter, times: u64, n: u64) -> Result<u64> {
    let mut client = limiter.client().await?;
    let mut taken = 0;
    for _ in 0..times {
        let answer = reserve(&mut client, "quota/k", n, 0).await?;
        ensure!(matches!(answer.status, 200 | 429), "{}", answer.body);
        taken += if answer.status == 200 { n } else { 0 };
    }
    Ok(taken)
}

fn left(answer: &Response) -> u64 {
    let field = answer.head.split("x-ratelimit-remaining: ").nth(1);
    let field = field.and_then(|it| it.split('\r').next());
    field.and_then(|it| it.parse().ok()).expect("a field")
}

#[tokio::test]
async fn two_limiters_share_one_quota_over_a_restart_and_a_kill() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let mut limiters = [
        start(&file(&server, PATIENT)).await?,
        start(&file(&server, PATIENT)).await?,
    ];
    let mut told = JoinSet::new();
    for limiter in &limiters {
        let mut client = limiter.client().await?;
        told.spawn(async move {
            for _ in 0..30 {
                let made = client
                    .post("/v1/limits/quota/k/increment", &[], "{}")
                    .await?;
                assert_eq!(body(&made, 200)["counted"], true);
            }
            anyhow::Ok(())
        });
    }
    let (one, other) = tokio::try_join!(take(&limiters[0], 15, 2), take(&limiters[1], 15, 2))?;
    while let Some(told) = told.join_next().await {
        told??;
    }
    assert_eq!(one + other, 60);
    // A kill forgets nothing and charges nothing: here are 80 left for both.
    for limiter in &mut limiters {
        let mut client = limiter.client().await?;
        let path = "/v1/limits/quota/k/delay";
        assert_eq!(left(&client.get(path, &[]).await?), 80);
        limiter.process.kill()?;
        limiter.restart().await?;
        until_server(limiter, 1).await?;
        let mut client = limiter.client().await?;
        assert_eq!(left(&client.get(path, &[]).await?), 80);
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
        assert_eq!(left(&next), 0);
        let next = body(&next, 200);
        assert_eq!(next["binding"], "quota/r");
        ensure!(nanos(&next["at"]) > nanos(&next["now"]), "{next}");
        // What was made before a report came is the server's time too.
        let early = json!({ "at": "2100-01-01T00:00:00Z" }).to_string();
        let early = client
            .post("/v1/limits/quota/k/increment", &[], &early)
            .await?;
        body(&early, 422);
        // The survey is of a moment ago.
        limiter
            .wait_said("counter \\\"k\\\" of quota has used 100 %")
            .await?;
        assert_eq!(
            decided(limiter, "part").await? + decided(limiter, "nobody").await?,
            0
        );
        limiter.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn clients_of_two_limiters_never_get_one_slot_and_wait_for_their_own() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let limiters = [
        start(&file(&server, PATIENT)).await?,
        start(&file(&server, PATIENT)).await?,
    ];
    // Not more than the 256 slots to come that the server remembers of `whole`, which calls of a fast machine would use up.
    let mut pending = JoinSet::new();
    for limiter in limiters.iter().cycle().take(8) {
        let mut client = limiter.client().await?;
        pending.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..30 {
                let answer = reserve(&mut client, "slots/k", 1, 30).await?;
                mine.push(nanos(&body(&answer, 200)["at"]));
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
    let too_near = slots.windows(2).find(|two| two[1] - two[0] < 1_000_000);
    ensure!(too_near.is_none(), "{too_near:?}");

    // What waits under a limit of its own leaves the limit of every call to others, but for some microseconds around a slot.
    let mut client = limiters[0].client().await?;
    body(&reserve(&mut client, "slow/k", 1, 1).await?, 200);
    let waits = body(&reserve(&mut client, "slow/k", 1, 30).await?, 200);
    ensure!(waits["wait"].as_f64() > Some(20.0), "{waits}");
    let mut client = limiters[1].client().await?;
    body(&reserve(&mut client, "slots/other", 1, 1).await?, 200);

    // An answer that is held comes at its slot, which the server's clock has passed.
    let held = json!({ "wait": true, "n": 1 }).to_string();
    reserve(&mut client, "slots/other", 1, 30).await?;
    let held = client
        .post("/v1/limits/slots/other/reserve", &[], &held)
        .await?;
    let held = body(&held, 200);
    ensure!(nanos(&held["now"]) >= nanos(&held["at"]), "{held}");

    // What a partner says is learned by the limiter that hears it.
    let said = json!({ "status": 429, "retry_after": "3000" }).to_string();
    let learned = client
        .post("/v1/limits/slots/l/feedback", &[], &said)
        .await?;
    let learned = body(&learned, 200);
    assert_eq!(
        (&learned["learned"], &learned["binding"]),
        (&json!(true), &json!("learned"))
    );
    body(&reserve(&mut client, "slots/l", 1, 30).await?, 429);
    let mut elsewhere = limiters[0].client().await?;
    body(&reserve(&mut elsewhere, "slots/l", 1, 1).await?, 200);
    Ok(())
}

#[tokio::test]
async fn without_the_server_each_goes_by_its_part_and_together_by_no_more() -> Result<()> {
    let Some(mut server) = Server::start().await else {
        return Ok(());
    };
    let limits = file(&server, "members_max = 2\ntimeout = '500ms'");
    let limiters = [start(&limits).await?, start(&limits).await?];
    let both = |times, n| {
        let [one, other] = &limiters;
        async move {
            let (one, other) = tokio::try_join!(take(one, times, n), take(other, times, n))?;
            anyhow::Ok(one + other)
        }
    };
    let mut taken = both(20, 1).await?;
    assert_eq!(taken, 40);
    // While it is paused all are answered, and by whom does not matter to what they get.
    let (more, ()) = tokio::join!(both(150, 1), server.pause(Duration::from_secs(4)));
    taken += more?;
    ensure!(decided(&limiters[0], "part").await? > 0);
    // It was not there for each for some of these calls: parts come on top of what the server counts.
    ensure!(taken <= 2 * QUOTA, "{taken}");
    for limiter in &limiters {
        until_server(limiter, 1).await?;
    }
    taken += both(150, 1).await?;
    ensure!((QUOTA..=2 * QUOTA).contains(&taken), "{taken}");
    server.kill();
    for limiter in &limiters {
        let before = decided(limiter, "part").await?;
        while decided(limiter, "part").await? == before {
            take(limiter, 1, 1).await?;
        }
        until_server(limiter, 0).await?;
        let status = launcher::admin::get(&limiter.admin, "/readyz").await?;
        assert_eq!(status.status, 200);
        ensure!(status.body.contains("by a part of 1/2"), "{}", status.body);
        // For more than its part, nobody knows.
        let mut client = limiter.client().await?;
        let many = reserve(&mut client, "quota/other", QUOTA / 2 + 1, 0).await?;
        let many = body(&many, 503);
        assert_eq!(many["type"], "/v1/problems/sharing-server-unavailable");
    }
    taken += both(150, 1).await?;
    ensure!(taken <= 2 * QUOTA, "{taken}");
    // It comes back empty, as servers do that keep nothing: the quota is whole again, and no more than that.
    server.restart().await;
    for limiter in &limiters {
        until_server(limiter, 1).await?;
    }
    let again = both(150, 1).await?;
    ensure!((QUOTA / 2..=2 * QUOTA).contains(&again), "{again}");
    Ok(())
}

#[tokio::test]
async fn without_the_server_and_without_parts_nothing_goes() -> Result<()> {
    let Some(mut server) = Server::start().await else {
        return Ok(());
    };
    let limiter = start(&file(&server, PATIENT)).await?;
    let mut client = limiter.client().await?;
    body(&reserve(&mut client, "quota/k", 1, 0).await?, 200);
    server.kill();
    for (call, asked) in [
        ("reserve", json!({})),
        ("increment", json!({})),
        ("feedback", json!({ "status": 200 })),
    ] {
        let path = format!("/v1/limits/quota/k/{call}");
        let lost = client.post(&path, &[], &asked.to_string()).await?;
        assert_eq!(
            body(&lost, 503)["type"],
            "/v1/problems/sharing-server-unavailable"
        );
        ensure!(lost.head.contains("\r\nretry-after: "), "{}", lost.head);
    }
    let lost = client.get("/v1/limits/quota/k/delay", &[]).await?;
    body(&lost, 503);
    until_server(&limiter, 0).await?;
    let status = launcher::admin::get(&limiter.admin, "/readyz").await?;
    assert_eq!(status.status, 503);
    ensure!(status.body.contains("nothing goes"), "{}", status.body);
    assert_eq!(decided(&limiter, "nobody").await?, 4);
    server.restart().await;
    until_server(&limiter, 1).await?;
    body(&reserve(&mut client, "quota/k", 1, 0).await?, 200);
    Ok(())
}

/// Has the file of a limiter say this, and waits until that is in force.
async fn change(limiter: &Limiter, limits: &str) -> Result<()> {
    let before = limiter.metric("limiter_limits_version").await?;
    fs::write(limiter.file("limits.toml"), limits)?;
    limiter
        .wait_metric("limiter_limits_version", before + 1)
        .await
}

#[tokio::test]
async fn limits_change_while_it_runs_and_what_a_server_cannot_decide_is_refused() -> Result<()> {
    let Some(server) = Server::start().await else {
        return Ok(());
    };
    let limits = file(&server, PATIENT);
    let limiters = [start(&limits).await?, start(&limits).await?];
    let mut clients = [limiters[0].client().await?, limiters[1].client().await?];
    assert_eq!(
        left(&reserve(&mut clients[0], "quota/k", 50, 0).await?),
        150
    );
    // Of one limiter alone: the others go by their own file.
    let quota = format!("rate = '{QUOTA}/30days'");
    let larger = limits.replace(&quota, "rate = '300/30days'");
    change(&limiters[0], &larger).await?;
    assert_eq!(
        left(&reserve(&mut clients[0], "quota/k", 50, 0).await?),
        200
    );
    assert_eq!(left(&reserve(&mut clients[1], "quota/k", 50, 0).await?), 50);
    // By another algorithm, what was used is used.
    let window = format!("{quota}, algorithm = 'fixed_window'");
    let bucket = limits.replace(&window, "rate = '1/day', burst = 151");
    change(&limiters[0], &bucket).await?;
    assert_eq!(left(&reserve(&mut clients[0], "quota/k", 1, 0).await?), 0);

    let with_log = format!(
        "{limits}\n[limits.new]\nrules = [{{ id = 'r', rate = '10/h', algorithm = 'sliding_log' }}]"
    );
    let refused = Limiter::start(&with_log, &[]).await.err();
    let refused = refused.map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        refused.contains("a sliding_log cannot be exact"),
        "{refused}"
    );
    for (text, why) in [
        (with_log, "a sliding_log cannot be exact"),
        (limits.replace("'exact'", "'lease'"), "restart the limiter"),
    ] {
        fs::write(limiters[1].file("limits.toml"), text)?;
        limiters[1].wait_said(why).await?;
    }
    Ok(())
}
