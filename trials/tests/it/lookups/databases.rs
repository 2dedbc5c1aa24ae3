//! Lookups in MongoDB: databases that hang, and clients with short deadlines.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mongodb::{Client, bson::doc};
use serde_json::json;
use tempfile::TempDir;
use testkit::{mongod, scrape::names};
use tokio::{task::JoinSet, time::Instant};
use tonic::Request;

use super::{Node, UID, USER, grpc_request};
use crate::{
    harness::{TIMEOUT, wait_until},
    mongods::{clear_failpoint, router::MongoRouter, set_failpoint, start_failable},
};

#[tokio::test]
async fn hanging_database_is_named_and_delays_no_other() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = start_failable(&dir).await?;
    let node = Node::start(&dir, &mongod.uri(), &[]).await?;
    node.accept(&[17, 44]).await?;
    let hang = doc! {
        "failCommands": ["find"],
        "namespace": "44.cookies",
        "blockConnection": true,
        "blockTimeMS": 5_000,
    };
    set_failpoint(&mongod, hang).await?;
    let request = json!({"users": [USER, "unknown"], "dsps": [17, 44], "deadline_ms": 200});
    let expected = json!({
        "complete": false,
        "users": [{"17": "secret-uid-17"}, {}],
        "unavailable": [44],
    });
    // Far more than the connections of the pool: hanging finds must not use them up.
    for _ in 0..300 {
        assert_eq!(node.post(&request).await?, (200, expected.clone()));
    }
    let only = json!({"users": [USER], "dsps": [44]});
    assert_eq!(node.post(&only).await?.0, 503);
    let mut call = Request::new(grpc_request(&[USER], &[17, 44]));
    call.set_timeout(Duration::from_millis(200));
    let response = node.grpc().await?.get(call).await?.into_inner();
    assert_eq!(response.unavailable_dsps, [44]);
    let partial = [("outcome", "partial")];
    assert_eq!(
        node.consumer
            .metrics()
            .await?
            .count(names::LOOKUPS, &partial),
        301
    );
    clear_failpoint(&mongod).await?;
    let complete = json!({"17": "secret-uid-17", "44": "secret-uid-44"});
    wait_until(TIMEOUT, "the database answers again", async || {
        Ok(node.post(&request).await?.1["users"][0] == complete)
    })
    .await?;
    mongod.pause()?;
    let (status, _) = node.post(&request).await?;
    assert_eq!(status, 503);
    mongod.resume()?;
    node.check_no_ids().await
}

/// The number of DSPs, of which the last one is on a server of its own.
const DSPS: u32 = 20;

#[tokio::test]
async fn frozen_server_delays_no_database_of_another() -> Result<()> {
    let dir = TempDir::new()?;
    let first = mongod::start(&dir.path().join("first")).await?;
    let mut second = mongod::start(&dir.path().join("second")).await?;
    let router = MongoRouter::start([first.address, second.address], "20").await?;
    // A router of a cluster lists the databases of both.
    let client = Client::with_uri_str(first.uri()).await?;
    client.database("20").create_collection("listed").await?;
    let node = Node::start(&dir, &router.uri(), &[]).await?;
    let dsps: Vec<_> = (1..=DSPS).collect();
    node.accept(&dsps).await?;
    second.pause()?;
    let request = json!({"users": [USER, "unknown"], "dsps": dsps, "deadline_ms": 100});
    let uids = |dsps: u32| -> serde_json::Map<_, _> {
        let uid = |dsp: u32| (dsp.to_string(), format!("{UID}-{dsp}").into());
        (1..=dsps).map(uid).collect()
    };
    let mut slowest = Duration::ZERO;
    for round in 0..200 {
        let mut http = node.http().await?;
        let sent = Instant::now();
        let response = http.post("/v1/lookup", &[], &request.to_string()).await?;
        slowest = slowest.max(sent.elapsed());
        let body: serde_json::Value = serde_json::from_str(&response.body)?;
        let expected = json!({"complete": false, "users": [uids(19), {}], "unavailable": [20]});
        ensure!(body == expected, "round {round}: {body}");
    }
    println!("slowest answer with a deadline of 100 ms: {slowest:?}");
    second.resume()?;
    wait_until(TIMEOUT, "the frozen database answers again", async || {
        Ok(node.post(&request).await?.1["users"][0] == json!(uids(DSPS)))
    })
    .await?;
    node.check_no_ids().await
}

/// Their finds are late, although the database works.
#[tokio::test]
async fn clients_with_short_deadlines_do_not_disturb_others() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let node = Node::start(&dir, &mongod.uri(), &[]).await?;
    node.accept(&[17]).await?;
    let slow = doc! {
        "failCommands": ["find"],
        "blockConnection": true,
        "blockTimeMS": 50,
    };
    set_failpoint(&mongod, slow).await?;
    let ask = async |http: &mut testkit::http::HttpClient, deadline: u32| {
        let request = json!({"users": [USER], "dsps": [17], "deadline_ms": deadline});
        http.post("/v1/lookup", &[], &request.to_string()).await
    };
    let mut impatient = JoinSet::new();
    for _ in 0..16 {
        let mut http = node.http().await?;
        impatient.spawn(async move {
            loop {
                ask(&mut http, 1).await.context("an impatient client")?;
            }
            #[expect(unreachable_code, reason = "for the type of the task")]
            anyhow::Ok(())
        });
    }
    let mut http = node.http().await?;
    for round in 0..20 {
        let response = ask(&mut http, 1_000).await?;
        ensure!(response.status == 200, "round {round}: {response:?}");
        ensure!(response.body.contains(UID), "round {round}: {response:?}");
    }
    ensure!(impatient.try_join_next().is_none(), "a client failed");
    impatient.shutdown().await;
    clear_failpoint(&mongod).await
}
