//! Limits from a MongoDB collection, on a standalone server and on a replica set.

use std::{fs, time::Duration};

use anyhow::Result;
use launcher::mongod::Mongod;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Limiter, wait_until};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'r', rate = '1/s' }]
";

async fn start(mongod: &Mongod) -> Result<(Limiter, Collection<Document>)> {
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

/// Waits until the response for a limit satisfies `is`.
async fn wait_limit(limiter: &mut Limiter, limit: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
    let path = format!("/v1/limits/{limit}");
    wait_until(limit, async || {
        limiter.process.check()?;
        let response = limiter.client().await?.get(&path, &[]).await?;
        Ok(is(&serde_json::from_str(&response.body)?))
    })
    .await
}

fn is(source: &str, rate: &str) -> impl Fn(&Value) -> bool {
    move |limit| limit["source"] == source && limit["terms"]["rules"][0]["rate"] == rate
}

async fn set(collection: &Collection<Document>, name: &str, rate: &str) -> Result<()> {
    let terms = doc! { "rules": [{ "id": "r", "rate": rate }] };
    let replacing = collection.replace_one(doc! { "_id": name }, terms);
    replacing.upsert(true).await?;
    Ok(())
}

async fn check(mongod: &mut Mongod) -> Result<()> {
    let (mut limiter, collection) = start(mongod).await?;
    set(&collection, "a", "2/s").await?;
    set(&collection, "b", "2/s").await?;
    wait_limit(&mut limiter, "a", is("collection", "2/s")).await?;
    wait_limit(&mut limiter, "b", is("collection", "2/s")).await?;

    // A version with an error is rejected completely.
    set(&collection, "c", "3/s").await?;
    wait_limit(&mut limiter, "c", is("collection", "3/s")).await?;
    collection
        .insert_one(doc! { "_id": "wrong", "rules": [] })
        .await?;
    set(&collection, "c", "4/s").await?;
    limiter
        .wait_readiness("collection: limits.wrong: add rules")
        .await?;
    collection.delete_one(doc! { "_id": "wrong" }).await?;
    wait_limit(&mut limiter, "c", is("collection", "4/s")).await?;
    limiter
        .wait_metric("limiter_limits_version_refused", 0)
        .await?;

    // While the server is unavailable, the last version stays in effect, also across a restart.
    mongod.kill()?;
    mongod.process().wait(Duration::from_secs(30)).await?;
    let (log, message) = (limiter.file("log"), "cannot read the collection of limits");
    let is_logged = async || Ok(fs::read_to_string(&log)?.contains(message));
    wait_until(message, is_logged).await?;
    limiter.stop().await?;
    limiter.restart().await?;
    wait_limit(&mut limiter, "c", is("collection", "4/s")).await?;
    mongod.restart().await?;
    // A replica set has no primary at first.
    let is_set = async || Ok(set(&collection, "c", "5/s").await.is_ok());
    wait_until("a primary", is_set).await?;
    wait_limit(&mut limiter, "c", is("collection", "5/s")).await?;
    collection.drop().await?;
    wait_limit(&mut limiter, "c", |it| it["status"] == 404).await?;
    wait_limit(&mut limiter, "a", is("file", "1/s")).await?;
    limiter.stop().await
}

#[tokio::test]
async fn collection_of_a_standalone_server_is_followed() -> Result<()> {
    let dir = TempDir::new()?;
    check(&mut Mongod::start(dir.path()).await?).await
}

#[tokio::test]
async fn collection_of_a_replica_set_is_followed() -> Result<()> {
    let dir = TempDir::new()?;
    let more = ["--replSet", "rs", "--oplogSize", "100"];
    let mut mongod = Mongod::start_with(dir.path(), &more).await?;
    let uri = format!("{}/?directConnection=true", mongod.uri());
    let admin = Client::with_uri_str(&uri).await?.database("admin");
    let members = [doc! { "_id": 0, "host": mongod.address().to_string() }];
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
