//! Tests that abusive gRPC clients are rejected or disconnected. A well-behaved subscriber that reads during each test loses no
//! cookie.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use http::Request;
use producer::{config::Config, memory};
use runtime::raise_open_files;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    harness::{Producer, TIMEOUT, accept_all, reserve_machine, wait_until, within_timeout},
    stream_client::{Subscription, from_newest},
};

/// A request with an empty message.
const EMPTY: Bytes = Bytes::from_static(&[0; 5]);

const REJECTED_CALLS: &str = "producer_grpc_calls_refused_total";
const CONNECTIONS: &str = "producer_grpc_connections";

/// A well-behaved subscriber, which must also receive cookies accepted after the abuse.
struct GoodSubscriber(Subscription);

impl GoodSubscriber {
    async fn open(producer: &Producer) -> Result<Self> {
        let mut stream = Subscription::open(&producer.grpc, from_newest("good")).await?;
        producer.accept_numbers(1..=10).await?;
        stream.read_to(10).await?;
        Ok(Self(stream))
    }

    async fn check_unaffected(mut self, producer: &Producer) -> Result<()> {
        producer.accept_numbers(11..=20).await?;
        self.0.read_to(20).await?;
        assert_eq!(self.0.lost(), 0);
        wait_until(TIMEOUT, "the abusive client is disconnected", async || {
            Ok(producer.metrics().await?.count(CONNECTIONS, &[]) == 1)
        })
        .await
    }
}

/// A raw HTTP/2 connection. Its task returns the reason for its end.
async fn raw_connection(
    producer: &Producer,
) -> Result<(SendRequest<Bytes>, JoinSet<Option<Reason>>)> {
    let address = producer.grpc.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await?;
    let (calls, connection) = h2::client::handshake(stream).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let ended = connection.await;
        ended.err().and_then(|error| error.reason())
    });
    Ok((calls, tasks))
}

fn call(producer: &Producer) -> http::request::Builder {
    Request::post(format!(
        "{}/cookiesync.v1.CookieStreamer/GetCookies",
        producer.grpc
    ))
    .header("content-type", "application/grpc")
}

#[tokio::test]
async fn client_that_resets_streams_endlessly_is_disconnected() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let good = GoodSubscriber::open(&producer).await?;
    let (mut calls, mut connection) = raw_connection(&producer).await?;
    let abuse = async {
        for _ in 0..100_000 {
            calls = calls.ready().await?;
            let (_, mut body) = calls.send_request(call(&producer).body(())?, false)?;
            // Lets the headers be sent before the reset.
            tokio::task::yield_now().await;
            body.send_reset(Reason::CANCEL);
        }
        anyhow::Ok(())
    };
    within_timeout("the abuse ends", abuse)
        .await?
        .expect_err("the connection must be closed");
    let reason = within_timeout("the connection ends", connection.join_next()).await?;
    let reason = reason.context("the connection task is missing")??;
    ensure!(
        matches!(reason, Some(Reason::ENHANCE_YOUR_CALM) | None),
        "{reason:?}"
    );
    good.check_unaffected(&producer).await
}

#[tokio::test]
async fn oversized_headers_get_431() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let good = GoodSubscriber::open(&producer).await?;
    let (calls, connection) = raw_connection(&producer).await?;
    let mut calls = calls.ready().await?;
    let request = call(&producer).header("x", "y".repeat(20_000)).body(())?;
    let (answer, _body) = calls.send_request(request, true)?;
    let answer = within_timeout("the response", answer).await??;
    assert_eq!(answer.status(), 431);
    drop((calls, connection));
    good.check_unaffected(&producer).await
}

#[tokio::test]
async fn concurrent_calls_on_one_connection_are_limited() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let good = GoodSubscriber::open(&producer).await?;
    let (calls, connection) = raw_connection(&producer).await?;
    let mut calls = calls.ready().await?;
    // Requests without a message keep their calls open.
    let mut open = Vec::new();
    for _ in 0..64 {
        calls = calls.ready().await?;
        open.push(calls.send_request(call(&producer).body(())?, false)?);
    }
    wait_until(TIMEOUT, "the client receives the limit", async || {
        Ok(calls.current_max_send_streams() == 64)
    })
    .await?;
    drop((open, calls, connection));
    good.check_unaffected(&producer).await
}

