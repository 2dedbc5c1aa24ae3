//! Two regions with the configurations of `deploy/regions`: each has a NATS server, a producer, and a node that only follows the archive.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::stream::Config;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    nats,
    programs::{ServerProcess, free_address},
};

use crate::{
    archive::create_stream,
    deletions::{delete, receipt, start_producer, wait_done},
    harness::{Consumer, Producer, embedded, numbered_contents},
};

const HUB: &str = include_str!("../../../deploy/regions/hub.conf");
const LEAF: &str = include_str!("../../../deploy/regions/leaf.conf");
const COOKIES: &str = include_str!("../../../deploy/regions/cookies.json");
const ALL_OF_HUB: &str = include_str!("../../../deploy/regions/all-hub.json");
const ALL_OF_LEAF: &str = include_str!("../../../deploy/regions/all-leaf.json");
const NODES: &str = include_str!("../../../deploy/archive/nodes.json");

struct Region {
    _dir: TempDir,
    nats: ServerProcess,
    address: SocketAddr,
}

impl Region {
    /// Starts the server with its configuration, at other addresses.
    async fn start(config: &str, leaf_nodes: SocketAddr) -> Result<Self> {
        let dir = TempDir::new()?;
        let leaf_nodes = leaf_nodes.to_string();
        let address = free_address()?;
        let replaced = [
            ("0.0.0.0:7422", &*leaf_nodes),
            ("hub-1:7422", &leaf_nodes),
            ("http: 127.0.0.1:8222", ""),
            // Flags set these.
            ("store_dir: /var/lib/nats", ""),
            ("300G", "1G"),
        ];
        let settings = replaced
            .iter()
            .fold(config.to_owned(), |it, (from, to)| it.replace(from, to));
        let nats = nats::start_at(dir.path(), &settings, address).await?;
        Ok(Self {
            _dir: dir,
            nats,
            address,
        })
    }

    fn url(&self, user: &str) -> String {
        format!("nats://{user}:password-of-{user}@{}", self.address)
    }

    /// Creates a stream, with less space.
    async fn create(&self, stream: &str) -> Result<()> {
        let config: Config = serde_json::from_str(stream)?;
        let config = Config {
            num_replicas: 1,
            max_bytes: 50 << 20,
            ..config
        };
        create_stream(&self.url("admin"), config).await
    }

    async fn start_producer(
        &self,
        dir: &TempDir,
        id: &str,
        tokens: &str,
    ) -> Result<(Producer, String)> {
        let archive = format!("{}/COOKIES", self.url("producer"));
        let flags = ["--id", id, "--archive", &archive, "--token-file", tokens];
        start_producer(dir, &[&flags[..], &REPORTS].concat()).await
    }

    async fn start_node(
        &self,
        dir: &TempDir,
        name: &str,
        store: &Path,
        tokens: &str,
    ) -> Result<Consumer> {
        let archive = format!("{}/COOKIES_ALL", self.url("consumer"));
        let flags = ["--archive", &archive, "--archive-mode", "follow"];
        let flags = [&flags[..], &["--token-file", tokens], &REPORTS].concat();
        let consumer = Consumer::start(dir, name, &[], &embedded(store), &flags).await?;
        consumer.wait_ready_with_state("current; following").await?;
        Ok(consumer)
    }
}

const REPORTS: [&str; 2] = ["--node-reports", "COOKIES_NODES"];

#[tokio::test]
async fn nodes_of_two_regions_have_the_cookies_and_deletions_of_both() -> Result<()> {
    let leaf_nodes = free_address()?;
    let hub = Region::start(HUB, leaf_nodes).await?;
    let mut leaf = Region::start(LEAF, leaf_nodes).await?;
    for (region, all) in [(&hub, ALL_OF_HUB), (&leaf, ALL_OF_LEAF)] {
        for stream in [COOKIES, all, NODES] {
            region.create(stream).await.context("a stream")?;
        }
    }
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "the-token-of-all-regions")?;
    let tokens = tokens.display().to_string();
    let (first, api) = hub.start_producer(&dir, "first", &tokens).await?;
    let (second, _) = leaf.start_producer(&dir, "second", &tokens).await?;
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    let nodes = [
        hub.start_node(&dir, "node-of-hub", &one, &tokens).await?,
        leaf.start_node(&dir, "node-of-leaf", &other, &tokens)
            .await?,
    ];

    first.accept_numbers(1..=300).await?;
    second.accept_numbers(301..=600).await?;
    second.accept("alice", 7, "a").await?;
    for node in &nodes {
        node.wait_lookups(&numbered_contents(1..=600)).await?;
        node.wait_lookup("alice", json!({"7": "a"})).await?;
    }

    // While the server of one region is away, both producers continue.
    leaf.nats.kill()?;
    first.accept_numbers(601..=900).await?;
    second.accept_numbers(901..=1_200).await?;
    nodes[0].wait_lookups(&numbered_contents(601..=900)).await?;
    leaf.nats.restart().await?;
    for node in &nodes {
        node.wait_lookups(&numbered_contents(1..=1_200)).await?;
        ensure!(node.lost().await? == 0);
    }

    let deletion = delete(&api, "/v1/users/alice").await?;
    wait_done(&api, &deletion).await?;
    let counted = &receipt(&api, &deletion["receipt"]).await?["nodes"];
    ensure!(counted["confirmed"] == 2, "{counted}");
    for node in &nodes {
        node.check_unknown(["alice".to_owned()].into_iter()).await?;
    }
    Ok(())
}
