//! Tests that abusive HTTP clients do not affect other clients: during each test, every request of a well-behaved client gets a
//! response.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Result, ensure};
use bench::load;
use tempfile::TempDir;
use testkit::{http::HttpClient, scrape::names};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpSocket,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{Addresses, Producer, TIMEOUT, programs, run_to_end, sync_request, wait_until},
    stream_client::CookieStream,
};

/// Runs `abuse` together with a well-behaved client. Only the client's cookies may be appended, each of its requests must be accepted,
/// and it must be served after the abuse.
async fn with_well_behaved_client(
    producer: &Producer,
    abuse: impl Future<Output = Result<()>>,
) -> Result<()> {
    let plan = load::Plan {
        requests: None,
        pipeline: Some(1.try_into()?),
        ..producer.ordered_load(1, 500, 0)?
    };
    let stop = CancellationToken::new();
    let abusing = async {
        let abused = abuse.await;
        let appended = producer.appended().await? + 10;
        wait_until(TIMEOUT, "the well-behaved client is served", async || {
            Ok(producer.appended().await? >= appended)
        })
        .await?;
        stop.cancel();
        abused
    };
    let (outcome, abused) = tokio::join!(load::run(&plan, &stop), async {
        let abused = abusing.await;
        stop.cancel();
        abused
    });
    abused?;
    let outcome = outcome?;
    ensure!(
        outcome.report().failures.is_empty() && outcome.counts.reconnects == 0,
        "{}",
        outcome.report().summary()
    );
    assert_eq!(producer.appended().await?, outcome.counts.accepted);
    Ok(())
}

async fn wait_closed(producer: &Producer, reason: &str, count: u64) -> Result<()> {
    let what = format!("{count} connections are closed with reason {reason}");
    wait_until(TIMEOUT, &what, async || {
        let metrics = producer.metrics().await?;
        Ok(metrics.count(names::HTTP_CONNECTIONS_CLOSED, &[("reason", reason)]) == count)
    })
    .await
}

