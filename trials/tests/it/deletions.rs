//! Tests of deletions through the API: every node removes the cookies and never stores them again.

mod bodies;
mod late_command;
mod scale;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{http::HttpClient, programs::free_address};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
    mongods::shared,
};

/// Flags with a limit of API requests that no test reaches.
const UNLIMITED: [&str; 2] = ["--api-requests-per-second", "1000000"];

/// A producer with an API, and the address of the API.
pub(crate) async fn start_producer(dir: &TempDir, flags: &[&str]) -> Result<(Producer, String)> {
    let api = free_address()?.to_string();
    let flags = [&["--api", &api], flags].concat();
    Ok((Producer::start(dir, &flags).await?, api))
}

/// Sends one request; returns the status and the body.
pub(crate) async fn call(address: &str, head: &str, body: &str) -> Result<(u16, String)> {
    let mut connection = HttpClient::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{head}\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    connection.send(request.as_bytes()).await?;
    let response = connection.response().await?;
    Ok((response.status, response.body))
}

pub(crate) async fn delete(api: &str, path: &str) -> Result<Value> {
    let (status, body) = call(api, &format!("DELETE {path} HTTP/1.1"), "").await?;
    ensure!(status == 202, "{path}: {status} {body}");
    Ok(serde_json::from_str(&body)?)
}

pub(crate) async fn post(api: &str, path: &str, rows: &str) -> Result<(u16, Value)> {
    let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/x-ndjson");
    let (status, body) = call(api, &head, rows).await?;
    Ok((status, serde_json::from_str(&body)?))
}

pub(crate) async fn receipt(api: &str, receipt: &Value) -> Result<Value> {
    let receipt = receipt.as_str().context("a receipt is text")?;
    let (status, body) = call(api, &format!("GET /v1/receipts/{receipt} HTTP/1.1"), "").await?;
    ensure!(status == 200, "{status} {body}");
    Ok(serde_json::from_str(&body)?)
}

pub(crate) async fn wait_done(api: &str, deletion: &Value) -> Result<()> {
    wait_until(TIMEOUT, "every node has confirmed", async || {
        Ok(receipt(api, &deletion["receipt"]).await?["done"] == true)
    })
    .await
}

pub(crate) fn millis_ago(age: Duration) -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.expect("after 1970") - age).as_millis()
}

/// Deletes on two nodes, one of which is disconnected. Afterwards, another producer sends older cookies.
async fn check_deletion(stores: [&str; 2]) -> Result<()> {
    let dir = TempDir::new()?;
    let (producer, api) = start_producer(&dir, &["--id", "first"]).await?;
    let other_dir = TempDir::new()?;
    let (other, other_api) = start_producer(&other_dir, &["--id", "second"]).await?;
    let producers = [&producer, &other];
    let mut here = Consumer::start(&dir, "here", &producers, stores[0], &[]).await?;
    let mut away = Consumer::start(&dir, "away", &producers, stores[1], &[]).await?;
    for dsp in [1, 2] {
        producer.accept("alice", dsp, "a").await?;
        producer.accept("bob", dsp, "b").await?;
    }
    let both = json!({ "1": "b", "2": "b" });
    for node in [&here, &away] {
        node.wait_lookup("alice", json!({ "1": "a", "2": "a" }))
            .await?;
        node.wait_lookup("bob", both.clone()).await?;
    }

    away.process.kill()?;
    let deletion = delete(&api, "/v1/users/alice").await?;
    assert_eq!(
        deletion["at_risk"], false,
        "one node has confirmed the deletion"
    );
    here.check_unknown(["alice".to_owned()].into_iter()).await?;
    let pending = receipt(&api, &deletion["receipt"]).await?;
    let nodes = json!({ "confirmed": 1, "pending": 1, "unknown": 0 });
    assert_eq!(pending["nodes"], nodes, "{pending}");
    assert_eq!(pending["done"], false);

    away.process.restart()?;
    away.wait_ready().await?;
    wait_done(&api, &deletion).await?;
    // An older cookie from the bulk input of another producer.
    let old = millis_ago(Duration::from_secs(60));
    let rows = format!(
        "{{\"u\":\"alice\",\"d\":1,\"b\":\"old\",\"t\":{old}}}\n{{\"u\":\"carol\",\"d\":1,\"b\":\"c\"}}"
    );
    let (status, summary) = post(&other_api, "/v1/cookies", &rows).await?;
    assert_eq!(
        (status, &summary["accepted"]),
        (200, &json!(2)),
        "{summary}"
    );
    for node in [&mut here, &mut away] {
        node.wait_lookup("carol", json!({ "1": "c" })).await?;
        node.check_unknown(["alice".to_owned()].into_iter()).await?;
        node.wait_lookup("bob", both.clone()).await?;
        // A restart reloads the deletion table.
        node.process.kill()?;
        node.process.restart()?;
        node.wait_ready().await?;
    }
    let rows = rows.replace("carol", "dave");
    post(&other_api, "/v1/cookies", &rows).await?;
    for node in [&here, &away] {
        node.wait_lookup("dave", json!({ "1": "c" })).await?;
        node.check_unknown(["alice".to_owned()].into_iter()).await?;
    }
    // A new sync is stored again.
    producer.accept("alice", 1, "new").await?;
    for node in [&here, &away] {
        node.wait_lookup("alice", json!({ "1": "new" })).await?;
    }

    let deletion = delete(&api, "/v1/dsps/2?confirm=2").await?;
    wait_done(&api, &deletion).await?;
    for node in [&here, &away] {
        node.wait_lookup("bob", json!({ "1": "b" })).await?;
    }
    Ok(())
}

#[tokio::test]
async fn deleted_user_is_removed_permanently_on_every_node_with_the_embedded_store() -> Result<()> {
    let dirs = [TempDir::new()?, TempDir::new()?];
    let stores = dirs.each_ref().map(|dir| embedded(dir.path()));
    check_deletion([&stores[0], &stores[1]]).await
}

#[tokio::test]
async fn deleted_user_is_removed_permanently_on_every_node_with_mongodb() -> Result<()> {
    let mongods = [shared::start().await?, shared::start().await?];
    check_deletion([&mongods[0].uri(), &mongods[1].uri()]).await
}
