//! Tests of the deletion of one user among many, with a producer whose clock is behind, while one node is frozen. Each kind of
//! store is frozen once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use testkit::admin;
use tokio::time::sleep;

use super::{UNLIMITED, delete, millis_ago, post, receipt, start_producer, wait_done};
use crate::{
    clock_jumps::FakeClock,
    harness::{Consumer, Producer, TIMEOUT, embedded, settled, wait_until},
    mongods::shared,
};

const DSPS: u32 = 3;

/// Maximum number of rows of a request.
const ROWS_MAX: u64 = 100_000;

/// A node, with access to its stored cookies.
struct Node {
    consumer: Consumer,
    name: &'static str,
    /// The server of a node with MongoDB, which the test reads like a bidder.
    mongodb: Option<Client>,
}

impl Node {
    /// Whether the store has no cookie of the user, and a lookup shows no cookie.
    async fn is_gone(&self, user: &str) -> Result<bool> {
        let mut found = 0;
        for dsp in 1..=DSPS {
            if let Some(client) = &self.mongodb {
                let cookies = client.database(&dsp.to_string());
                let cookies = cookies.collection::<Document>("cookies");
                found += cookies.count_documents(doc! { "_id": user }).await?;
            }
        }
        let path = format!("/v1/users/{user}");
        let is_hidden = admin::get(&self.consumer.admin, &path).await?.status == 404;
        ensure!(
            is_hidden || found > 0 || self.mongodb.is_none(),
            "removed and shown"
        );
        Ok(is_hidden && found == 0)
    }
}

/// Rows of the deleted user that were accepted before the deletion.
fn old_rows(user: &str, millis: u128) -> String {
    let row = |dsp| format!("{{\"u\":\"{user}\",\"d\":{dsp},\"b\":\"old\",\"t\":{millis}}}\n");
    (1..=DSPS).map(row).collect()
}

/// Sends rows until the producer accepts them. It rejects rows while a node lags.
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

/// The producers' APIs and the nodes.
struct Cluster {
    api: String,
    /// The API of the producer whose clock is behind.
    replay_api: String,
    nodes: [Node; 2],
}

impl Cluster {
    /// Deletes a user while a node is frozen, and replays older cookies until all nodes have confirmed the deletion. A node counted
    /// as confirmed by a receipt must not have the user.
    async fn delete_while_frozen(
        &mut self,
        user: &str,
        old: &str,
        frozen: usize,
        frozen_for: Duration,
    ) -> Result<()> {
        let mut nodes: Vec<&mut Node> = self.nodes.iter_mut().collect();
        let away = nodes.remove(frozen);
        let here = nodes.remove(0);
        away.consumer.process.signal(Signal::STOP)?;
        let began = Instant::now();
        let deletion = delete(&self.api, &format!("/v1/users/{user}")).await?;
        ensure!(deletion["at_risk"] == false, "{deletion}");
        wait_until(TIMEOUT, "the user is gone", || here.is_gone(user)).await?;
        println!(
            "{}: gone {:?} after the request",
            here.name,
            began.elapsed()
        );
        let mut resumed: Option<Instant> = None;
        let mut was_gone = false;
        while began.elapsed() < frozen_for + TIMEOUT * 10 {
            // 429 while the frozen node lags.
            post(&self.replay_api, "/v1/cookies", old).await?;
            let status = receipt(&self.api, &deletion["receipt"]).await?;
            let confirmed = &status["nodes"]["confirmed"];
            ensure!(here.is_gone(user).await?, "{user} is back");
            if let Some(resumed) = resumed {
                let is_gone = away.is_gone(user).await?;
                ensure!(
                    is_gone || !was_gone && confirmed != 2,
                    "{} has it after {status}",
                    away.name
                );
                if is_gone && !was_gone {
                    println!(
                        "{}: gone {:?} after it resumed",
                        away.name,
                        resumed.elapsed()
                    );
                }
                was_gone = is_gone;
                if confirmed == 2 {
                    println!(
                        "{}: confirmed {:?} after it resumed",
                        away.name,
                        resumed.elapsed()
                    );
                    return wait_done(&self.api, &deletion).await;
                }
            } else {
                ensure!(confirmed != 2, "{status}");
                if began.elapsed() >= frozen_for {
                    away.consumer.process.signal(Signal::CONT)?;
                    resumed = Some(Instant::now());
                }
            }
            sleep(Duration::from_millis(if resumed.is_some() {
                1
            } else {
                50
            }))
            .await;
        }
        anyhow::bail!("{} has not confirmed {deletion}", away.name)
    }

