//! Tests of the store latency of real cookies during a flood of fake DSPs. Run them with dist builds on an idle
//! machine: `COOKIESYNC_BIN_DIR=… cargo test --test it -- --ignored --nocapture --test-threads=1 fake_dsps`

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::load;
use mongodb::Client;
use tempfile::TempDir;
use testkit::{http::HttpClient, scrape::names};
use tokio::time::{Instant, interval};

use crate::{
    harness::{
        Consumer, Producer, TIMEOUT, accept_all, embedded, reserve_machine, sync_request,
        wait_until,
    },
    mongods::shared,
    stream::flow_control::settled_or_lost_cookies,
};

/// Concurrent loads of real and fake cookies.
struct Mix {
    real_per_second: u64,
    time: Duration,
    fake: u32,
    fake_per_second: u32,
}

/// Waits until every accepted cookie has an outcome at the node or is in its retry queue.
async fn wait_processed(producer: &Producer, node: &Consumer) -> Result<()> {
    let accepted = producer.appended().await?;
    wait_until(TIMEOUT, "every cookie is processed", async || {
        let metrics = node.metrics().await?;
        Ok(
            settled_or_lost_cookies(&metrics) + metrics.count(names::RETRY_QUEUE_COOKIES, &[])
                == accepted,
        )
    })
    .await
}

/// Waits until the retry queue is empty: every DSP has a slot or is rejected.
async fn wait_retry_queue_empty(node: &Consumer, timeout: Duration) -> Result<()> {
    wait_until(timeout, "the retry queue is empty", async || {
        Ok(node.metrics().await?.count(names::RETRY_QUEUE_COOKIES, &[]) == 0)
    })
    .await
}

/// Sends one cookie each for new fake DSPs, starting at id `first`.
async fn send_fake(producer: &Producer, mix: &Mix, first: u32) -> Result<Duration> {
    let began = Instant::now();
    let per_tick = (mix.fake_per_second / 10).max(1);
    let mut ticks = interval(Duration::from_millis(100));
    let mut connection = HttpClient::connect(&producer.http).await?;
    let mut sent = 0;
    while sent < mix.fake {
        ticks.tick().await;
        let some = sent..mix.fake.min(sent + per_tick);
        let requests = some
            .clone()
            .map(|number| sync_request("mallory", first + number, "made-up"));
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

/// Runs a mix and prints its results. Returns each node's p99 of the time from acceptance to storage, in seconds.
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
    let (real, fake) = tokio::join!(accept_all(&plan), send_fake(producer, mix, first));
    let fake_time = real.and(fake)?;
    let mut quantiles = Vec::new();
    for (node, before) in nodes.iter().zip(before) {
        wait_processed(producer, node).await?;
        let after = node.metrics().await?;
        let of = |samples: &testkit::scrape::Samples| samples.histogram(names::STORED_SECONDS);
        let stored = of(&after).since(&of(&before));
        let quantile = |quantile| stored.quantile(quantile).context("no cookie was stored");
        let (p50, p99) = (quantile(0.5)?, quantile(0.99)?);
        let no_slot = [("reason", "no_dsp_slot")];
        let count = |name, labels: &[(&str, &str)]| after.count(name, labels);
        println!(
            "{what}: {} real stored, p50 {:.0} ms, p99 {:.0} ms; {} fake in {fake_time:.1?}, {} rejected in total, \
             {} slots, {} lost",
            stored.count(),
            1e3 * p50,
            1e3 * p99,
            mix.fake,
            count(names::FAILED, &no_slot),
            count(names::DSP_SLOTS, &[]),
            node.lost().await?,
        );
        quantiles.push(p99);
    }
    Ok(quantiles)
}

/// Sends cookies until the DSPs of the real load have their slots.
async fn warm_up(producer: &Producer, nodes: &[&Consumer]) -> Result<()> {
    producer.accept_load(1, 20_000).await?;
    for node in nodes {
        wait_processed(producer, node).await?;
        wait_retry_queue_empty(node, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an idle machine"]
async fn three_thousand_fake_dsps_get_only_the_free_slots_of_three_nodes() -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let one = shared::start().await?;
    let two = shared::start().await?;
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
        fake: 0,
        fake_per_second: 0,
    };
    run("without", &producer, &nodes, &calm, 1_000_000).await?;
    let attack = Mix {
        fake: 3_000,
        fake_per_second: 7_000,
        ..calm
    };
    run("attacked", &producer, &nodes, &attack, 2_000_000).await?;
    for node in &nodes {
        wait_retry_queue_empty(node, 10 * TIMEOUT).await?;
        let metrics = node.metrics().await?;
        let rejected = metrics.count(names::FAILED, &[("reason", "no_dsp_slot")]);
        // The 20 DSPs of the real load have slots already.
        ensure!(rejected == 3_000 - (512 - 20), "{rejected}");
    }
    for mongod in [&one, &two] {
        let client = Client::with_uri_str(mongod.uri()).await?;
        let names = client.list_database_names().await?;
        let dsps = names.iter().filter_map(|name| name.parse::<u32>().ok());
        let fake = dsps.filter(|dsp_id| *dsp_id >= 2_000_000).count();
        println!("{fake} databases of fake DSPs");
        ensure!(fake <= 512);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and needs an idle machine"]
async fn store_latency_is_measured_with_two_hundred_fake_dsps_per_second() -> Result<()> {
    let _machine = reserve_machine().await;
    let calm = Mix {
        real_per_second: 40_000,
        time: Duration::from_secs(10),
        fake: 0,
        fake_per_second: 0,
    };
    let attack = Mix {
        fake: 2_000,
        fake_per_second: 200,
        ..calm
    };
    for repetition in 1..=3 {
        let mut p99 = Vec::new();
        for (what, mix) in [("without", &calm), ("with", &attack)] {
            // Each run has a new server, because existing data makes mongod slower.
            let dir = TempDir::new()?;
            let mongod = shared::start().await?;
            let producer = Producer::start(&dir, &[]).await?;
            let flags = ["--unlisted-dsps-max", "4096"];
            let (all, store) = ([&producer], mongod.uri());
            let node = Consumer::start(&dir, "node", &all, &store, &flags).await?;
            warm_up(&producer, &[&node]).await?;
            p99.extend(run(what, &producer, &[&node], mix, 1_000_000).await?);
        }
        println!(
            "repetition {repetition}: p99 grew by a factor of {:.2}",
            p99[1] / p99[0]
        );
    }
    Ok(())
}
