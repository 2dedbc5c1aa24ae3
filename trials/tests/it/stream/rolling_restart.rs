//! Tests of a rolling restart of two producers behind a load balancer, under load: no client receives an error, no accepted cookie
//! is lost, and consumers report that nothing was lost.
//!
//! The load balancer is haproxy with `deploy/haproxy.cfg`, in which the test replaces the addresses. It connects to the second
//! producer over TLS, with a PROXY header. `ROLLING_RATE` sets the requests per second; the default suits a debug build on a busy
//! machine.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::{
    load::{self, History},
    verify::{
        LossPredicate, RequestHistory, RequestOutcome, SentRequests, Source, StoreCheck,
        embedded as verify_embedded,
    },
};
use tempfile::TempDir;
use testkit::{
    http::HttpClient,
    programs::{Process, free_address},
    scrape::names,
    tools::installed_or_skip,
};
use tokio::{net::TcpStream, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    edge::security::certificates::Authority,
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, reserve_machine,
        wait_until,
    },
};

/// The shipped configuration.
const CONFIG: &str = include_str!("../../../../deploy/haproxy.cfg");

/// Flags that the configuration requires.
const FLAGS: [&str; 2] = ["--drain-delay", "3s"];

/// No accepted cookie may be missing.
const NOTHING_LOST: LossPredicate<'static> = &|_, _| false;

const RATE: u64 = 1_000;

/// A history in which rejected requests have an unknown outcome: a producer may have accepted the request, but its response was lost
/// before the load balancer.
struct RejectionsUnknown(History);

impl RequestHistory for RejectionsUnknown {
    fn sent(&self) -> u64 {
        self.0.sent()
    }
    fn outcome(&self, number: u64) -> RequestOutcome {
        match self.0.outcome(number) {
            RequestOutcome::Rejected => RequestOutcome::Unknown,
            outcome => outcome,
        }
    }
    fn sent_after(&self, number: u64) -> Instant {
        self.0.sent_after(number)
    }
    fn responded_by(&self, number: u64) -> Instant {
        self.0.responded_by(number)
    }
}

/// The shipped configuration with the addresses of these producers.
fn configuration(address: &str, producers: [(&Producer, &str); 2]) -> Result<String> {
    let mut text = CONFIG.to_owned();
    let mut replace = |from: &str, to: &str| {
        ensure!(text.contains(from), "{from:?} is not in the configuration");
        text = text.replace(from, to);
        anyhow::Ok(())
    };
    replace("bind :8080", &format!("bind {address}"))?;
    for (number, (producer, options)) in (1..).zip(producers) {
        let port = producer.admin.rsplit(':').next().unwrap_or_default();
        replace(
            &format!("producer-{number}:8080 port 9090"),
            &format!("{} port {port} {options}", producer.http),
        )?;
    }
    Ok(text)
}

/// Starts haproxy in front of the producers and returns its address. `None` (a skipped test) without haproxy.
async fn start_haproxy(
    dir: &TempDir,
    producers: [(&Producer, &str); 2],
) -> Result<Option<(Process, String)>> {
    let Some(program) = installed_or_skip(&["haproxy"]) else {
        return Ok(None);
    };
    let address = free_address()?.to_string();
    let file = dir.path().join("haproxy.cfg");
    std::fs::write(&file, configuration(&address, producers)?)?;
    let args = [
        "-db".to_owned(),
        "-f".to_owned(),
        file.display().to_string(),
    ];
    let log = dir.path().join("haproxy.log");
    let mut process = Process::start("haproxy", &program, &args, &log)?;
    wait_until(TIMEOUT, "haproxy listens", async || {
        Ok(TcpStream::connect(&address).await.is_ok())
    })
    .await?;
    process.check()?;
    Ok(Some((process, address)))
}

/// Restarts the producer cleanly.
async fn restart(producer: &mut Producer) -> Result<()> {
    let (delay, drain) = (Duration::from_secs(3), DRAIN_TIMEOUT);
    let status = producer.process.stop(delay + drain).await?;
    expect_exit(&producer.process, status, 0)?;
    producer.process.restart()?;
    producer.wait_ready().await
}

async fn wait_received(consumer: &Consumer, cookies: u64) -> Result<()> {
    let what = format!("{} has {cookies} cookies", consumer.admin);
    wait_until(TIMEOUT, &what, async || {
        Ok(consumer.metrics().await?.count(names::RECEIVED, &[]) >= cookies)
    })
    .await
}

/// Checks that a consumer reports two clean restarts without loss.
async fn check_clean_restarts(consumer: &Consumer) -> Result<()> {
    let metrics = consumer.metrics().await?;
    let restarts = |loss| metrics.count("consumer_producer_restarts_total", &[("loss", loss)]);
    let log = consumer.process.last_lines(200);
    ensure!(
        restarts("none") == 2 && restarts("exact") + restarts("bounded") + restarts("unknown") == 0,
        "{log}"
    );
    ensure!(
        metrics.count("consumer_producer_drains_total", &[]) == 2,
        "{log}"
    );
    ensure!(metrics.count(names::LOST, &[]) == 0, "{log}");
    for message in [
        "producer drained; all its cookies are stored",
        "producer restarted; nothing lost",
    ] {
        ensure!(log.matches(message).count() == 2, "{message}:\n{log}");
    }
    Ok(())
}