/// A `GetCookies` request of the host `x`.
const REQUEST_OF_X: Bytes = Bytes::from_static(b"\0\0\0\0\x03\x0a\x01x");

#[tokio::test]
async fn superseded_stream_ends_although_its_window_is_closed() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let good = GoodSubscriber::open(&producer).await?;
    let address = producer.grpc.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await?;
    let mut builder = h2::client::Builder::new();
    let handshake = builder.initial_window_size(0).handshake(stream);
    let (mut calls, connection) = handshake.await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let mut open = Vec::new();
    for _ in 0..3 {
        calls = calls.ready().await?;
        let (answer, mut body) = calls.send_request(call(&producer).body(())?, false)?;
        body.send_data(REQUEST_OF_X, true)?;
        let answer = within_timeout("the response headers", answer).await??;
        open.push(answer.into_body());
    }
    // The log has a cookie for the streams, but their windows are closed.
    producer.accept_numbers(11..=11).await?;
    for superseded in &mut open[..2] {
        let trailers =
            within_timeout("the superseded stream ends", superseded.trailers()).await??;
        let trailers = trailers.context("no trailers")?;
        let status = trailers.get("grpc-status").context("no status")?;
        assert_eq!(Code::from_bytes(status.as_bytes()), Code::Aborted);
    }
    drop((open, calls, tasks));
    let mut stream = good.0;
    stream.read_to(11).await?;
    assert_eq!(stream.lost(), 0);
    Ok(())
}

#[tokio::test]
async fn unexpected_frames_do_not_fill_the_log_output() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let good = GoodSubscriber::open(&producer).await?;
    let before = producer.process.last_lines(usize::MAX).lines().count();
    let address = producer.grpc.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await?;
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
    // Acknowledgements of pings that were never sent.
    let answer = [&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &[0xff; 8]].concat();
    stream.write_all(&answer.repeat(1_000)).await?;
    // The response to this ping shows that the producer has read the acknowledgements.
    stream.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0]).await?;
    stream.write_all(&[7; 8]).await?;
    let answered = async {
        let mut read = Vec::new();
        while !read.windows(8).any(|bytes| bytes == [7; 8]) {
            ensure!(
                stream.read_buf(&mut read).await? > 0,
                "the connection was closed"
            );
        }
        Ok(())
    };
    within_timeout("the response to the ping", answered).await??;
    drop(stream);
    good.check_unaffected(&producer).await?;
    let after = producer.process.last_lines(usize::MAX).lines().count();
    ensure!(after < before + 10, "{} more log lines", after - before);
    Ok(())
}

const TOKEN: &str = "a-token-of-16-bytes";

