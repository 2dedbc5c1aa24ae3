//! What real cookies feel of DSPs that somebody makes up; measured, with dist builds and nothing else running:
//! `COOKIESYNC_BIN_DIR=… cargo test --test it -- --ignored --nocapture --test-threads=1 invented`

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{http::HttpClient, load, mongod::Mongod, scrape::names};
use mongodb::Client;
use tempfile::TempDir;
use tokio::time::{Instant, interval};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, accept_all, embedded, machine, request, wait_until},
    stream::flow_control::settled_or_lost,
};

/// What comes in beside each other.
struct Mix {
    real_per_second: u64,
    time: Duration,
    invented: u32,
    invented_per_second: u32,
}

/// Waits until the node has settled all that was accepted, or set it aside.
async fn wait_through(producer: &Producer, node: &Consumer) -> Result<()> {
    let accepted = producer.appended().await?;
    wait_until(TIMEOUT, "the node is through", async || {
        let metrics = node.metrics().await?;
        Ok(settled_or_lost(&metrics) + metrics.count(names::RETRY_QUEUE_COOKIES, &[]) == accepted)
    })
    .await
}

/// Waits until every DSP has its slot, or is refused.
async fn wait_none_aside(node: &Consumer, timeout: Duration) -> Result<()> {
    wait_until(timeout, "nothing is set aside", async || {
        Ok(node.metrics().await?.count(names::RETRY_QUEUE_COOKIES, &[]) == 0)
    })
    .await
}

/// DSPs of their own for each run.
async fn invent(producer: &Producer, mix: &Mix, first: u32) -> Result<Duration> {
    let began = Instant::now();
    let at_once = (mix.invented_per_second / 10).max(1);
    let mut ticks = interval(Duration::from_millis(100));
    let mut connection = HttpClient::connect(&producer.http).await?;
    let mut sent = 0;
    while sent < mix.invented {
        ticks.tick().await;
        let some = sent..mix.invented.min(sent + at_once);
        let requests = some
            .clone()
            .map(|number| request("mallory", first + number, "made-up"));
        connection
            .send(requests.collect::<String>().as_bytes())
            .await?;
        for _ in some.clone() {
            ensure!(connection.response().await?.status == 200);
        }
        sent = some.end;
    }
    Ok(began.elapsed())
}

/// Runs a mix; says what became of it, and returns each node's p99 from accepted to stored in seconds.
async fn run(
    what: &str,
    producer: &Producer,
    nodes: &[&Consumer],
    mix: &Mix,
    first: u32,
) -> Result<Vec<f64>> {
    let mut before = Vec::new();
    for node in nodes {
        before.push(node.metrics().await?);
    }
    let plan = load::Plan {
        requests: Some(mix.real_per_second * mix.time.as_secs()),
        keeps_history: false,
        ..producer.load(u64::from(first))?
    };
    let rate = NonZeroU64::new(mix.real_per_second).context("no rate")?;
    let plan = plan.rate(rate);
    let (real, invented) = tokio::join!(accept_all(&plan), invent(producer, mix, first));
    let invented = real.and(invented)?;
    let mut quantiles = Vec::new();
    for (node, before) in nodes.iter().zip(before) {
        wait_through(producer, node).await?;
        let after = node.metrics().await?;
        let of = |samples: &bench::scrape::Samples| samples.histogram(names::STORED_SECONDS);
        let stored = of(&after).since(&of(&before));
        let quantile = |quantile| stored.quantile(quantile).context("nothing is stored");
        let (p50, p99) = (quantile(0.5)?, quantile(0.99)?);
        let refused = [("reason", "no_dsp_slot")];
        let count = |name, labels: &[(&str, &str)]| after.count(name, labels);
        println!(
            "{what}: {} real stored, p50 {:.0} ms, p99 {:.0} ms; {} invented in {invented:.1?}, {} refused in all, \
             {} slots, {} lost",
            stored.count(),
            1e3 * p50,
            1e3 * p99,
            mix.invented,
            count(names::FAILED, &refused),
            count(names::DSP_SLOTS, &[]),
            node.lost().await?,
        );
        quantiles.push(p99);
    }
    Ok(quantiles)
}

/// Warms a node up, so that the DSPs of the real load have their slots.
async fn warm_up(producer: &Producer, nodes: &[&Consumer]) -> Result<()> {
    producer.accept_load(1, 20_000).await?;
    for node in nodes {
        wait_through(producer, node).await?;
        wait_none_aside(node, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes all of a machine"]
async fn three_thousand_fake_dsps_get_only_the_free_slots_of_three_nodes() -> Result<()> {
    let _machine = machine().await;
    let dir = TempDir::new()?;
    let one = Mongod::start(&dir.path().join("mongod-1")).await?;
    let two = Mongod::start(&dir.path().join("mongod-2")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let start = async |name: &str, store: String| {
        Consumer::start(&dir, name, &[&producer], &store, &[]).await
    };
    let nodes = [
        start("node-1", one.uri()).await?,
        start("node-2", two.uri()).await?,
        start("node-3", embedded(&dir.path().join("store"))).await?,
    ];
    let nodes: Vec<_> = nodes.iter().collect();
    warm_up(&producer, &nodes).await?;
    let calm = Mix {
        real_per_second: 1_000,
        time: Duration::from_secs(30),
        invented: 0,
        invented_per_second: 0,
    };
    run("without", &producer, &nodes, &calm, 1_000_000).await?;
    let attack = Mix {
        invented: 3_000,
        invented_per_second: 7_000,
        ..calm
    };
    run("attacked", &producer, &nodes, &attack, 2_000_000).await?;
    for node in &nodes {
        wait_none_aside(node, 10 * TIMEOUT).await?;
        let metrics = node.metrics().await?;
        let refused = metrics.count(names::FAILED, &[("reason", "no_dsp_slot")]);
        // 20 DSPs of the load had slots before.
        ensure!(refused == 3_000 - (512 - 20), "{refused}");
    }
    for mongod in [&one, &two] {
        let client = Client::with_uri_str(mongod.uri()).await?;
        let names = client.list_database_names().await?;
        let invented = names.iter().filter_map(|name| name.parse::<u32>().ok());
        let invented = invented.filter(|dsp_id| *dsp_id >= 2_000_000).count();
        println!("{invented} invented databases");
        ensure!(invented <= 512);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and all of a machine"]
async fn store_latency_is_measured_with_two_hundred_fake_dsps_per_second() -> Result<()> {
    let _machine = machine().await;
    let calm = Mix {
        real_per_second: 40_000,
        time: Duration::from_secs(10),
        invented: 0,
        invented_per_second: 0,
    };
    let attack = Mix {
        invented: 2_000,
        invented_per_second: 200,
        ..calm
    };
    for turn in 1..=3 {
        let mut p99 = Vec::new();
        for (what, mix) in [("without", &calm), ("with", &attack)] {
            // On a server of its own each: what is there makes mongod slower.
            let dir = TempDir::new()?;
            let mongod = Mongod::start(&dir.path().join("mongod")).await?;
            let producer = Producer::start(&dir, &[]).await?;
            let flags = ["--unlisted-dsps-max", "4096"];
            let (all, store) = ([&producer], mongod.uri());
            let node = Consumer::start(&dir, "node", &all, &store, &flags).await?;
            warm_up(&producer, &[&node]).await?;
            p99.extend(run(what, &producer, &[&node], mix, 1_000_000).await?);
        }
        println!("turn {turn}: {:.2} times", p99[1] / p99[0]);
    }
    Ok(())
}
