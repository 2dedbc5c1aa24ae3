//! Tests that running processes reload their configuration.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{admin, http::HttpClient, scrape::names};

use crate::harness::{
    Addresses, Consumer, Producer, TIMEOUT, embedded, programs, run_to_end, wait_logged, wait_until,
};
use crate::stream_client::{Subscription, from_newest};

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
    let rejected = |metrics: &testkit::scrape::Samples| {
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
async fn contracts_are_reloaded_whole_or_not_at_all() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("contracts.toml");
    std::fs::write(&file, "[dsp.17]\nttl = '1d'\n")?;
    let contracts = format!("--contracts={}", file.display());
    let producer = Producer::start(&dir, &[&contracts]).await?;
    let version = async |expected: u64| {
        let what = format!("version {expected} of the contracts is active");
        wait_until(TIMEOUT, &what, async || {
            let metrics = producer.metrics().await?;
            Ok(metrics.count("producer_contracts_version", &[]) == expected)
        })
        .await
    };
    version(1).await?;
    producer.accept("alice", 17, "a").await?;
    producer.accept("alice", 99, "a").await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;

    let refusing =
        "unknown_dsps = 'refuse'\n[dsp.17]\nttl = '2d'\n[dsp.99]\nuid_pattern = '^[a-z]+$'\n";
    std::fs::write(&file, refusing)?;
    version(2).await?;
    producer.accept("alice", 17, "b").await?;
    producer.accept("alice", 99, "b").await?;
    let rejected = admin::sync(&producer.http, "alice", 5, "b").await?;
    while stream.times_to_live.len() < 2 {
        stream.read().await?;
    }
    let days = stream
        .times_to_live
        .iter()
        .map(|it| it.dsps[0].seconds / 86_400);
    assert_eq!(days.collect::<Vec<_>>(), [1, 2]);
    let body = "parameter d (the DSP id) or bidder (its name) does not name a known DSP\n";
    assert_eq!((rejected.status, &*rejected.body), (400, body));

    std::fs::write(&file, refusing.replace("uid_pattern", "uid_patern"))?;
    let hint = "line 5: dsp.99: unknown key `uid_patern`, expected one of";
    let path = file.display().to_string();
    let check = ["contracts", "check", &path];
    let output = run_to_end(&programs().await?.producer, &check, &[]).await?;
    ensure!(
        output.code == Some(2) && output.text.contains(hint),
        "{}",
        output.text
    );
    wait_logged(&producer.process, hint).await?;
    producer.accept("alice", 99, "d").await?;
    let rejected = admin::sync(&producer.http, "alice", 99, "D").await?;
    assert_eq!(rejected.status, 400);

    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(names::APPENDED, &[]), 5);
    assert_eq!(metrics.count("producer_contracts_version", &[]), 2);
    let failed = [("kind", "contracts"), ("outcome", "failed")];
    assert_eq!(metrics.count("producer_file_reloads_total", &failed), 1);
    for (dsp, outcome, count) in [
        ("17", "accepted", 2),
        ("99", "accepted", 2),
        ("99", "uid_pattern", 1),
        ("other", "accepted", 1),
        ("other", "unknown_dsp", 1),
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
async fn latest_log_filter_of_file_and_admin_port_wins() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("producer.toml");
    std::fs::write(&file, "log_filter = 'info,runtime=warn'\n")?;
    let config = format!("--config={}", file.display());
    let mut producer = Producer::start(&dir, &[&config]).await?;
    std::fs::write(&file, "log_filter = 'info'\n")?;
    wait_logged(&producer.process, "configuration reloaded").await?;

    let mut client = HttpClient::connect(&producer.admin).await?;
    let mut request = async |method: &str, headers: &[(&str, &str)], body: &str| {
        let response = client.request(method, "/log-filter", headers, body).await?;
        anyhow::Ok((response.status, response.body))
    };
    let is = |status: u16, body: &str| (status, body.to_owned());
    assert_eq!(request("GET", &[], "").await?, is(200, "info\n"));
    let debug = "info,producer=debug";
    assert_eq!(
        request("PUT", &[], debug).await?,
        is(200, "info,producer=debug\n")
    );
    wait_logged(&producer.process, "log filter changed").await?;
    for (filter, status, reason) in [
        ("inof", 400, "not a level"),
        (" ", 400, "a filter is"),
        (&"x".repeat(2_000), 413, "1024"),
    ] {
        let (found, body) = request("PUT", &[], filter).await?;
        ensure!(
            found == status && body.contains(reason),
            "{filter}: {found} {body}"
        );
    }
    let foreign = [("Sec-Fetch-Site", "cross-site")];
    assert_eq!(request("PUT", &foreign, "off").await?.0, 403);
    assert_eq!(request("POST", &[], "off").await?.0, 405);
    // A reload keeps the filter unless its setting changes.
    producer.process.signal(Signal::HUP)?;
    wait_reloads(&producer.admin, "producer", "done", 2).await?;
    assert_eq!(request("GET", &[], "").await?.1, "info,producer=debug\n");
    std::fs::write(&file, "log_filter = 'warn'\n")?;
    wait_reloads(&producer.admin, "producer", "done", 3).await?;
    assert_eq!(request("GET", &[], "").await?.1, "warn\n");
    Ok(())
}