#[tokio::test]
async fn random_bytes_are_rejected() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--request-timeout", "500ms"]).await?;
    let abuse = async {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let bytes: Vec<u8> = (0..random.usize(1..20_000))
                .map(|_| random.u8(..))
                .collect();
            let mut connection = HttpClient::connect(&producer.http).await?;
            connection.send(&bytes).await?;
            // Bytes that may begin a request are kept until the request timeout.
            let answer = connection.rest().await?;
            ensure!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
                "{answer}"
            );
        }
        Ok(())
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn million_byte_header_gets_431_and_a_close() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let abuse = async {
        for _ in 0..3 {
            let mut connection = HttpClient::connect(&producer.http).await?;
            let header = "x".repeat(1_000_000);
            let request = format!("GET /?d=1&b=x HTTP/1.1\r\nCookie: uid=u\r\nX: {header}\r\n\r\n");
            connection.send(request.as_bytes()).await?;
            let answer = connection.response().await?;
            assert_eq!((answer.status, answer.closes()), (431, true), "{answer:?}");
            connection.wait_ended().await?;
        }
        Ok(())
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn request_sent_byte_by_byte_is_closed_at_its_timeout() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--request-timeout", "500ms"]).await?;
    let abuse = async {
        let mut connection = HttpClient::connect(&producer.http).await?;
        // A valid request first: it must not extend the timeout of the next one.
        connection.send(b"GET /none HTTP/1.1\r\n\r\n").await?;
        assert_eq!(connection.response().await?.status, 404);
        let bytes = sync_request("u", 1, "x").into_bytes();
        for byte in bytes {
            if connection.send(&[byte]).await.is_err() {
                break;
            }
            // The rate of this client, not a wait for a condition.
            sleep(Duration::from_millis(50)).await;
        }
        connection.wait_ended().await?;
        wait_closed(&producer, "slow_request", 1).await
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn client_that_never_reads_is_disconnected() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--request-timeout", "500ms"]).await?;
    let abuse = async {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let mut stream = socket.connect(producer.http.parse()?).await?;
        let requests = "GET /none HTTP/1.1\r\n\r\n".repeat(100);
        timeout(TIMEOUT, async {
            while stream.write_all(requests.as_bytes()).await.is_ok() {}
        })
        .await?;
        wait_closed(&producer, "slow_reader", 1).await
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn five_hundred_idle_connections_are_closed_at_their_timeout() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--idle-timeout", "2s"]).await?;
    let abuse = async {
        let mut opening = JoinSet::new();
        for _ in 0..500 {
            let address = producer.http.clone();
            opening.spawn(async move { HttpClient::connect(&address).await });
        }
        let mut idle = Vec::new();
        while let Some(connection) = opening.join_next().await {
            idle.push(connection??);
        }
        wait_closed(&producer, "idle", 500).await?;
        for connection in &mut idle {
            connection.wait_ended().await?;
        }
        Ok(())
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn connection_above_the_limit_is_closed_and_counted() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--http-connections", "8"]).await?;
    let abuse = async {
        // Seven connections, in addition to the connection of the well-behaved client.
        wait_until(
            TIMEOUT,
            "the well-behaved client is connected",
            async || {
                Ok(producer
                    .metrics()
                    .await?
                    .count(names::HTTP_CONNECTIONS, &[])
                    == 1)
            },
        )
        .await?;
        let mut seven = Vec::new();
        for _ in 0..7 {
            let mut connection = HttpClient::connect(&producer.http).await?;
            connection.send(b"GET /none HTTP/1.1\r\n\r\n").await?;
            assert_eq!(connection.response().await?.status, 404);
            seven.push(connection);
        }
        let mut ninth = HttpClient::connect(&producer.http).await?;
        ninth.wait_ended().await?;
        wait_closed(&producer, "too_many", 1).await?;

        // A new connection is accepted as soon as one is closed.
        drop(seven.pop());
        wait_until(TIMEOUT, "one connection is closed", async || {
            Ok(producer
                .metrics()
                .await?
                .count(names::HTTP_CONNECTIONS, &[])
                == 7)
        })
        .await?;
        let mut eighth = HttpClient::connect(&producer.http).await?;
        eighth.send(b"GET /none HTTP/1.1\r\n\r\n").await?;
        assert_eq!(eighth.response().await?.status, 404);
        Ok(())
    };
    with_well_behaved_client(&producer, abuse).await
}

#[tokio::test]
async fn unread_stderr_does_not_block_the_producer() -> Result<()> {
    let dir = TempDir::new()?;
    let pipe = dir.path().join("stderr");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success());
    // Open for reading, and never read.
    let _reader = File::options().read(true).write(true).open(&pipe)?;
    let into_pipe = |program: &Path, args: &[String]| {
        let script = format!("exec \"$0\" \"$@\" 2>'{}'", pipe.display());
        let shell = ["-c".to_owned(), script, program.display().to_string()];
        (PathBuf::from("/bin/sh"), [&shell[..], args].concat())
    };
    let addresses = Addresses::free()?;
    let flags = ["--log-filter", "trace,h2=trace"];
    let producer = Producer::start_wrapped(&dir, &addresses, &flags, &into_pipe).await?;
    let flooded = wait_until(TIMEOUT, "log lines are dropped", async || {
        for number in 0..20 {
            CookieStream::open(&producer.grpc, &format!("reader-{number}")).await?;
        }
        let metrics = producer.metrics().await?;
        Ok(metrics.count("producer_log_lines_dropped_total", &[]) > 0)
    });
    Box::pin(with_well_behaved_client(&producer, flooded)).await
}

/// Runs a program with an open-file limit of `files`.
fn with_files(files: u64) -> impl Fn(&Path, &[String]) -> (PathBuf, Vec<String>) {
    move |program, args| {
        let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let shell = ["-c".to_owned(), script, program.display().to_string()];
        (PathBuf::from("/bin/sh"), [&shell[..], args].concat())
    }
}

#[tokio::test]
async fn low_open_file_limit_is_shared_by_both_ports_and_a_minimum_is_enforced() -> Result<()> {
    let dir = TempDir::new()?;
    let (shell, args) = with_files(100)(&programs().await?.producer, &[]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let output = run_to_end(&shell, &args, &[]).await?;
    ensure!(output.code == Some(1), "{:?}: {}", output.code, output.text);
    ensure!(
        output.text.contains("open-file limit too low: 100"),
        "{}",
        output.text
    );

    let producer =
        Producer::start_wrapped(&dir, &Addresses::free()?, &[], &with_files(256)).await?;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(HttpClient::connect(&producer.http).await?);
    }
    wait_until(
        TIMEOUT,
        "HTTP uses its share of the open files",
        async || {
            let metrics = producer.metrics().await?;
            Ok(metrics.count(names::HTTP_CONNECTIONS, &[]) >= 100)
        },
    )
    .await?;
    let mut stream = CookieStream::open(&producer.grpc, "bidder").await?;
    drop(idle);
    // New connections are rejected until the open connections are closed.
    wait_until(TIMEOUT, "a new connection is accepted", async || {
        Ok(producer.accept("alice", 17, "a-1").await.is_ok())
    })
    .await?;
    stream.read().await?;
    ensure!(
        stream
            .cookies
            .iter()
            .any(|cookie| cookie.user_id == "alice")
    );
    Ok(())
}
