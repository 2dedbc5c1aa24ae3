//! Tests of filling a new node from the stores of others: between both kinds of stores, with kills, deletions and bad nodes.

mod bad_nodes;

use std::{collections::BTreeMap, fs, iter, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use mongodb::bson::{DateTime, doc};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{admin, http::HttpClient, programs::free_address};
use tokio::time::{Instant, sleep};

use crate::{
    deletions::{call, delete, millis_ago, post, start_producer, wait_done},
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_logged, wait_until},
    mongods::shared,
};

const TOKEN: &str = "a-token-of-16-bytes";
const DSPS: [u32; 3] = [7, 8, 9];

/// Buyer uid and time in milliseconds of a DSP's cookies, by user.
type Rows = BTreeMap<String, (String, u64)>;

/// A producer with an API, a node with cookies, and the token for it.
struct Cluster {
    dir: TempDir,
    producer: Producer,
    api: String,
    token: String,
    source: Consumer,
}

fn user(number: usize) -> String {
    format!("user-{number:06}")
}

fn url(node: &Consumer) -> String {
    format!("http://{}", node.admin)
}

impl Cluster {
    /// Starts a node whose store has cookies of this number of users.
    async fn start(store: &str, users: usize) -> Result<Self> {
        let dir = TempDir::new()?;
        let flags = ["--id", "producer", "--api-requests-per-second", "1000000"];
        let (producer, api) = start_producer(&dir, &flags).await?;
        let token = dir.path().join("token").display().to_string();
        fs::write(&token, TOKEN)?;
        // Every time is stored, so that nodes can be compared.
        let flags = ["--cookies-token-file", &*token, "--refresh-interval", "0s"];
        let source = Consumer::start(&dir, "source", &[&producer], store, &flags).await?;
        let cluster = Self {
            dir,
            producer,
            api,
            token,
            source,
        };
        let users: Vec<_> = (0..users).collect();
        for users in users.chunks(30_000) {
            cluster
                .send(users.iter().copied(), Duration::from_secs(3600))
                .await?;
        }
        let expected = (users.len() * DSPS.len()) as u64;
        cluster.source.wait_written(expected).await?;
        Ok(cluster)
    }

    /// Sends cookies of these users that were accepted some time ago.
    async fn send(&self, users: impl Iterator<Item = usize>, age: Duration) -> Result<()> {
        let at = millis_ago(age);
        let mut rows = String::new();
        for number in users {
            let (user, time) = (user(number), at + number as u128);
            for dsp in DSPS {
                rows += &format!(
                    "{{\"u\":\"{user}\",\"d\":{dsp},\"b\":\"b-{dsp}-{number}\",\"t\":{time}}}\n"
                );
            }
        }
        let (status, summary) = post(&self.api, "/v1/cookies", &rows).await?;
        ensure!(status == 200, "{summary}");
        Ok(())
    }

    /// Starts a node that is filled from these URLs.
    async fn fill(&self, name: &str, store: &str, from: &str, flags: &[&str]) -> Result<Consumer> {
        let own = ["--copy-from", from, "--copy-token-file", &*self.token];
        let tokens = [
            "--cookies-token-file",
            &*self.token,
            "--refresh-interval",
            "0s",
        ];
        let flags = [&own[..], &tokens, flags].concat();
        Consumer::start(&self.dir, name, &[&self.producer], store, &flags).await
    }

    /// Checks that both nodes have the same cookies, with their times; returns the number of each DSP.
    async fn check_equal(&self, node: &Consumer) -> Result<Vec<usize>> {
        let mut counts = Vec::new();
        for dsp in DSPS {
            let (here, there) = (rows(node, dsp).await?, rows(&self.source, dsp).await?);
            let differs = |user: &&String| here.get(*user) != there.get(*user);
            let first = here.keys().chain(there.keys()).find(differs);
            if let Some(user) = first {
                let (rows, all) = (here.len(), there.len());
                let (row, of) = (here.get(user), there.get(user));
                bail!("DSP {dsp}: {rows} of {all} rows; {user}: {row:?} instead of {of:?}");
            }
            counts.push(here.len());
        }
        Ok(counts)
    }
}