    /// Replays older cookies, followed by a new cookie of another user; then checks that only the new one is stored.
    async fn check_replay(&self, api: &str, old: &[String; 2], marker: &str) -> Result<()> {
        send(api, &old.concat()).await?;
        let row = format!("{{\"u\":\"{marker}\",\"d\":1,\"b\":\"m\"}}");
        send(api, &row).await?;
        for node in &self.nodes {
            node.consumer
                .wait_lookup(marker, json!({ "1": "m" }))
                .await?;
            for user in USERS {
                ensure!(
                    node.is_gone(user).await?,
                    "{}: {user} is stored again",
                    node.name
                );
            }
        }
        Ok(())
    }
}

/// The users that are deleted.
const USERS: [&str; 2] = ["alice", "bob"];

async fn delete_among(users: u64, frozen_for: Duration) -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    clock.set("-3")?;
    let (mut first, api) = start_producer(&dir, &UNLIMITED).await?;
    let replay_api = testkit::programs::free_address()?.to_string();
    let flags = [&UNLIMITED[..], &["--api", &replay_api]].concat();
    let mut second = clock.producer(&dir, &flags).await?;
    let mut mongod = shared::start().await?;
    let producers: [&Producer; 2] = [&first, &second];
    let stores = [mongod.uri(), embedded(&dir.path().join("store"))];
    let nodes = [
        Node {
            consumer: Consumer::start(&dir, "mongodb", &producers, &stores[0], &[]).await?,
            name: "mongodb",
            mongodb: Some(Client::with_uri_str(mongod.uri()).await?),
        },
        Node {
            consumer: Consumer::start(&dir, "embedded", &producers, &stores[1], &[]).await?,
            name: "embedded",
            mongodb: None,
        },
    ];
    let mut cluster = Cluster {
        api,
        replay_api,
        nodes,
    };

    let ago = millis_ago(Duration::from_secs(10));
    let old = USERS.map(|user| old_rows(user, ago));
    send(&cluster.replay_api, &old.concat()).await?;
    for user in USERS {
        first.accept(user, 1, "new").await?;
    }
    fill(&cluster.api, users).await?;
    let sent = users + 2 * u64::from(DSPS + 1);
    for node in &cluster.nodes {
        wait_until(TIMEOUT * 10, "all cookies are stored", async || {
            Ok(settled(&node.consumer.metrics().await?) == sent)
        })
        .await?;
        for user in USERS {
            let stored = json!({ "1": "new", "2": "old", "3": "old" });
            node.consumer.wait_lookup(user, stored).await?;
        }
    }

    for (frozen, user) in USERS.iter().enumerate() {
        let old = &old[frozen];
        cluster
            .delete_while_frozen(user, old, frozen, frozen_for)
            .await?;
    }
    let replay_api = cluster.replay_api.clone();
    cluster.check_replay(&replay_api, &old, "marker-1").await?;

    for node in &mut cluster.nodes {
        node.consumer.process.kill()?;
    }
    mongod.kill()?;
    mongod.restart().await?;
    for producer in [&mut first, &mut second] {
        producer.process.kill()?;
        producer.process.restart()?;
        producer.wait_ready().await?;
    }
    for node in &mut cluster.nodes {
        node.consumer.process.restart()?;
        node.consumer.wait_ready().await?;
    }
    let api = cluster.api.clone();
    cluster.check_replay(&replay_api, &old, "marker-2").await?;
    cluster.check_replay(&api, &old, "marker-3").await?;
    for node in &cluster.nodes {
        for user in [0, users / 2, users - 1] {
            let stored =
                json!({ (user % u64::from(DSPS) + 1).to_string(): format!("buyer-{user:016}") });
            let user = format!("user-{user:020}");
            node.consumer.wait_lookup(&user, stored).await?;
        }
    }
    // A sync after the deletion is stored again.
    first.accept(USERS[0], 1, "again").await?;
    for node in &cluster.nodes {
        let again = json!({ "1": "again" });
        node.consumer.wait_lookup(USERS[0], again).await?;
    }
    Ok(())
}

#[tokio::test]
async fn one_user_of_many_is_deleted_while_older_cookies_are_replayed() -> Result<()> {
    delete_among(5_000, Duration::from_secs(2)).await
}

/// `COOKIESYNC_BIN_DIR=target/dist cargo test --test it -- --ignored --nocapture one_user_of_millions`
#[tokio::test]
#[ignore = "takes minutes and dist builds"]
async fn one_user_of_millions_is_deleted_while_older_cookies_are_replayed() -> Result<()> {
    delete_among(5_000_000, Duration::from_secs(45)).await
}
