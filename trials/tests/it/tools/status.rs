//! The status pages: what they say, to whom, and that they keep nobody from ending.

use anyhow::{Context, Result, ensure};
use bench::{
    admin,
    http::{Answer, HttpClient},
    scrape::{Samples, names},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{
        Consumer, DRAIN_PATIENCE, PATIENCE, Producer, accept_all, embedded, expect_exit, in_time,
        wait_until,
    },
    stream_client::{Subscription, from_newest},
};

/// As many as a port takes.
const VIEWERS_MAX: usize = 16;

async fn status(admin: &str) -> Result<Value> {
    let answer = admin::get(admin, "/status.json").await?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

fn number(status: &Value, path: &str) -> Result<u64> {
    let value = status.pointer(path).and_then(Value::as_u64);
    value.with_context(|| format!("no number at {path} of {status}"))
}

async fn ask(admin: &str, request: &str) -> Result<(HttpClient, Answer)> {
    let mut connection = HttpClient::connect(admin).await?;
    connection.send(request.as_bytes()).await?;
    let answer = connection.answer_to_head().await?;
    Ok((connection, answer))
}

/// Opens a stream of events and reads its head.
async fn watch(admin: &str) -> Result<(HttpClient, Answer)> {
    let request = format!("GET /status/events HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    ask(admin, &request).await
}

/// Opens a stream of events as soon as there is room for one.
async fn watch_in_time(admin: &str) -> Result<HttpClient> {
    let opened = async {
        loop {
            let (connection, answer) = watch(admin).await?;
            if answer.status == 200 {
                return anyhow::Ok(connection);
            }
        }
    };
    in_time("there is room for a viewer", opened).await?
}

async fn event(connection: &mut HttpClient) -> Result<Value> {
    let event = connection.event().await?.context("the stream ended")?;
    Ok(serde_json::from_str(&event)?)
}

#[tokio::test]
async fn status_and_its_events_say_what_the_metrics_say() -> Result<()> {
    const COOKIES: u64 = 10_000;
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let store = embedded(&folder.path().join("store"));
    let consumer = Consumer::start(&folder, "node", &[&producer], &store, &[]).await?;

    let (mut of_producer, answer) = watch(&producer.admin).await?;
    assert_eq!(answer.status, 200);
    ensure!(
        answer
            .head
            .contains("\r\ncontent-type: text/event-stream\r\n"),
        "{answer:?}"
    );
    let (mut of_consumer, _) = watch(&consumer.admin).await?;
    for connection in [&mut of_producer, &mut of_consumer] {
        let first = event(connection).await?;
        ensure!(first.get("history").is_some(), "{first}");
    }
    let plan = producer.ordered_load(1, 2_000, COOKIES)?;
    let looks = async {
        // One event of each, while cookies come.
        let accepts = async {
            loop {
                let event = event(&mut of_producer).await?;
                ensure!(event.get("history").is_none(), "{event}");
                if event["edge"]["accepted_per_second"].as_f64() > Some(0.0) {
                    return anyhow::Ok(());
                }
            }
        };
        let writes = async {
            while event(&mut of_consumer).await?["written_per_second"].as_f64() == Some(0.0) {}
            anyhow::Ok(())
        };
        in_time("events show the load", async {
            tokio::try_join!(accepts, writes)
        })
        .await??;
        anyhow::Ok(())
    };
    let (accepted, looked) = tokio::join!(accept_all(&plan), looks);
    accepted?;
    looked?;
    consumer.wait_settled(COOKIES).await?;

    wait_until(
        PATIENCE,
        "the producer's status is that of its metrics",
        async || {
            let (said, metrics) = (status(&producer.admin).await?, producer.metrics().await?);
            let node = [("subscriber", "node")];
            Ok(number(&said, "/edge/accepted")? == COOKIES
                && number(&said, "/log/appended")? == metrics.count(names::APPENDED, &[])
                && number(&said, "/subscribers/0/delivered")? == delivered(&metrics, &node)
                && said["subscribers"][0]["name"] == "node"
                && said["subscribers"][0]["state"] == "connected"
                && said["ready"] == true)
        },
    )
    .await?;
    wait_until(
        PATIENCE,
        "the consumer's status is that of its metrics",
        async || {
            let (said, metrics) = (status(&consumer.admin).await?, consumer.metrics().await?);
            let counts = [
                ("received", names::RECEIVED),
                ("written", names::WRITTEN),
                ("superseded", names::SUPERSEDED),
                ("suppressed", names::SUPPRESSED),
                ("stale", names::STALE),
            ];
            for (name, metric) in counts {
                let count = metrics.count(metric, &[]);
                if number(&said, &format!("/ledger/{name}"))? != count {
                    return Ok(false);
                }
            }
            let first = &said["producers"][0];
            Ok(number(&said, "/ledger/received")? == COOKIES
                && said["ledger"]["unexplained"] == 0
                && first["connected"] == true
                && first["stored_sequence"] == COOKIES
                && first["received_sequence"] == COOKIES
                && said["store"]["kind"] == "embedded")
        },
    )
    .await
}

fn delivered(metrics: &Samples, subscriber: &[(&str, &str)]) -> u64 {
    metrics.count("producer_subscriber_delivered_cookies_total", subscriber)
}

#[tokio::test]
async fn subscriber_that_stops_is_seen_by_name_and_a_script_in_a_name_stays_a_name() -> Result<()> {
    const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>";
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let stream = Subscription::open(&producer.grpc, from_newest(HOSTILE)).await?;
    let (mut connection, _) = watch(&producer.admin).await?;
    let row = |event: &Value| event["subscribers"][0].clone();
    let shows = async |connection: &mut HttpClient, state: &str| -> Result<()> {
        loop {
            let row = row(&event(connection).await?);
            if row["state"] == state {
                assert_eq!(row["name"], HOSTILE);
                return Ok(());
            }
        }
    };
    in_time("it is seen", shows(&mut connection, "connected")).await??;
    drop(stream);
    in_time(
        "it is seen to be gone",
        shows(&mut connection, "disconnected"),
    )
    .await??;

    let mut connection = HttpClient::connect(&producer.admin).await?;
    let mut ask = async |path| {
        let host = &producer.admin;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        connection.send(request.as_bytes()).await?;
        connection.answer().await
    };
    for path in ["/metrics", "/status.json", "/readyz", "/nothing"] {
        let head = ask(path).await?.head;
        let no_frames = "\r\ncontent-security-policy: frame-ancestors 'none'";
        ensure!(head.contains(no_frames), "{path}: {head}");
    }
    let page = ask("/").await?;
    ensure!(
        !page.body.contains("alert"),
        "names are not part of the page"
    );
    for header in [
        "content-type: text/html; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
    ] {
        ensure!(
            page.head.contains(&format!("\r\n{header}")),
            "{header}: {}",
            page.head
        );
    }
    for outside in ["unsafe-inline", "unsafe-eval", "http:", "https:"] {
        ensure!(!page.head.contains(outside), "{}", page.head);
    }
    for sink in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ] {
        ensure!(
            !page.body.contains(sink),
            "{sink} takes texts for HTML or programs"
        );
    }
    Ok(())
}

#[tokio::test]
async fn not_ready_is_explained_part_by_part() -> Result<()> {
    let folder = TempDir::new()?;
    let nobody = ["http://127.0.0.1:1"];
    let consumer = Consumer::spawn(&folder, "node", &nobody, "none", &[]).await?;
    consumer
        .wait_not_ready("producers: no producer is connected: 0 of 1")
        .await?;
    let answer = admin::get(&consumer.admin, "/readyz").await?;
    let said: Value = serde_json::from_str(&answer.body)?;
    assert_eq!((answer.status, &said["ready"]), (503, &json!(false)));
    assert_eq!(said["reasons"][0]["part"], "producers");
    let works = json!({"part": "store", "ready": true, "state": "works"});
    ensure!(
        said["parts"]
            .as_array()
            .is_some_and(|parts| parts.contains(&works)),
        "{said}"
    );
    // The page's figures are a sample, up to a second older.
    wait_until(PATIENCE, "the page says so as well, and why", async || {
        let shown = status(&consumer.admin).await?;
        let why = shown["producers"][0]["why"].as_str();
        Ok(shown["reasons"] == said["reasons"] && why.is_some_and(|why| !why.is_empty()))
    })
    .await
}

#[tokio::test]
async fn port_answers_to_its_own_names_and_shows_other_sites_nothing() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let own = &*producer.admin;
    let link = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    for (host, more, path, status) in [
        (own, "", "/status.json", 200),
        ("localhost:9090", "", "/status.json", 200),
        ("rebound.example:9090", "", "/status.json", 421),
        ("rebound.example:9090", "", "/metrics", 421),
        ("rebound.example:9090", "", "/", 421),
        (own, "Sec-Fetch-Site: cross-site\r\n", "/status/events", 403),
        (own, "Sec-Fetch-Site: cross-site\r\n", "/status.json", 403),
        (own, "Sec-Fetch-Site: cross-site\r\n", "/metrics", 403),
        (
            own,
            &format!("Sec-Fetch-Site: cross-site\r\n{link}"),
            "/metrics",
            200,
        ),
        (
            own,
            &format!("Sec-Fetch-Site: cross-site\r\n{link}"),
            "/status/events",
            403,
        ),
        (
            own,
            "Sec-Fetch-Site: same-origin\r\n",
            "/status/events",
            200,
        ),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
        let (_, answer) = ask(own, &request).await?;
        assert_eq!(answer.status, status, "{request}");
        ensure!(!answer.head.contains("access-control-"), "{}", answer.head);
    }
    let (_, answer) = ask(own, &format!("POST / HTTP/1.1\r\nHost: {own}\r\n\r\n")).await?;
    assert_eq!(answer.status, 405);
    Ok(())
}

