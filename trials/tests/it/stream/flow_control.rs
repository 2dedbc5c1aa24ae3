//! Tests of HTTP/2 flow control between producers and a consumer. All windows share one budget. The consumer's memory therefore stays
//! below the documented limit, for any number of producers and any state of its store.

use std::{num::NonZeroU64, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bench::load;
use tempfile::TempDir;
use testkit::{
    memory::Memory,
    scrape::{Samples, names},
};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, accept_all, reserve_machine, settled, wait_until},
    mongods::shared,
};

/// The maximum memory of a consumer in deploy/README.md, without `--refresh-bytes`.
const DOCUMENTED_BYTES: u64 = 384 << 20;

const PRODUCERS: u64 = 8;

/// Cookies with an outcome, including lost ones.
pub(crate) fn settled_or_lost_cookies(metrics: &Samples) -> u64 {
    settled(metrics) + metrics.count(names::LOST, &[])
}

async fn wait_settled(consumer: &Consumer, cookies: u64, timeout: Duration) -> Result<()> {
    wait_until(timeout, "every cookie has an outcome", async || {
        let settled = settled_or_lost_cookies(&consumer.metrics().await?);
        ensure!(
            settled <= cookies,
            "{settled} cookies have an outcome, but only {cookies} were accepted"
        );
        Ok(settled == cookies)
    })
    .await
}

#[tokio::test]
async fn window_of_one_of_many_producers_is_small_and_throttles_it() -> Result<()> {
    const COOKIES: u64 = 100_000;
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    // Chunks larger than a window are delivered as well.
    let producer = Producer::start(&dir, &["--chunk-bytes", "1MiB"]).await?;
    let others = vec!["http://127.0.0.1:1"; 100].join(",");
    let flags = ["--producer", &others, "--buffer-bytes", "64KiB"];
    let more = ["--batch-cookies", "1000", "--refresh-interval", "0s"];
    let flags = [flags, more].concat();
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    mongod.pause()?;
    producer.accept_load(1, COOKIES).await?;
    let sent = async || {
        let metrics = producer.metrics().await?;
        anyhow::Ok(metrics.count(names::SENT_BYTES, &[("subscriber", "node")]))
    };
    wait_until(TIMEOUT, "the window is full", async || {
        Ok(sent().await? > 1 << 20)
    })
    .await?;
    consumer.wait_not_ready("store: ").await?;
    // One window, three batches and the buffer with up to one chunk each, and unsent data.
    let sent = sent().await?;
    ensure!(sent < 5 << 20, "{sent} bytes were sent");
    mongod.resume()?;
    consumer.wait_settled(COOKIES).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// Eight producers at `rate` each while mongod is paused. Afterwards every cookie must have an outcome.
async fn check_memory_with_a_paused_mongod(rate: u64, time: Duration) -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let mut producers = Vec::new();
    for _ in 0..PRODUCERS {
        producers.push(Producer::start(&dir, &[]).await?);
    }
    let all: Vec<_> = producers.iter().collect();
    // Disables duplicate detection, whose memory is documented separately.
    let flags = ["--refresh-interval", "0s"];
    let consumer = Consumer::start(&dir, "node", &all, &mongod.uri(), &flags).await?;
    for (seed, producer) in (100..).zip(&producers) {
        producer.accept_load(seed, 100).await?;
    }
    wait_settled(&consumer, 100 * PRODUCERS, TIMEOUT).await?;
    mongod.pause()?;
    let requests = rate * PRODUCERS * time.as_secs();
    let urls = producers
        .iter()
        .map(|producer| producer.load(1)?.urls.pop().context("a URL"));
    let plan = load::Plan {
        urls: urls.collect::<Result<_>>()?,
        connections: usize::try_from(PRODUCERS)?.try_into()?,
        requests: Some(requests),
        keeps_history: false,
        ..producers[0].load(1)?
    };
    accept_all(&plan.rate(NonZeroU64::new(rate * PRODUCERS).context("no rate")?)).await?;
    consumer.wait_not_ready("store: ").await?;
    let process = consumer.process.id();
    let peak = || {
        Memory::of(process)
            .context("the consumer has ended")
            .map(|memory| memory.peak_bytes)
    };
    let paused_peak = peak()?;
    mongod.resume()?;
    let accepted = requests + 100 * PRODUCERS;
    wait_settled(&consumer, accepted, TIMEOUT + 20 * time).await?;
    let (peak, lost) = (peak()?, consumer.lost().await?);
    println!(
        "{requests} cookies, {lost} lost, peak {} MiB while paused, {} MiB in total",
        paused_peak >> 20,
        peak >> 20
    );
    ensure!(peak <= DOCUMENTED_BYTES, "peak of {peak} bytes");
    Ok(())
}

#[tokio::test]
async fn eight_producers_and_a_paused_mongod_stay_within_the_documented_memory() -> Result<()> {
    check_memory_with_a_paused_mongod(2_500, Duration::from_secs(10)).await
}

#[tokio::test]
#[ignore = "takes minutes and dist builds"]
async fn eight_producers_at_30_000_per_second_and_a_paused_mongod_stay_within_the_documented_memory()
-> Result<()> {
    check_memory_with_a_paused_mongod(30_000, Duration::from_secs(20)).await
}
