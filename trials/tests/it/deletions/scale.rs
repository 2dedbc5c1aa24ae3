//! One deletion among many users, with a producer whose clock is behind and a node that is frozen.
//!
//! `DELETION_USERS` and `DELETION_FROZEN_SECONDS` override the number of users and the time that the node is frozen,
//! for example with dist builds and `-- --ignored --nocapture one_user_of_millions`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bench::{admin, mongod::Mongod};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::{UNLIMITED, call, delete, millis_ago, post, receipt, start_producer, wait_done};
use crate::{
    clock_jumps::FakeClock,
    harness::{Consumer, Producer, TIMEOUT, embedded, settled, wait_until},
};

const DSPS: u32 = 3;

/// Maximum number of rows of a request.
const ROWS_MAX: u64 = 100_000;

/// The user that is deleted.
const USER: &str = "alice";

/// A node, with access to its stored cookies.
struct Node {
    consumer: Consumer,
    /// The server of a node with MongoDB, read like a bidder does.
    mongodb: Option<Client>,
}

impl Node {
    /// Whether no cookie of the deleted user is visible.
    async fn is_gone(&self) -> Result<bool> {
        let path = format!("/v1/users/{USER}");
        let is_hidden = admin::get(&self.consumer.admin, &path).await?.status == 404;
        let Some(client) = &self.mongodb else {
            return Ok(is_hidden);
        };
        let mut found = 0;
        for dsp in 1..=DSPS {
            let cookies = client.database(&dsp.to_string());
            let cookies = cookies.collection::<Document>("cookies");
            found += cookies.count_documents(doc! { "_id": USER }).await?;
        }
        Ok(is_hidden && found == 0)
    }
}

/// Rows of the deleted user that were accepted before the deletion.
fn old_rows(millis: u128) -> String {
    let row = |dsp| format!("{{\"u\":\"{USER}\",\"d\":{dsp},\"b\":\"old\",\"t\":{millis}}}\n");
    (1..=DSPS).map(row).collect()
}

/// Sends rows until the producer accepts them, which it does not while a node lags.
async fn send(api: &str, rows: &str) -> Result<()> {
    wait_until(TIMEOUT * 10, "rows are accepted", async || {
        let (status, body) = post(api, "/v1/cookies", rows).await?;
        ensure!([200, 429].contains(&status), "{status} {body}");
        Ok(status == 200)
    })
    .await
}

/// Sends a cookie of each of `users` users.
async fn fill(api: &str, users: u64) -> Result<()> {
    let row = |user: u64| {
        let dsp = user % u64::from(DSPS) + 1;
        format!("{{\"u\":\"user-{user:020}\",\"d\":{dsp},\"b\":\"buyer-{user:016}\"}}\n")
    };
    for first in (0..users).step_by(usize::try_from(ROWS_MAX)?) {
        let rows: String = (first..users.min(first + ROWS_MAX)).map(row).collect();
        send(api, &rows).await?;
    }
    Ok(())
}