#[tokio::test]
async fn viewers_are_bounded_and_the_drain_ends_their_streams_at_once() -> Result<()> {
    let folder = TempDir::new()?;
    let mut producer = Producer::start(&folder, &[]).await?;
    let mut consumer = Consumer::start(&folder, "node", &[&producer], "none", &[]).await?;
    for admin in [&consumer.admin, &producer.admin] {
        let mut viewers = Vec::new();
        for _ in 0..VIEWERS_MAX {
            let (viewer, answer) = watch(admin).await?;
            assert_eq!(answer.status, 200);
            viewers.push(viewer);
        }
        let (_, refused) = watch(admin).await?;
        assert_eq!(refused.status, 503);
    }
    // Those have left, which makes room; these stay to the end.
    let mut of_consumer = watch_in_time(&consumer.admin).await?;
    let mut of_producer = watch_in_time(&producer.admin).await?;
    for (process, viewer) in [
        (&mut consumer.process, &mut of_consumer),
        (&mut producer.process, &mut of_producer),
    ] {
        process.signal(Signal::TERM)?;
        let ends = async {
            while viewer.event().await?.is_some() {}
            anyhow::Ok(())
        };
        in_time("the stream ends in an orderly way", ends).await??;
        let exit = process.wait(DRAIN_PATIENCE).await?;
        expect_exit(process, exit, 0)?;
    }
    Ok(())
}
