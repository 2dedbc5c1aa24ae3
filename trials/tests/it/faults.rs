//! Tests with killed processes, paused processes, and network partitions that drop packets silently. Only undelivered cookies of a
//! killed producer may be lost.

use std::{env, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{
    cluster::netns::{self, Direction, Network},
    scrape::names,
    tools::skip,
};
use tokio::time::sleep;

use crate::{
    documents::Documents,
    harness::{
        Consumer, Producer, TIMEOUT, accept_all, embedded, expected_contents, numbered_cookie,
        wait_until,
    },
    mongods::shared,
    process_wrapper::{consumer_in, producer_at},
    tools::e2e::Run,
};

/// Requests per second during a partition.
const RATE: u64 = 2_000;

/// Network namespaces for `nodes` nodes, or `None` (a skipped test) without the necessary permissions.
fn networks(nodes: usize) -> Result<Option<Network>> {
    if let Some(reason) = netns::unavailable_reason() {
        skip(format_args!("cannot partition networks: {reason}"));
        return Ok(None);
    }
    Network::create(nodes).map(Some)
}

fn grpc_port(producer: &Producer) -> Result<u16> {
    let port = producer
        .grpc
        .rsplit(':')
        .next()
        .context("the gRPC URL has no port")?;
    Ok(port.parse()?)
}

async fn wait_appended(producer: &Producer, cookies: u64) -> Result<()> {
    let timeout = TIMEOUT * 3;
    wait_until(timeout, "more cookies are appended", async || {
        Ok(producer.appended().await? >= cookies)
    })
    .await
}

/// Partitions a node for `seconds` under load.
async fn partition_under_load(seconds: u64) -> Result<()> {
    let Some(network) = networks(1)? else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let producer = producer_at(network.host(), &dir).await?;
    let store = embedded(&dir.path().join("store"));
    let node = &network.nodes()[0];
    let mut consumer = consumer_in(node, &dir, "node", &producer, &store).await?;

    let requests = RATE * (seconds + 3);
    let plan = producer.ordered_load(21, RATE, requests)?;
    let partition = async {
        wait_appended(&producer, RATE).await?;
        node.partition(Direction::Both, &[grpc_port(&producer)?])?;
        let before = producer.appended().await?;
        wait_appended(&producer, RATE * (seconds + 1)).await?;
        let written = consumer.metrics().await?.count(names::WRITTEN, &[]);
        node.heal()?;
        consumer.wait_ready().await?;
        ensure!(
            written <= before,
            "{written} cookies were written, but only {before} were appended before the partition"
        );
        Ok(())
    };
    let (accepted, partitioned) = tokio::join!(accept_all(&plan), partition);
    partitioned?;
    accepted?;
    consumer.wait_settled(requests).await?;
    consumer
        .wait_lookups(&expected_contents(&plan.traffic, requests))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    let metrics = consumer.metrics().await?;
    assert_eq!(metrics.count("consumer_uncertain_restarts_total", &[]), 0);
    Ok(())
}

#[tokio::test]
async fn node_partitioned_for_five_seconds_loses_nothing() -> Result<()> {
    partition_under_load(5).await
}

#[tokio::test]
#[ignore = "takes more than a minute"]
async fn node_partitioned_for_a_minute_loses_nothing() -> Result<()> {
    partition_under_load(60).await
}

#[tokio::test]
async fn half_open_connection_is_detected_and_resumes_at_its_cursor() -> Result<()> {
    let Some(network) = networks(2)? else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let producer = producer_at(network.host(), &dir).await?;
    let directions = [Direction::ToNode, Direction::FromNode];
    let mut consumers = Vec::new();
    for (node, direction) in network.nodes().iter().zip(directions) {
        let name = format!("{direction:?}");
        let store = embedded(&dir.path().join(&name));
        let consumer = consumer_in(node, &dir, &name, &producer, &store).await?;
        consumers.push(consumer);
    }
    producer.accept_numbers(1..=100).await?;
    for consumer in &consumers {
        consumer.wait_settled(100).await?;
    }
    for (node, direction) in network.nodes().iter().zip(directions) {
        node.partition(direction, &[grpc_port(&producer)?])?;
    }
    producer.accept_numbers(101..=200).await?;
    for (consumer, node) in consumers.iter_mut().zip(network.nodes()) {
        consumer.wait_not_ready("no producer is connected").await?;
        node.heal()?;
    }
    let all = (1..=200).map(|number| {
        let (user, dsp, buyer) = numbered_cookie(number);
        (user, [(dsp, buyer)].into())
    });
    let all = all.collect();
    for consumer in &mut consumers {
        consumer.wait_ready().await?;
        // No cookie is received twice.
        consumer.wait_settled(200).await?;
        consumer.wait_lookups(&all).await?;
        assert_eq!(consumer.lost().await?, 0);
        let metrics = consumer.metrics().await?;
        assert_eq!(metrics.count("consumer_stream_violations_total", &[]), 0);
    }
    Ok(())
}

#[tokio::test]
async fn dropped_network_removes_its_namespaces() -> Result<()> {
    let Some(network) = networks(2)? else {
        return Ok(());
    };
    let (_, args) = network.nodes()[1].inside(Path::new("true"), &[]);
    let name = Path::new("/run/netns").join(&args[2]);
    ensure!(name.exists(), "{} does not exist", name.display());
    drop(network);
    ensure!(!name.exists(), "{} still exists", name.display());
    Ok(())
}

/// Pauses and resumes each process in turn, under load.
#[tokio::test]
async fn paused_processes_of_each_kind_lose_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(22, RATE, 14_000)?;
    let at = |second: u64| second * RATE;
    let pauses = async {
        wait_appended(&producer, at(1)).await?;
        consumer.process.signal(Signal::STOP)?;
        wait_appended(&producer, at(2)).await?;
        consumer.process.signal(Signal::CONT)?;
        wait_appended(&producer, at(3)).await?;
        mongod.pause()?;
        wait_appended(&producer, at(4)).await?;
        mongod.resume()?;
        wait_appended(&producer, at(5)).await?;
        producer.process.signal(Signal::STOP)?;
        // The length of the pause, not a wait for a condition.
        sleep(Duration::from_secs(2)).await;
        producer.process.signal(Signal::CONT)
    };
    let (accepted, paused) = tokio::join!(accept_all(&plan), pauses);
    paused?;
    accepted?;
    consumer.wait_settled(14_000).await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents
        .wait_exactly(&expected_contents(&plan.traffic, 14_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// Environment variable that overrides the seed.
const SEED_VARIABLE: &str = "FAULTS_SEED";

/// A soak run with all kinds of faults, drawn from a seed. It verifies every store cookie by cookie.
#[tokio::test(flavor = "multi_thread")]
async fn random_faults_lose_only_undelivered_cookies_of_killed_producers() -> Result<()> {
    let seed = env::var(SEED_VARIABLE).unwrap_or_else(|_| "5".to_owned());
    eprintln!("seed {seed}; set {SEED_VARIABLE} to use another seed");
    let mut args = vec![
        "soak",
        "--for",
        "14s",
        "-l",
        "500",
        "--store",
        "mixed",
        "--consumers",
        "2",
        "--producers",
        "2",
        "--seed",
        &seed,
        "--partition-max",
        "3s",
        "--fault=kill-consumer=6s",
        "--fault=stop-consumer=6s",
        "--fault=restart-consumer=6s",
        "--fault=kill-mongod=6s",
        "--fault=stop-mongod=6s",
        "--fault=restart-mongod=6s",
        "--fault=stop-producer=6s",
        "--fault=kill-producer=8s",
    ];
    if networks(1)?.is_some() {
        args.extend([
            "--fault=partition-node=6s",
            "--fault=drop-inbound-node=6s",
            "--fault=drop-outbound-node=6s",
        ]);
    }
    let result = Run::trials(&args).await?.finish().await?;
    result.expect_exit(0)?;
    let events = result.rows("Faults");
    // The number of events also depends on the duration of each fault, and on whether networks can be partitioned.
    ensure!(events.len() > 4, "{events:?}");
    ensure!(result.verified("missing") + result.verified("wrong") == 0.0);
    ensure!(result.verified("stored") > 1_000.0);
    Ok(())
}