/// Polls the receipt while older cookies are replayed, until all nodes have confirmed. It must not confirm more nodes than have
/// removed the user.
async fn poll_receipt(
    api: &str,
    replay_api: &str,
    deletion: &Value,
    old: &str,
    nodes: &[Node],
) -> Result<()> {
    let began = Instant::now();
    let mut confirmed = 0;
    while confirmed < nodes.len() as u64 {
        ensure!(
            began.elapsed() < TIMEOUT * 10,
            "confirmed by {confirmed} nodes only"
        );
        // 429 while the frozen node lags.
        post(replay_api, "/v1/cookies", old).await?;
        let status = receipt(api, &deletion["receipt"]).await?;
        confirmed = status["nodes"]["confirmed"].as_u64().context("no number")?;
        let mut gone = 0;
        for node in nodes {
            gone += u64::from(node.is_gone().await?);
        }
        ensure!(confirmed <= gone, "{gone} nodes have removed it: {status}");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Replays older cookies, followed by a new cookie of another user; then checks that only the new one is stored.
async fn check_replay(api: &str, old: &str, nodes: &[Node], marker: &str) -> Result<()> {
    send(api, old).await?;
    let row = format!("{{\"u\":\"{marker}\",\"d\":1,\"b\":\"m\"}}");
    send(api, &row).await?;
    for node in nodes {
        node.consumer
            .wait_lookup(marker, json!({ "1": "m" }))
            .await?;
        ensure!(
            node.is_gone().await?,
            "{}: a cookie of {USER} is stored again",
            node.consumer.admin
        );
    }
    Ok(())
}

async fn delete_one_user(users: u64, frozen: Duration) -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    clock.set("-3")?;
    let (mut first, api) = start_producer(&dir, &UNLIMITED).await?;
    let replay_api = bench::programs::free_address()?.to_string();
    let flags = [&UNLIMITED[..], &["--api", &replay_api]].concat();
    let mut second = clock.producer(&dir, &flags).await?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producers: [&Producer; 2] = [&first, &second];
    let stores = [mongod.uri(), embedded(&dir.path().join("store"))];
    let mut nodes = [
        Node {
            consumer: Consumer::start(&dir, "mongodb", &producers, &stores[0], &[]).await?,
            mongodb: Some(Client::with_uri_str(mongod.uri()).await?),
        },
        Node {
            consumer: Consumer::start(&dir, "embedded", &producers, &stores[1], &[]).await?,
            mongodb: None,
        },
    ];

    let old = old_rows(millis_ago(Duration::from_secs(10)));
    send(&replay_api, &old).await?;
    first.accept(USER, 1, "new").await?;
    fill(&api, users).await?;
    let stored = json!({ "1": "new", "2": "old", "3": "old" });
    for node in &nodes {
        node.consumer.wait_lookup(USER, stored.clone()).await?;
        let sent = users + u64::from(DSPS) + 1;
        wait_until(TIMEOUT * 10, "all cookies are stored", async || {
            Ok(settled(&node.consumer.metrics().await?) == sent)
        })
        .await?;
    }

    nodes[1].consumer.process.signal(Signal::STOP)?;
    let deletion = delete(&api, &format!("/v1/users/{USER}")).await?;
    ensure!(deletion["at_risk"] == false, "{deletion}");
    let began = Instant::now();
    let status = receipt(&api, &deletion["receipt"]).await?;
    ensure!(status["nodes"]["pending"] == 1, "{status}");
    ensure!(
        nodes[0].is_gone().await?,
        "the response came before the removal"
    );
    println!("gone in MongoDB {:?} after the response", began.elapsed());
    while began.elapsed() < frozen {
        // 429 while the frozen node lags.
        post(&replay_api, "/v1/cookies", &old).await?;
        let status = receipt(&api, &deletion["receipt"]).await?;
        ensure!(status["nodes"]["confirmed"] == 1, "{status}");
        ensure!(nodes[0].is_gone().await?, "{USER} is back");
        sleep(Duration::from_millis(50)).await;
    }
    nodes[1].consumer.process.signal(Signal::CONT)?;
    poll_receipt(&api, &replay_api, &deletion, &old, &nodes).await?;
    println!("all nodes have confirmed after {:?}", began.elapsed());
    wait_done(&api, &deletion).await?;
    check_replay(&replay_api, &old, &nodes, "marker-1").await?;

    for node in &mut nodes {
        node.consumer.process.kill()?;
    }
    mongod.kill()?;
    mongod.restart().await?;
    for producer in [&mut first, &mut second] {
        producer.process.kill()?;
        producer.process.restart()?;
        producer.wait_ready().await?;
    }
    for node in &mut nodes {
        node.consumer.process.restart()?;
        node.consumer.wait_ready().await?;
    }
    check_replay(&replay_api, &old, &nodes, "marker-2").await?;
    check_replay(&api, &old, &nodes, "marker-3").await?;
    for user in [0, users / 2, users - 1] {
        let stored =
            json!({ (user % u64::from(DSPS) + 1).to_string(): format!("buyer-{user:016}") });
        for node in &nodes {
            let user = format!("user-{user:020}");
            node.consumer.wait_lookup(&user, stored.clone()).await?;
        }
    }
    // A sync after the deletion is stored again.
    first.accept(USER, 1, "again").await?;
    for node in &nodes {
        node.consumer
            .wait_lookup(USER, json!({ "1": "again" }))
            .await?;
    }
    let (status, body) = call(&api, "GET /v1/receipts/none HTTP/1.1", "").await?;
    ensure!(status == 404, "{status} {body}");
    Ok(())
}

/// A number of the environment, or the default.
fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(default),
    }
}

#[tokio::test]
async fn one_user_of_many_is_deleted_while_older_cookies_are_replayed() -> Result<()> {
    delete_one_user(5_000, Duration::from_secs(2)).await
}

#[tokio::test]
#[ignore = "takes minutes and dist builds"]
async fn one_user_of_millions_is_deleted_while_older_cookies_are_replayed() -> Result<()> {
    let frozen = Duration::from_secs(number("DELETION_FROZEN_SECONDS", 45)?);
    delete_one_user(number("DELETION_USERS", 5_000_000)?, frozen).await
}
