//! Limits of a real MongoDB's collection: on one server, and on a replica set of one.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use launcher::mongod::Mongod;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::harness::Limiter;

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

/// Waits until a limit is like this.
async fn until(limiter: &mut Limiter, limit: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
    let path = format!("/v1/limits/{limit}");
    loop {
        let answer = limiter.client().await?.get(&path, &[]).await?;
        if is(&serde_json::from_str(&answer.body)?) {
            return Ok(());
        }
        limiter.process.check()?;
        sleep(Duration::from_millis(20)).await;
    }
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

async fn follows(mongod: &mut Mongod) -> Result<()> {
    let (mut limiter, collection) = start(mongod).await?;
    set(&collection, "a", "2/s").await?;
    set(&collection, "b", "2/s").await?;
    until(&mut limiter, "a", is("collection", "2/s")).await?;
    until(&mut limiter, "b", is("collection", "2/s")).await?;

    // With an error nothing of a version is in force, and it says which.
    set(&collection, "c", "3/s").await?;
    until(&mut limiter, "c", is("collection", "3/s")).await?;
    collection
        .insert_one(doc! { "_id": "wrong", "rules": [] })
        .await?;
    set(&collection, "c", "4/s").await?;
    limiter
        .wait_said("collection: limits.wrong: needs rules")
        .await?;
    collection.delete_one(doc! { "_id": "wrong" }).await?;
    until(&mut limiter, "c", is("collection", "4/s")).await?;
    limiter
        .wait_metric("limiter_limits_version_refused", 0)
        .await?;

    // Without the server the last version stays, also over a restart.
    mongod.kill()?;
    mongod.process().wait(Duration::from_secs(30)).await?;
    let log = limiter.file("log");
    while !fs::read_to_string(&log)?.contains("cannot read the collection of limits, retrying") {
        sleep(Duration::from_millis(20)).await;
    }
    limiter.stop().await?;
    limiter.restart().await?;
    until(&mut limiter, "c", is("collection", "4/s")).await?;
    mongod.restart().await?;
    loop {
        // A replica set has no primary at first.
        match set(&collection, "c", "5/s").await {
            Ok(()) => break,
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
    until(&mut limiter, "c", is("collection", "5/s")).await?;
    collection.drop().await?;
    until(&mut limiter, "c", |it| it["status"] == 404).await?;
    until(&mut limiter, "a", is("file", "1/s")).await?;
    limiter.stop().await
}

#[tokio::test]
async fn collection_of_one_server_is_followed() -> Result<()> {
    let dir = TempDir::new()?;
    follows(&mut Mongod::start(dir.path()).await?).await
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
    loop {
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        let is_primary = hello.get_bool("isWritablePrimary");
        if is_primary.context("no answer to hello")? {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    follows(&mut mongod).await
}