/// All cookies of a DSP that the node returns in pages.
async fn rows(node: &Consumer, dsp: u32) -> Result<Rows> {
    let (mut rows, mut next) = (Rows::new(), String::new());
    let deadline = Instant::now() + TIMEOUT;
    let mut client = HttpClient::connect(&node.admin).await?;
    loop {
        let path = format!("/v1/cookies?dsp={dsp}&before={}{next}", u64::MAX / 2000);
        let token = format!("Bearer {TOKEN}");
        let answer = client.get(&path, &[("authorization", &token)]).await?;
        match answer.status {
            200 => {}
            503 | 429 if Instant::now() < deadline => {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
            status => bail!("{status} {}", answer.body),
        }
        let mut lines: Vec<Value> = answer
            .body
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        let end = lines.pop().context("an end")?;
        for line in lines {
            let text = |name: &str| line[name].as_str().map(str::to_owned).context("a text");
            let time = line["t"].as_u64().context("a time")?;
            rows.insert(text("u")?, (text("b")?, time));
        }
        match end["next"].as_str() {
            Some(position) => next = format!("&next={position}"),
            None => return Ok(rows),
        }
    }
}

async fn copied(node: &Consumer) -> Result<u64> {
    Ok(node.metrics().await?.count("consumer_copied_total", &[]))
}

/// Waits until the node is filled.
async fn wait_filled(node: &Consumer) -> Result<()> {
    let filled = node.wait_ready_with_state("\"state\":\"finished: ").await;
    filled.with_context(|| node.process.last_lines(40))
}

/// Fills a node while cookies and deletions arrive. Afterwards, a cookie accepted before a deletion arrives late.
async fn check_fill(source: &str, target: &str) -> Result<()> {
    const USERS: usize = 12_000;
    let cluster = Cluster::start(source, USERS).await?;
    // Only the source receives these deletions.
    for number in [1, 2] {
        delete(&cluster.api, &format!("/v1/users/{}", user(number))).await?;
    }
    delete(&cluster.api, &format!("/v1/users/{}/dsps/7", user(3))).await?;
    cluster
        .source
        .check_unknown([user(1), user(2)].into_iter())
        .await?;

    let flags = ["--copy-rows-per-second", "12000"];
    let node = cluster
        .fill("new", target, &url(&cluster.source), &flags)
        .await?;
    wait_until(TIMEOUT, "the copy has begun", async || {
        Ok(copied(&node).await? > 1_000)
    })
    .await?;
    // Deletions and newer cookies travel meanwhile. The source serves no other new node from this one.
    let refused = HttpClient::connect(&node.admin)
        .await?
        .get(
            "/v1/cookies/all",
            &[("authorization", &format!("Bearer {TOKEN}"))],
        )
        .await?;
    ensure!(refused.status == 503, "{refused:?}");
    let deleted = (10..60).map(|number| number * 200);
    let mut last = json!(null);
    for number in deleted.clone() {
        last = delete(&cluster.api, &format!("/v1/users/{}", user(number))).await?;
    }
    let newer = (0..20).map(|number| number * 500 + 7);
    for number in newer.clone() {
        cluster.producer.accept(&user(number), 7, "newest").await?;
    }
    wait_filled(&node).await?;
    wait_done(&cluster.api, &last).await?;
    for node in [&node, &cluster.source] {
        for number in newer.clone() {
            let buyer_uids =
                json!({"7": "newest", "8": format!("b-8-{number}"), "9": format!("b-9-{number}")});
            node.wait_lookup(&user(number), buyer_uids).await?;
        }
        // Accepted before the deletions, and sent after them.
        let gone = deleted.clone().chain([1, 2]).map(user);
        node.check_unknown(gone).await?;
    }
    let late = deleted.clone().chain([1, 2, 3]);
    cluster.send(late, Duration::from_secs(1800)).await?;
    cluster
        .send([USERS].into_iter(), Duration::from_secs(1800))
        .await?;
    let all = json!({"7": format!("b-7-{USERS}"), "8": format!("b-8-{USERS}"), "9": format!("b-9-{USERS}")});
    for node in [&node, &cluster.source] {
        node.wait_lookup(&user(USERS), all.clone()).await?;
        node.check_unknown(deleted.clone().chain([1, 2]).map(user))
            .await?;
        let found = admin::get(&node.admin, &format!("/v1/users/{}", user(3))).await?;
        ensure!(!found.body.contains("\"7\":"), "{}", found.body);
    }
    // Live cookies are newer than the pages' `as_of`; all others are equal, with their times.
    let counts = cluster.check_equal(&node).await?;
    ensure!(
        counts.iter().all(|count| *count > USERS - 100),
        "{counts:?}"
    );
    let metrics = node.metrics().await?;
    ensure!(metrics.count("consumer_copied_ratio", &[]) == 1);
    wait_logged(&node.process, "compared the cookies of a DSP").await
}

#[tokio::test]
async fn embedded_store_is_filled_from_an_embedded_store() -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    check_fill(&embedded(dirs[0].path()), &embedded(dirs[1].path())).await
}

