//! Tests of nodes without streams that report through the archive what they have stored, with a real NATS server.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::stream::Config;
use proto::{
    archive::node_subject,
    v1::{Cursor, NodePosition, NodePositions},
};
use runtime_nats::report;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{nats, programs::ServerProcess};

use crate::{
    archive::{context, create_stream, stream_config, wait_archived},
    deletions::{call, delete, receipt, start_producer, wait_done},
    harness::{Consumer, DRAIN_TIMEOUT, TIMEOUT, embedded, wait_logged, wait_until},
};

const TOKEN: &str = "the-token-of-all-nodes";

/// The users of the server. Nodes may only publish under their own name.
const ACCOUNTS: &str = r#"
authorization {
  users: [
    { user: admin, password: admin }
    # The documented permissions.
    { user: producer, password: producer, permissions: {
      publish: [
        "cookies.>", "$JS.API.STREAM.INFO.COOKIES",
        "$JS.API.STREAM.INFO.COOKIES_NODES", "$JS.API.CONSUMER.CREATE.COOKIES_NODES",
        "$JS.API.CONSUMER.MSG.NEXT.COOKIES_NODES.>", "$JS.API.STREAM.PURGE.COOKIES_NODES"
      ], subscribe: ["_INBOX.>"]
    } }
    { user: node, password: node, permissions: {
      publish: [
        "cookies-nodes.node", "$JS.API.STREAM.INFO.COOKIES_NODES",
        "$JS.API.STREAM.INFO.COOKIES", "$JS.API.DIRECT.GET.COOKIES",
        "$JS.API.CONSUMER.CREATE.COOKIES", "$JS.API.CONSUMER.MSG.NEXT.COOKIES.>",
        "$JS.API.CONSUMER.DELETE.COOKIES.>"
      ], subscribe: ["_INBOX.>"]
    } }
  ]
}
"#;

/// The recommended stream of reports, on one server.
fn nodes_config() -> Result<Config> {
    let file = include_str!("../../../deploy/archive/nodes.json");
    let config: Config = serde_json::from_str(file)?;
    Ok(Config {
        num_replicas: 1,
        ..config
    })
}

/// Sends a report of a node that has stored and applied everything up to the deletion with this receipt.
async fn report(url: &str, name: &str, deletion: &Value, token: &str) -> Result<()> {
    let receipt = deletion["receipt"].as_str().context("a receipt")?;
    let mut parts = receipt.rsplitn(3, ':');
    let last = parts.next().and_then(|it| it.split('-').next_back());
    let last = last.context("a number")?.parse()?;
    let epoch = parts.next().context("an epoch")?.parse()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let positions = NodePositions {
        name: name.to_owned(),
        unix_micros: u64::try_from(now.as_micros())?,
        positions: vec![NodePosition {
            durable: Some(Cursor {
                producer_id: parts.next().context("a producer")?.to_owned(),
                epoch,
                sequence: last,
            }),
            applied_sequence: last,
            first_sequence: 1,
            lost_until: 0,
        }],
    };
    let message = report::seal(&positions, Some(token));
    let sent = context(url).await?;
    let sent = sent.publish(node_subject(name), message.into()).await?;
    sent.await?;
    Ok(())
}

async fn wait_nodes(api: &str, deletion: &Value, nodes: Value) -> Result<Value> {
    wait_until(TIMEOUT, &format!("{nodes}"), async || {
        Ok(receipt(api, &deletion["receipt"]).await?["nodes"] == nodes)
    })
    .await?;
    receipt(api, &deletion["receipt"]).await
}

#[tokio::test]
async fn receipt_is_complete_when_a_node_reports_and_not_when_anyone_else_does() -> Result<()> {
    let dir = TempDir::new()?;
    let mut nats = nats::start_with(dir.path(), ACCOUNTS).await?;
    let url = |user: &str| format!("nats://{user}@{}", nats.address);
    let admin = url("admin:admin");
    create_stream(&admin, stream_config()).await?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, TOKEN)?;
    let tokens = tokens.display().to_string();
    let archive = format!("{}/COOKIES", url("producer:producer"));
    let flags = [
        "--token-file",
        &tokens,
        "--archive",
        &archive,
        "--node-reports",
        "COOKIES_NODES",
        "--deletion-confirmations",
        "0",
    ];
    let (producer, api) = start_producer(&dir, &flags).await?;
    wait_logged(&producer.process, "cannot read the reports of nodes").await?;
    create_stream(&admin, nodes_config()?).await?;
    wait_logged(&producer.process, "reports of nodes can be read again").await?;

    producer.accept("alice", 1, "a").await?;
    let deletion = delete(&api, "/v1/users/alice").await?;
    report(&admin, "forged", &deletion, "a-token-that-was-guessed").await?;
    let nodes = json!({"confirmed": 0, "pending": 0, "unknown": 0, "reported": 1});
    let forged = wait_nodes(&api, &deletion, nodes).await?;
    ensure!(forged["done"] == false, "{forged}");
    report(&admin, "node-1", &deletion, TOKEN).await?;
    let nodes = json!({"confirmed": 1, "pending": 0, "unknown": 0, "reported": 1});
    let confirmed = wait_nodes(&api, &deletion, nodes).await?;
    ensure!(confirmed["done"] == true, "{confirmed}");

    // The reader continues after a restart of the server.
    nats.kill()?;
    nats.restart().await?;
    let later = delete(&api, "/v1/users/bob").await?;
    let nodes = json!({"confirmed": 0, "pending": 1, "unknown": 0, "reported": 1});
    wait_nodes(&api, &later, nodes).await?;
    report(&admin, "node-1", &later, TOKEN).await?;
    wait_done(&api, &later).await?;
    let metrics = producer.metrics().await?;
    let verified = [("report", "verified")];
    ensure!(metrics.count("producer_archive_nodes", &verified) == 1);
    Ok(())
}

