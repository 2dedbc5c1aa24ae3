//! Two regions with the configurations of `deploy/regions`: each has a NATS server, a producer, and a node that only follows the archive.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::stream::Config;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    nats,
    programs::{ServerProcess, free_address},
};
use tokio::time::{Instant, sleep};

use crate::{
    archive::{create_stream, wait_archived},
    deletions::{delete, receipt, start_producer, wait_done},
    harness::{Consumer, Producer, embedded, numbered_contents, wait_until},
    tcp_proxy::TcpProxy,
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

/// Duration of the long cut, and maximum time until a source of a stream then continues: it waits for up to two minutes between attempts.
const CUT: Duration = Duration::from_secs(600);
const RESUMED_WITHIN: Duration = Duration::from_secs(300);

const REPORTS: [&str; 2] = ["--node-reports", "COOKIES_NODES"];

/// Two regions, each with a server, a producer, and a node.
struct Regions {
    hub: Region,
    leaf: Region,
    /// The connection of the leaf to the hub.
    link: TcpProxy,
    producers: [Producer; 2],
    /// API of the hub's producer.
    api: String,
    nodes: [Consumer; 2],
    _dir: TempDir,
}

impl Regions {
    async fn start() -> Result<Self> {
        let leaf_nodes = free_address()?;
        let link = TcpProxy::to(&leaf_nodes.to_string()).await?;
        let hub = Region::start(HUB, leaf_nodes).await?;
        let leaf = Region::start(LEAF, link.address()).await?;
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
        Ok(Self {
            hub,
            leaf,
            link,
            producers: [first, second],
            api,
            nodes,
            _dir: dir,
        })
    }
}

#[tokio::test]
async fn nodes_of_two_regions_have_the_cookies_and_deletions_of_both() -> Result<()> {
    let mut regions = Regions::start().await?;
    let [first, second] = &regions.producers;
    first.accept_numbers(1..=300).await?;
    second.accept_numbers(301..=600).await?;
    second.accept("alice", 7, "a").await?;
    for node in &regions.nodes {
        node.wait_lookups(&numbered_contents(1..=600)).await?;
        node.wait_lookup("alice", json!({"7": "a"})).await?;
    }

    // While the server of one region is away, both producers continue.
    regions.leaf.nats.kill()?;
    first.accept_numbers(601..=900).await?;
    second.accept_numbers(901..=1_200).await?;
    let of_hub = &regions.nodes[0];
    of_hub.wait_lookups(&numbered_contents(601..=900)).await?;
    regions.leaf.nats.restart().await?;
    for node in &regions.nodes {
        node.wait_lookups(&numbered_contents(1..=1_200)).await?;
        ensure!(node.lost().await? == 0);
    }

    let api = &regions.api;
    let deletion = delete(api, "/v1/users/alice").await?;
    wait_done(api, &deletion).await?;
    let counted = &receipt(api, &deletion["receipt"]).await?["nodes"];
    ensure!(counted["confirmed"] == 2, "{counted}");
    for node in &regions.nodes {
        node.check_unknown(["alice".to_owned()].into_iter()).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "takes a quarter of an hour"]
async fn regions_become_equal_after_a_cut_of_ten_minutes_and_kills() -> Result<()> {
    let mut regions = Regions::start().await?;
    let mut accepted = 0;
    regions.link.disconnect().await;
    let began = Instant::now();
    for round in 0.. {
        if began.elapsed() > CUT {
            break;
        }
        for producer in &regions.producers {
            let numbers = accepted + 1..=accepted + 100;
            producer.accept_numbers(numbers).await?;
            accepted += 100;
            // A killed producer loses what is not archived.
            wait_archived(producer).await?;
        }
        let at = round / 3 % 2;
        match round % 3 {
            0 => {
                let producer = &mut regions.producers[at];
                producer.process.kill()?;
                producer.process.restart()?;
                producer.wait_ready().await?;
            }
            1 => {
                let node = &mut regions.nodes[at];
                node.process.kill()?;
                node.process.restart()?;
            }
            _ => {
                let region = [&mut regions.hub, &mut regions.leaf].into_iter().nth(at);
                let nats = &mut region.context("one of two")?.nats;
                nats.kill()?;
                nats.restart().await?;
            }
        }
        sleep(Duration::from_secs(5)).await;
    }
    regions.link.reconnect().await?;
    let restored = Instant::now();
    for node in &regions.nodes {
        let last = numbered_contents(accepted - 199..=accepted);
        wait_until(RESUMED_WITHIN, "the last cookies", async || {
            Ok(node.wait_lookups(&last).await.is_ok())
        })
        .await?;
        node.wait_lookups(&numbered_contents(1..=accepted)).await?;
        ensure!(node.lost().await? == 0);
    }
    println!(
        "{accepted} cookies, equal {:?} after the cut",
        restored.elapsed()
    );
    Ok(())
}
