//! Tests of limits from a MongoDB collection, on a standalone server and on a replica set.

use std::{fs, time::Duration};

use anyhow::Result;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use tempfile::TempDir;
use testkit::{mongod, programs::ServerProcess};

use crate::serve::harness::{Limiter, wait_until};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'r', rate = '1/s' }]
";

async fn start(mongod: &ServerProcess) -> Result<(Limiter, Collection<Document>)> {
    let uri = format!("{}/?directConnection=true", mongod.uri());
    let client = Client::with_uri_str(&uri).await?;
    let collection = client.database("company").collection("limits");
    let flags = [
        "--limits-collection=company.limits".to_owned(),
        format!("--limits-mongodb={uri}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let limiter = Limiter::start(LIMITS, &flags).await?;
    Ok((limiter, collection))
}

/// Waits until a limit has this burst, or with `None` does not exist.
async fn wait_burst(limiter: &mut Limiter, limit: &str, burst: Option<u32>) -> Result<()> {
    let path = format!("/v1/limits/{limit}/k/delay");
    let header = burst.map(|burst| format!("x-ratelimit-limit: {burst}"));
    wait_until(limit, async || {
        limiter.process.check()?;
        let response = limiter.client().await?.get(&path, &[]).await?;
        Ok(match &header {
            Some(header) => response.head.lines().any(|line| line == header),
            None => response.status == 404,
        })
    })
    .await
}

async fn set(collection: &Collection<Document>, name: &str, burst: u32) -> Result<()> {
    let terms = doc! { "rules": [{ "id": "r", "rate": "1/s", "burst": burst }] };
    let replacing = collection.replace_one(doc! { "_id": name }, terms);
    replacing.upsert(true).await?;
    Ok(())
}

async fn check(mongod: &mut ServerProcess) -> Result<()> {
    let (mut limiter, collection) = start(mongod).await?;
    set(&collection, "a", 2).await?;
    set(&collection, "b", 2).await?;
    wait_burst(&mut limiter, "a", Some(2)).await?;
    wait_burst(&mut limiter, "b", Some(2)).await?;

    // A version with an error is rejected completely.
    set(&collection, "c", 3).await?;
    wait_burst(&mut limiter, "c", Some(3)).await?;
    collection
        .insert_one(doc! { "_id": "wrong", "rules": [] })
        .await?;
    set(&collection, "c", 4).await?;
    limiter
        .wait_readiness("collection: limits.wrong: add rules")
        .await?;
    collection.delete_one(doc! { "_id": "wrong" }).await?;
    wait_burst(&mut limiter, "c", Some(4)).await?;
    limiter
        .wait_metric("limiter_limits_version_refused", 0)
        .await?;

    // While the server is unavailable, the last version stays in effect, also across a restart.
    mongod.kill()?;
    mongod.process.wait(Duration::from_secs(30)).await?;
    let (log, message) = (limiter.file("log"), "cannot read the collection of limits");
    let is_logged = async || Ok(fs::read_to_string(&log)?.contains(message));
    wait_until(message, is_logged).await?;
    limiter.stop().await?;
    limiter.restart().await?;
    wait_burst(&mut limiter, "c", Some(4)).await?;
    mongod.restart().await?;
    // A replica set has no primary at first.
    let is_set = async || Ok(set(&collection, "c", 5).await.is_ok());
    wait_until("a primary", is_set).await?;
    wait_burst(&mut limiter, "c", Some(5)).await?;
    collection.drop().await?;
    wait_burst(&mut limiter, "c", None).await?;
    wait_burst(&mut limiter, "a", Some(1)).await?;
    limiter.stop().await
}

#[tokio::test]
async fn collection_of_a_standalone_server_is_followed() -> Result<()> {
    let dir = TempDir::new()?;
    check(&mut mongod::start(dir.path()).await?).await
}

#[tokio::test]
async fn changes_of_a_replica_set_collection_are_applied() -> Result<()> {
    let dir = TempDir::new()?;
    let more = ["--replSet", "rs", "--oplogSize", "100"];
    let mut mongod = mongod::start_with(dir.path(), &more).await?;
    let uri = format!("{}/?directConnection=true", mongod.uri());
    let admin = Client::with_uri_str(&uri).await?.database("admin");
    let members = [doc! { "_id": 0, "host": mongod.address.to_string() }];
    let config = doc! { "_id": "rs", "members": &members[..] };
    admin
        .run_command(doc! { "replSetInitiate": config })
        .await?;
    wait_until("a primary", async || {
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        Ok(hello.get_bool("isWritablePrimary")?)
    })
    .await?;
    check(&mut mongod).await
}