/// Starts a server with both streams. Returns it, and the file with the token.
async fn start(dir: &TempDir) -> Result<(ServerProcess, String)> {
    let nats = nats::start_with(dir.path(), ACCOUNTS).await?;
    let admin = format!("nats://admin:admin@{}", nats.address);
    create_stream(&admin, stream_config()).await?;
    create_stream(&admin, nodes_config()?).await?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, TOKEN)?;
    Ok((nats, tokens.display().to_string()))
}

#[tokio::test]
async fn forgotten_node_stays_forgotten_after_a_restart_of_the_producer() -> Result<()> {
    let dir = TempDir::new()?;
    let (nats, tokens) = start(&dir).await?;
    let url = |user: &str| format!("nats://{user}@{}", nats.address);
    let admin = url("admin:admin");
    let archive = format!("{}/COOKIES", url("producer:producer"));
    let reports = ["--archive", &archive, "--node-reports", "COOKIES_NODES"];
    // A node whose last report is older can be forgotten.
    let retention = ["--token-file", &tokens, "--subscriber-retention", "2s"];
    let confirmations = ["--deletion-confirmations", "0"];
    let flags = [&reports[..], &retention, &confirmations].concat();
    let (mut producer, api) = start_producer(&dir, &flags).await?;

    let deletion = delete(&api, "/v1/users/alice").await?;
    report(&admin, "gone", &deletion, TOKEN).await?;
    wait_done(&api, &deletion).await?;
    wait_until(TIMEOUT, "the node is forgotten", async || {
        let forgotten = call(&api, "DELETE /v1/nodes/gone HTTP/1.1", "").await?;
        ensure!([200, 409].contains(&forgotten.0), "{forgotten:?}");
        Ok(forgotten.0 == 200)
    })
    .await?;

    producer.process.drain(DRAIN_TIMEOUT).await?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    let later = delete(&api, "/v1/users/bob").await?;
    // Read after all earlier reports.
    report(&admin, "here", &later, TOKEN).await?;
    wait_done(&api, &later).await?;
    let nodes = &receipt(&api, &later["receipt"]).await?["nodes"];
    let expected = json!({"confirmed": 1, "pending": 0, "unknown": 0});
    ensure!(*nodes == expected, "{nodes}");
    Ok(())
}

#[tokio::test]
async fn node_that_reads_the_archive_completes_a_receipt_by_its_report() -> Result<()> {
    let dir = TempDir::new()?;
    let (nats, tokens) = start(&dir).await?;
    let url = |user: &str| format!("nats://{user}@{}", nats.address);
    let common = ["--token-file", &tokens, "--node-reports", "COOKIES_NODES"];
    let archive = format!("{}/COOKIES", url("producer:producer"));
    let flags = [&common[..], &["--archive", &archive]].concat();
    let (producer, api) = start_producer(&dir, &flags).await?;
    let archive = format!("{}/COOKIES", url("node:node"));
    let flags = [&common[..], &["--archive", &archive]].concat();
    let store = embedded(&dir.path().join("store"));
    let mut before = Consumer::start(&dir, "node", &[&producer], &store, &flags).await?;
    producer.accept("alice", 1, "a").await?;
    before.wait_lookup("alice", json!({ "1": "a" })).await?;
    before.wait_settled(1).await?;
    before.process.drain(DRAIN_TIMEOUT).await?;
    // The same node without a stream. It reads the archive after a minute.
    let nowhere = ["http://127.0.0.1:1"];
    let node = Consumer::spawn(&dir, "node", &nowhere, &store, &flags).await?;
    let deletion = delete(&api, "/v1/users/alice").await?;
    wait_archived(&producer).await?;
    wait_logged(&node.process, "producer is absent").await?;
    node.check_unknown(["alice".to_owned()].into_iter()).await?;
    wait_done(&api, &deletion).await?;
    let nodes = &receipt(&api, &deletion["receipt"]).await?["nodes"];
    ensure!(
        *nodes == json!({"confirmed": 1, "pending": 0, "unknown": 0}),
        "{nodes}"
    );
    Ok(())
}