#[tokio::test]
async fn mongodb_is_filled_from_mongodb() -> Result<()> {
    let mongods = [shared::start().await?, shared::start().await?];
    check_fill(&mongods[0].uri(), &mongods[1].uri()).await
}

#[tokio::test]
async fn mongodb_is_filled_from_an_embedded_store() -> Result<()> {
    let (dir, mongod) = (TempDir::new()?, shared::start().await?);
    check_fill(&embedded(dir.path()), &mongod.uri()).await
}

#[tokio::test]
async fn embedded_store_is_filled_from_mongodb_also_with_cookies_of_last_week() -> Result<()> {
    let (dir, mongod) = (TempDir::new()?, shared::start().await?);
    let client = mongodb::Client::with_uri_str(mongod.uri()).await?;
    let old = millis_ago(Duration::from_secs(12 * 24 * 3600));
    let time = DateTime::from_millis(i64::try_from(old)?);
    let cookies = client.database("7").collection("cookies");
    cookies
        .insert_one(doc! { "_id": "old", "b": "b", "t": time })
        .await?;
    check_fill(&mongod.uri(), &embedded(dir.path())).await?;
    // `check_fill` has compared the rows.
    Ok(())
}

#[tokio::test]
async fn node_that_is_killed_ten_times_continues_without_loss() -> Result<()> {
    const USERS: usize = 90_000;
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), USERS).await?;
    let flags = ["--copy-rows-per-second", "25000"];
    let store = embedded(dirs[1].path());
    let from = url(&cluster.source);
    let mut node = cluster.fill("new", &store, &from, &flags).await?;
    for part in iter::once(110_000).chain(iter::repeat_n(5_000, 9)) {
        // At most 65,536 are not stored, so the first kill is more than a second after the first were: the progress is saved.
        wait_until(TIMEOUT, "a part is copied", async || {
            Ok(copied(&node).await? > part)
        })
        .await?;
        node.process.kill()?;
        node.process.restart()?;
        node.wait_ready().await?;
    }
    wait_filled(&node).await?;
    let all = (USERS * DSPS.len()) as u64;
    let last = copied(&node).await?;
    ensure!(last < all, "{last} of {all}: it began again");
    ensure!(cluster.check_equal(&node).await? == [USERS; 3]);
    // The flag remains in the unit file.
    node.process.kill()?;
    node.process.restart()?;
    node.wait_ready().await?;
    node.wait_ready_with_state("finished earlier: 270000 cookies from http")
        .await?;
    ensure!(copied(&node).await? == 0);
    ensure!(cluster.check_equal(&node).await? == [USERS; 3]);
    Ok(())
}