#[tokio::test]
async fn rolling_restart_behind_haproxy_loses_nothing_and_consumers_confirm_it() -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let mut first = Producer::start(&dir, &FLAGS).await?;
    let authority = Authority::new("ours")?;
    let ca = authority.write(dir.path(), "ca.pem")?;
    let (certificate, key) = authority.write_identity(dir.path(), "server")?;
    let opening = [
        "--http-tls-cert",
        &certificate,
        "--http-tls-key",
        &key,
        "--proxy-protocol-from=127.0.0.1",
    ];
    let mut second = Producer::start(&dir, &[&FLAGS[..], &opening].concat()).await?;
    let options = format!("send-proxy-v2 ssl verify required ca-file {ca} verifyhost localhost");
    let producers = [(&first, ""), (&second, &*options)];
    let Some((mut haproxy, address)) = start_haproxy(&dir, producers).await? else {
        return Ok(());
    };
    let stores = ["a", "b"].map(|name| dir.path().join(name));
    let mut consumers = Vec::new();
    for (name, store) in ["node-a", "node-b"].into_iter().zip(&stores) {
        let store = embedded(store);
        consumers.push(Consumer::start(&dir, name, &[&first, &second], &store, &[]).await?);
    }

    let rate = std::env::var("ROLLING_RATE").map_or(Ok(RATE), |rate| rate.parse())?;
    let plan = load::Plan {
        urls: vec![format!("http://{address}/").parse()?],
        connections: 8.try_into()?,
        rate: Some(rate.try_into().context("a rate")?),
        keeps_history: true,
        ..first.load(41)?
    };
    let stop = CancellationToken::new();
    let rolling = async {
        wait_until(TIMEOUT, "both producers accept requests", async || {
            Ok(first.appended().await? > 500 && second.appended().await? > 500)
        })
        .await?;
        restart(&mut first).await?;
        wait_until(
            TIMEOUT,
            "the first producer accepts requests again",
            async || Ok(first.appended().await? > 500),
        )
        .await?;
        restart(&mut second).await?;
        wait_until(
            TIMEOUT,
            "the second producer accepts requests again",
            async || Ok(second.appended().await? > 500),
        )
        .await?;
        anyhow::Ok(())
    };
    let rolling = async {
        let rolled = rolling.await;
        stop.cancel();
        rolled
    };
    let (outcome, rolled) = tokio::join!(load::run(&plan, &stop), rolling);
    rolled.with_context(|| haproxy.last_lines(20))?;
    let outcome = outcome?;
    haproxy.check()?;
    eprintln!("{}", outcome.report().summary());
    ensure!(
        outcome.counts.errors() == 0,
        "{}",
        outcome.report().summary()
    );
    let metrics = second.metrics().await?;
    for (name, label, reason) in [
        ("producer_http_tls_handshakes_total", "outcome", "failed"),
        (
            names::HTTP_CONNECTIONS_CLOSED,
            "reason",
            "invalid_proxy_header",
        ),
    ] {
        assert_eq!(metrics.count(name, &[(label, reason)]), 0, "{reason}");
    }

    let done = metrics.count("producer_http_tls_handshakes_total", &[("outcome", "done")]);
    assert!(done > 0, "no connection is encrypted");

    for consumer in &mut consumers {
        wait_received(consumer, outcome.counts.accepted).await?;
        check_clean_restarts(consumer).await?;
        let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
        expect_exit(&consumer.process, status, 0)?;
    }
    let source = |history: History| Source {
        traffic: plan.traffic.clone(),
        connection: history.connection(),
        producer: 0,
        requests: Box::new(RejectionsUnknown(history)),
    };
    let sent = SentRequests::new(outcome.histories.into_iter().map(source).collect())?;
    for store in &stores {
        let check = StoreCheck::new("a store", &sent, NOTHING_LOST, false);
        let verdict = verify_embedded(store, check).await?;
        ensure!(verdict.has_passed(), "{}", verdict.line());
        ensure!(
            verdict.correct >= outcome.counts.accepted,
            "{}",
            verdict.line()
        );
    }
    Ok(())
}

#[tokio::test]
async fn draining_producer_closes_client_connections_after_their_response() -> Result<()> {
    let dir = TempDir::new()?;
    // Longer than any wait of this test.
    let mut producer = Producer::start(&dir, &["--drain-delay", "1h"]).await?;
    producer.process.signal(rustix::process::Signal::TERM)?;
    wait_until(TIMEOUT, "/readyz reports the drain", async || {
        let readiness = testkit::admin::readiness(&producer.admin).await?;
        Ok(readiness == Err("drain: draining".to_owned()))
    })
    .await?;
    let mut connection = HttpClient::connect(&producer.http).await?;
    let request = crate::harness::sync_request("alice", 17, "a-1");
    connection.send(request.as_bytes()).await?;
    let answer = connection.response().await?;
    assert_eq!(answer.status, 200, "requests are still accepted");
    assert!(answer.closes(), "{answer:?}");
    connection.wait_ended().await?;
    // A second signal ends the drain immediately.
    producer.process.signal(rustix::process::Signal::TERM)?;
    let status = producer.process.wait(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 130)
}
