//! Reload of the configuration of running processes.

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::{admin, scrape::names};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Addresses, Consumer, Producer, TIMEOUT, embedded, wait_logged, wait_until};

/// Waits until the process has counted `times` reloads with this outcome.
async fn wait_reloads(address: &str, process: &str, outcome: &str, times: u64) -> Result<()> {
    let name = format!("{process}_config_reloads_total");
    let what = format!("{address} has counted {times} reloads: {outcome}");
    wait_until(TIMEOUT, &what, async || {
        let reloads = admin::metrics(address)
            .await?
            .count(&name, &[("outcome", outcome)]);
        Ok(reloads >= times)
    })
    .await
}

#[tokio::test]
async fn producer_applies_reloadable_settings_and_logs_those_that_need_a_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("producer.toml");
    std::fs::write(&file, "http_connections = 100\n")?;
    let config = format!("--config={}", file.display());
    let addresses = Addresses::free()?;
    let mut producer = Producer::start_at(&dir, &addresses, &[&config]).await?;
    let _first = std::net::TcpStream::connect(&producer.http)?;

    std::fs::write(
        &file,
        "http_connections = 1\nlog_bytes = '2GiB'\nhttp = '127.0.0.1:1'\n",
    )?;
    wait_reloads(&producer.admin, "producer", "needs_restart", 1).await?;
    wait_logged(&producer.process, "--http-connections").await?;
    // A flag sets the address and overrides the file, so it has not changed.
    wait_logged(&producer.process, "needs_restart=\"--log-bytes\"").await?;
    let rejected = |metrics: &bench::scrape::Samples| {
        metrics.count(
            "producer_http_connections_closed_total",
            &[("reason", "too_many")],
        )
    };
    ensure!(rejected(&producer.metrics().await?) == 0);
    let _second = std::net::TcpStream::connect(&producer.http)?;
    wait_until(TIMEOUT, "the second connection is rejected", async || {
        Ok(rejected(&producer.metrics().await?) == 1)
    })
    .await?;

    std::fs::write(&file, "http_connections = none\nlog_byte = 1\n")?;
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "failed", 1).await?;
    std::fs::write(&file, "http_connections = 2\n")?;
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "done", 1).await
}

#[tokio::test]
async fn dsp_list_and_unknown_dsp_policy_are_reloaded() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("producer.toml");
    std::fs::write(&file, "dsps = ['17']\n")?;
    let config = format!("--config={}", file.display());
    let mut producer = Producer::start(&dir, &[&config]).await?;
    producer.accept("alice", 17, "a").await?;
    producer.accept("alice", 99, "a").await?;

    std::fs::write(&file, "dsps = ['17']\nunknown_dsps = 'refuse'\n")?;
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "done", 1).await?;
    producer.accept("alice", 17, "b").await?;
    let rejected = admin::sync(&producer.http, "alice", 99, "b").await?;
    let body = "parameter d (the DSP id) is not a known DSP\n";
    assert_eq!((rejected.status, &*rejected.body), (400, body));

    let many: Vec<_> = (1_000..1_500).map(|dsp| dsp.to_string()).collect();
    let many = many.join(",");
    let list = format!("dsps = ['17', '99', '{many}']\nunknown_dsps = 'refuse'\n");
    std::fs::write(&file, list)?;
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "done", 2).await?;
    producer.accept("alice", 99, "c").await?;

    std::fs::write(&file, "unknown_dsps = 'refuse'\n")?;
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "failed", 1).await?;
    wait_logged(&producer.process, "--unknown-dsps: refuse requires --dsps").await?;
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count("producer_config_rejected", &[]), 1);
    let ready = admin::get(&producer.admin, "/readyz").await?;
    assert_eq!(ready.status, 200);
    assert!(
        ready.body.contains("the previous settings stay active"),
        "{}",
        ready.body
    );
    producer.accept("alice", 99, "d").await?;
    let rejected = admin::sync(&producer.http, "alice", 5, "d").await?;
    assert_eq!(rejected.status, 400);

    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(names::APPENDED, &[]), 5);
    let unknown = ("outcome", "unknown_dsp");
    assert_eq!(metrics.count(names::EDGE_REQUESTS, &[unknown]), 2);
    for (dsp, outcome, count) in [
        ("17", "accepted", 2),
        ("99", "accepted", 2),
        ("other", "accepted", 1),
        ("other", "unknown_dsp", 2),
    ] {
        let labels = [("dsp", dsp), ("outcome", outcome)];
        let counted = metrics.count("producer_dsp_cookies_total", &labels);
        assert_eq!(counted, count, "{labels:?}");
    }
    Ok(())
}

#[tokio::test]
async fn consumer_without_a_config_file_survives_sighup() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    consumer.process.signal(Signal::HUP)?;
    wait_reloads(&consumer.admin, "consumer", "done", 1).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_settled(1).await
}

#[tokio::test]
async fn log_filter_follows_the_file_and_the_admin_port_until_sighup() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("producer.toml");
    std::fs::write(&file, "log_filter = 'info'\n")?;
    let config = format!("--config={}", file.display());
    let mut producer = Producer::start(&dir, &[&config, "--debug-endpoints"]).await?;
    let filter =
        async || Ok::<_, anyhow::Error>(admin::get(&producer.admin, "/log-filter").await?.body);
    assert_eq!(filter().await?, "info\n");
    std::fs::write(&file, "log_filter = 'info,producer=debug'\n")?;
    wait_until(TIMEOUT, "the filter follows the file", async || {
        Ok(filter().await? == "info,producer=debug\n")
    })
    .await?;

    let put = async |body: &str| admin::put(&producer.admin, "/log-filter", body).await;
    let answer = put("warn\n").await?;
    assert_eq!((answer.status, &*answer.body), (200, "warn\n"));
    for (filter, reason) in [
        ("inof", "is not a level"),
        ("", "a filter is"),
        (&*"x".repeat(2000), "1024"),
    ] {
        let answer = put(filter).await?;
        ensure!(
            answer.status == 400 && answer.body.contains(reason),
            "{answer:?}"
        );
    }
    assert_eq!(filter().await?, "warn\n");
    producer.process.signal(Signal::HUP)?;
    wait_until(
        Duration::from_secs(10),
        "SIGHUP restores the filter of the file",
        async || Ok(filter().await? == "info,producer=debug\n"),
    )
    .await
}
