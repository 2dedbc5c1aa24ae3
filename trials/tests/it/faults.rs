//! Processes that are killed and stopped, and networks that are cut as real ones are, by silence: nothing is lost
//! but what a killed producer took with it.

use std::{env, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    cluster::netns::{self, Direction, Network},
    mongod::Mongod,
    scrape::names,
    tools::skip,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    documents::Documents,
    harness::{
        Consumer, Producer, TIMEOUT, accept_all, embedded, machine, newest, numbered, wait_until,
    },
    process_wrapper::{consumer_in, producer_at},
    tools::e2e::Run,
};

/// Requests a second while networks are cut.
const RATE: u64 = 2_000;

/// Networks for `nodes` nodes; `None` where there can be none, which skips the test.
fn networks(nodes: usize) -> Result<Option<Network>> {
    if let Some(why) = netns::missing() {
        skip(format_args!("no network can be cut here: {why}"));
        return Ok(None);
    }
    Network::create(nodes).map(Some)
}

fn streams_port(producer: &Producer) -> Result<u16> {
    let port = producer.grpc.rsplit(':').next().context("it has a port")?;
    Ok(port.parse()?)
}

async fn wait_appended(producer: &Producer, cookies: u64) -> Result<()> {
    let timeout = TIMEOUT * 3;
    wait_until(timeout, "some more are accepted", async || {
        Ok(producer.appended().await? >= cookies)
    })
    .await
}

/// Cuts a node off for `seconds` under a load.
async fn cut_under_load(seconds: u64) -> Result<()> {
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
    let cut = async {
        wait_appended(&producer, RATE).await?;
        node.cut(Direction::Both, &[streams_port(&producer)?])?;
        let before = producer.appended().await?;
        wait_appended(&producer, RATE * (seconds + 1)).await?;
        let written = consumer.metrics().await?.count(names::WRITTEN, &[]);
        node.heal()?;
        consumer.wait_ready().await?;
        ensure!(
            written <= before,
            "{written} of {before} came before it was cut"
        );
        Ok(())
    };
    let (accepted, cut) = tokio::join!(accept_all(&plan), cut);
    cut?;
    accepted?;
    consumer.wait_settled(requests).await?;
    consumer
        .wait_knows(&newest(&plan.traffic, requests))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    let unknown = consumer.metrics().await?;
    assert_eq!(unknown.count("consumer_uncertain_restarts_total", &[]), 0);
    Ok(())
}

#[tokio::test]
async fn node_partitioned_for_five_seconds_loses_nothing() -> Result<()> {
    cut_under_load(5).await
}

#[tokio::test]
#[ignore = "takes more than a minute"]
async fn node_partitioned_for_a_minute_loses_nothing() -> Result<()> {
    cut_under_load(60).await
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
        node.cut(direction, &[streams_port(&producer)?])?;
    }
    producer.accept_numbers(101..=200).await?;
    for (consumer, node) in consumers.iter_mut().zip(network.nodes()) {
        consumer.wait_not_ready("no producer is connected").await?;
        node.heal()?;
    }
    let all = (1..=200).map(|number| {
        let (user, dsp, buyer) = numbered(number);
        (user, [(dsp, buyer)].into())
    });
    let all = all.collect();
    for consumer in &mut consumers {
        consumer.wait_ready().await?;
        // Not one of them twice.
        consumer.wait_settled(200).await?;
        consumer.wait_knows(&all).await?;
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
    ensure!(name.exists(), "{} is not there", name.display());
    drop(network);
    ensure!(!name.exists(), "{} is left", name.display());
    Ok(())
}

/// Stops and continues every process there is, one after the other, under a load.
#[tokio::test]
async fn paused_processes_of_each_kind_lose_nothing() -> Result<()> {
    let _machine = machine().await;
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(22, RATE, 14_000)?;
    let at = |second: u64| second * RATE;
    let freeze = async {
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
        // How long it stands still; nothing is waited for.
        sleep(Duration::from_secs(2)).await;
        producer.process.signal(Signal::CONT)
    };
    let (accepted, frozen) = tokio::join!(accept_all(&plan), freeze);
    frozen?;
    accepted?;
    consumer.wait_settled(14_000).await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents
        .wait_exactly(&newest(&plan.traffic, 14_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// The variable that names another seed.
const SEED_VARIABLE: &str = "FAULTS_SEED";

/// A soak with every fault there is, all drawn from a seed; it verifies every store cookie by cookie.
#[tokio::test(flavor = "multi_thread")]
async fn random_faults_lose_only_undelivered_cookies_of_killed_producers() -> Result<()> {
    let seed = env::var(SEED_VARIABLE).unwrap_or_else(|_| "5".to_owned());
    eprintln!("seed {seed}; ${SEED_VARIABLE} names another");
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
    let ended = Run::trials(&args).await?.end().await?;
    ended.expect(0)?;
    let events = ended.outcome["events"].as_array().context("events")?.len();
    // How many there are also depends on how long each takes, and on whether networks can be cut here.
    ensure!(events > 4, "{}", ended.outcome["events"]);
    ensure!(ended.verified("missing") + ended.verified("wrong") == 0);
    ensure!(ended.verified("stored") > 1_000);
    Ok(())
}
