//! Test of a write command that MongoDB executes only after the cookie in the command has been deleted.

use anyhow::Result;
use mongodb::{Client, bson::doc};
use serde_json::json;
use tempfile::TempDir;

use super::{delete, start_producer, wait_done};
use crate::{
    harness::{Consumer, DRAIN_TIMEOUT, TIMEOUT, wait_until},
    mongods::shared,
    tcp_proxy::TcpProxy,
};

#[tokio::test]
async fn cookie_written_by_a_late_command_is_hidden_and_removed_by_the_next_sweep() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let cookies = Client::with_uri_str(mongod.uri()).await?.database("1");
    let cookies = cookies.collection::<mongodb::bson::Document>("cookies");
    let proxy = TcpProxy::to(&mongod.address.to_string()).await?;
    let store = format!("mongodb://{}", proxy.address());
    let (producer, api) = start_producer(&dir, &[]).await?;
    let no_sweep = ["--expiry-window", "never"];
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &no_sweep).await?;
    producer.accept("bob", 1, "b").await?;
    consumer.wait_lookup("bob", json!({ "1": "b" })).await?;

    // The consumer loses the connection and repeats the command on another one.
    proxy.hold_next(&[b"insert", b"cookies", b"alice"]);
    producer.accept("alice", 1, "a").await?;
    consumer.wait_lookup("alice", json!({ "1": "a" })).await?;
    let deletion = delete(&api, "/v1/users/alice").await?;
    wait_done(&api, &deletion).await?;
    let alice = async || cookies.count_documents(doc! { "_id": "alice" }).await;
    assert_eq!(alice().await?, 0);
    proxy.deliver().await?;
    assert_eq!(
        alice().await?,
        1,
        "the server has executed the first command"
    );
    consumer
        .check_unknown(["alice".to_owned()].into_iter())
        .await?;

    consumer.process.stop(DRAIN_TIMEOUT).await?;
    let sweep = ["--expiry-window", "always"];
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &sweep).await?;
    let removed = async || Ok(alice().await? == 0);
    wait_until(TIMEOUT, "the sweep has removed the cookie", removed).await?;
    consumer.wait_lookup("bob", json!({ "1": "b" })).await
}