/// Calls a path on up to 64 streams at a time until the connection ends; returns the last status of each code.
async fn call_endlessly(address: String, path: &str, codes: Arc<Mutex<BTreeSet<i32>>>) {
    let (_, socket) = address.split_at("http://".len());
    loop {
        let Ok(stream) = TcpStream::connect(socket).await else {
            continue;
        };
        let Ok((mut calls, connection)) = h2::client::handshake(stream).await else {
            continue;
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let flood = async {
            loop {
                let mut open = Vec::new();
                for _ in 0..64 {
                    calls = calls.clone().ready().await?;
                    let request = Request::post(format!("{address}{path}"))
                        .header("content-type", "application/grpc");
                    let request = request.body(()).expect("the request is valid");
                    let (answer, mut body) = calls.send_request(request, false)?;
                    body.send_data(EMPTY, true)?;
                    open.push(answer);
                }
                for answer in open {
                    let answer = answer.await?;
                    let status = answer.headers().get("grpc-status");
                    let code = status.map_or(Code::Ok, |it| Code::from_bytes(it.as_bytes()));
                    codes.lock().expect("not poisoned").insert(code.into());
                }
            }
        };
        let _ended: Result<std::convert::Infallible, h2::Error> = flood.await;
    }
}

/// With tokens, clients without a token disturb neither open nor new streams: they flood the port with calls, health checks and
/// unfinished requests.
#[tokio::test]
async fn clients_without_a_token_do_not_disturb_streams_with_one() -> Result<()> {
    const RATE: u64 = 5_000;
    const SECONDS: u64 = 4;
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, TOKEN)?;
    let tokens = tokens.display().to_string();
    let producer = Producer::start(&dir, &["--token-file", &tokens]).await?;
    let mut good = Subscription::open_with(&producer.grpc, from_newest("good"), TOKEN).await?;
    let codes = Arc::<Mutex<BTreeSet<i32>>>::default();
    let mut hostile = JoinSet::new();
    for _ in 0..4 {
        for path in [
            "/cookiesync.v1.CookieStreamer/GetCookies",
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Watch",
        ] {
            hostile.spawn(call_endlessly(
                producer.grpc.clone(),
                path,
                Arc::clone(&codes),
            ));
        }
    }
    for _ in 0..50 {
        hostile.spawn(run_hostile_client(producer.grpc.clone(), Arc::default()));
    }
    let plan = producer.ordered_load(1, RATE, RATE * SECONDS)?;
    let reading = async {
        for second in 1..=SECONDS {
            good.read_to(RATE * second).await?;
            let name = format!("new-{second}");
            Subscription::open_with(&producer.grpc, from_newest(&name), TOKEN).await?;
        }
        Ok(())
    };
    tokio::try_join!(accept_all(&plan), reading)?;
    assert_eq!(good.lost(), 0);
    let metrics = producer.metrics().await?;
    for reason in ["calls", "bytes"] {
        assert_eq!(
            metrics.count(REJECTED_CALLS, &[("reason", reason)]),
            0,
            "{reason}"
        );
    }
    let rejected = |code: Code| codes.lock().expect("not poisoned").contains(&code.into());
    ensure!(rejected(Code::Unauthenticated) && rejected(Code::ResourceExhausted));
    ensure!(metrics.count(REJECTED_CALLS, &[("reason", "health_checks")]) > 0);
    Ok(())
}

/// Opens a call, announces a message of 512 KiB, and sends all of it except the last byte, until the call is ended.
async fn leave_unfinished(address: &str, calls: SendRequest<Bytes>) -> Result<(), h2::Error> {
    const FRAME: Bytes = Bytes::from_static(&[0; 16 << 10]);
    let mut calls = calls.ready().await?;
    let request = Request::post(format!("{address}/cookiesync.v1.CookieStreamer/Subscribe"));
    let request = request.body(()).expect("the request is valid");
    let (answer, mut body) = calls.send_request(request, false)?;
    let sending = async {
        body.send_data(Bytes::from_static(&[0, 0, 8, 0, 0]), false)?;
        let mut left = (512 << 10) - 1;
        while left > 0 {
            body.reserve_capacity(FRAME.len().min(left));
            let Some(capacity) = poll_fn(|context| body.poll_capacity(context)).await else {
                break;
            };
            let bytes = capacity?.min(FRAME.len()).min(left);
            body.send_data(FRAME.slice(..bytes), false)?;
            left -= bytes;
        }
        Ok::<_, h2::Error>(())
    };
    // The call may be rejected early; how it ends does not matter.
    let (_sent, _answer) = tokio::join!(sending, answer);
    Ok(())
}

/// Keeps four unfinished calls open on one connection. Reopens each call a second after its end, and counts the ends.
async fn run_hostile_client(address: String, ended: Arc<AtomicU64>) {
    let (_, socket) = address.split_at("http://".len());
    loop {
        let Ok(stream) = TcpStream::connect(socket).await else {
            continue;
        };
        let Ok((calls, connection)) = h2::client::handshake(stream).await else {
            continue;
        };
        let call = async || {
            while leave_unfinished(&address, calls.clone()).await.is_ok() {
                ended.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(1)).await;
            }
        };
        let four = async { tokio::join!(call(), call(), call(), call()) };
        tokio::select! {
            _ = connection => {}
            _ = four => {}
        }
    }
}