/// Fills a node from one with this store, which is killed, and then from one with an embedded store.
async fn check_next_node(second: &str) -> Result<()> {
    const USERS: usize = 20_000;
    let dirs = [TempDir::new()?, TempDir::new()?];
    let mut cluster = Cluster::start(&embedded(dirs[0].path()), USERS).await?;
    let from = url(&cluster.source);
    let second = cluster.fill("second", second, &from, &[]).await?;
    wait_filled(&second).await?;
    let from = format!("{},{}", url(&second), url(&cluster.source));
    let flags = ["--copy-rows-per-second", "20000"];
    let node = cluster
        .fill("third", &embedded(dirs[1].path()), &from, &flags)
        .await?;
    wait_until(TIMEOUT, "a part is copied", async || {
        Ok(copied(&node).await? > 5_000)
    })
    .await?;
    let Consumer { mut process, .. } = second;
    process.kill()?;
    wait_filled(&node).await?;
    ensure!(cluster.check_equal(&node).await? == [USERS; 3]);
    let last = node.process.last_lines(100);
    ensure!(
        last.contains("failed to copy from a node, retrying"),
        "{last}"
    );
    cluster.source.process.kill()
}

#[tokio::test]
async fn next_node_continues_when_a_node_is_killed() -> Result<()> {
    let dir = TempDir::new()?;
    check_next_node(&embedded(dir.path())).await
}

#[tokio::test]
async fn next_node_with_another_kind_of_store_begins_again_when_a_node_is_killed() -> Result<()> {
    let mongod = shared::start().await?;
    check_next_node(&mongod.uri()).await
}

#[tokio::test]
async fn delayed_cookies_are_rejected_until_the_deletions_of_another_node_are_known() -> Result<()>
{
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), 10).await?;
    delete(&cluster.api, &format!("/v1/users/{}", user(1))).await?;
    let nobody = format!("http://{}", free_address()?);
    let store = embedded(dirs[1].path());
    let mut node = cluster.fill("new", &store, &nobody, &[]).await?;
    node.wait_ready_with_state("waiting: ").await?;
    // The deletion is unknown here, and its user's cookie was accepted before it.
    cluster
        .send([1, 20].into_iter(), Duration::from_secs(1800))
        .await?;
    cluster.producer.accept("live", 7, "b").await?;
    node.wait_lookup("live", json!({"7": "b"})).await?;
    node.check_unknown([user(1), user(20)].into_iter()).await?;
    node.process.kill()?;
    drop(node);
    let node = cluster
        .fill("new", &store, &url(&cluster.source), &[])
        .await?;
    wait_filled(&node).await?;
    let both = |number: usize| json!({"7": format!("b-7-{number}"), "8": format!("b-8-{number}"), "9": format!("b-9-{number}")});
    node.wait_lookup(&user(20), both(20)).await?;
    node.wait_lookup(&user(2), both(2)).await?;
    cluster
        .send([1, 21].into_iter(), Duration::from_secs(1700))
        .await?;
    node.wait_lookup(&user(21), both(21)).await?;
    node.check_unknown([user(1)].into_iter()).await
}

#[tokio::test]
async fn store_with_cookies_is_not_filled() -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    let cluster = Cluster::start(&embedded(dirs[0].path()), 10).await?;
    let store = embedded(dirs[1].path());
    let mut node = Consumer::start(&cluster.dir, "old", &[&cluster.producer], &store, &[]).await?;
    cluster.producer.accept("live", 7, "b").await?;
    node.wait_lookup("live", json!({"7": "b"})).await?;
    node.process.kill()?;
    let from = url(&cluster.source);
    let node = cluster.fill("again", &store, &from, &[]).await?;
    node.wait_ready_with_state("not started, because the store is not empty")
        .await?;
    ensure!(copied(&node).await? == 0);
    // Without a token, and with a wrong path, the node's text is shown.
    let (status, _) = call(&cluster.source.admin, "GET /v1/cookies/node HTTP/1.1", "").await?;
    ensure!(status == 401);
    Ok(())
}