/// Peaks and results of subscriptions while a producer is under attack.
#[derive(Debug, Default)]
struct AttackReport {
    memory_bytes: u64,
    subscribed: u64,
    rejected: u64,
}

/// Subscribes repeatedly and records the producer's memory until `stop`.
async fn watch(producer: &Producer, stop: &CancellationToken) -> Result<AttackReport> {
    let mut report = AttackReport::default();
    while !stop.is_cancelled() {
        let metrics = producer.metrics().await?;
        let memory = metrics.count("process_resident_memory_bytes", &[]);
        report.memory_bytes = report.memory_bytes.max(memory);
        match Subscription::open(&producer.grpc, from_newest("repeated")).await {
            Ok(_) => report.subscribed += 1,
            Err(_) => report.rejected += 1,
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(report)
}

/// `connections` connections with four unfinished requests each, during a load of 20,000 cookies per second for `seconds`.
async fn check_unfinished_requests(connections: usize, seconds: u64) -> Result<()> {
    const RATE: u64 = 20_000;
    let _machine = reserve_machine().await;
    let files = raise_open_files();
    ensure!(
        files > 512 + connections as u64,
        "the open-file limit of {files} is too low"
    );
    let dir = TempDir::new()?;
    let grpc = (connections + 8).to_string();
    let flags = [
        ["--grpc-connections", &grpc],
        ["--grpc-connections-per-address", &grpc],
        ["--http-connections", "64"],
        ["--log-bytes", "32MiB"],
        ["--in-flight-bytes", "16MiB"],
    ];
    let flags = flags.concat();
    let arguments = ["producer"].iter().chain(&flags).map(OsString::from);
    let bound = memory::bytes_max(&Config::load(arguments)?);
    let producer = Producer::start(&dir, &flags).await?;
    let mut good = Subscription::open(&producer.grpc, from_newest("good")).await?;

    let ended = Arc::<AtomicU64>::default();
    let mut hostile = JoinSet::new();
    for _ in 0..connections {
        hostile.spawn(run_hostile_client(
            producer.grpc.clone(),
            Arc::clone(&ended),
        ));
    }
    wait_until(2 * TIMEOUT, "all clients are connected", async || {
        let open = producer.metrics().await?.count(CONNECTIONS, &[]);
        Ok(open > connections as u64)
    })
    .await?;
    let plan = producer.ordered_load(1, RATE, RATE * seconds)?;
    let stop = CancellationToken::new();
    let loading = async {
        let reading = async {
            for second in 1..=seconds {
                good.read_to(RATE * second).await?;
                good.cookies.clear();
            }
            Ok(())
        };
        let loaded = tokio::try_join!(accept_all(&plan), reading);
        stop.cancel();
        loaded
    };
    let (loaded, report) = tokio::join!(loading, watch(&producer, &stop));
    let report = report?;
    let metrics = producer.metrics().await?;
    let rejected = |reason| metrics.count(REJECTED_CALLS, &[("reason", reason)]);
    println!(
        "{connections} connections, {seconds} s: {report:?}, maximum {bound} bytes; {} calls ended; rejected for bytes {}, \
         for their number {}",
        ended.load(Ordering::Relaxed),
        rejected("bytes"),
        rejected("calls"),
    );
    loaded?;
    assert_eq!(good.lost(), 0);
    ensure!(report.memory_bytes <= bound, "{report:?}, maximum {bound}");
    ensure!(rejected("bytes") > 0, "memory never ran short");
    ensure!(report.subscribed > 0, "{report:?}");
    Ok(())
}

#[tokio::test]
async fn unfinished_requests_stay_within_the_documented_memory() -> Result<()> {
    check_unfinished_requests(300, 5).await
}

/// `cargo test --release --test it -- --ignored --nocapture unfinished_requests_of_2048`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and needs an idle machine"]
async fn unfinished_requests_of_2048_connections_stay_within_the_documented_memory() -> Result<()> {
    check_unfinished_requests(2_048, 60).await
}
