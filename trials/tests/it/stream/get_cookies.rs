//! Tests of the wire protocol of `GetCookies`, which clients in any language rely on.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use proto::{
    client,
    v1::{Cookie, GetCookiesRequest},
};
use tempfile::TempDir;
use testkit::scrape::names;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    time,
};
use tonic::Code;

use crate::{
    harness::{Producer, TIMEOUT, accept_all, numbered_cookie, wait_until, within_timeout},
    stream::python_client::{MISSING, environment, generate},
    stream_client::CookieStream,
};

#[tokio::test]
async fn reconnecting_reader_loses_nothing() -> Result<()> {
    const COOKIES: u64 = 6_000;
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut stream = CookieStream::open(&producer.grpc, "bidder").await?;
    let plan = producer.ordered_load(1, 3_000, COOKIES)?;
    let reading = async {
        let expected: BTreeSet<_> = (0..COOKIES)
            .map(|number| plan.traffic.cookie(0, number).user_id().to_owned())
            .collect();
        let mut received = BTreeSet::new();
        let mut connections = 1;
        while received.len() < expected.len() {
            stream.read().await?;
            let user = stream.cookies.pop().map(|cookie| cookie.user_id);
            received.extend(user);
            // Disconnects with cookies in flight.
            if received.len() as u64 / 1_000 >= connections && connections < 5 {
                drop(stream);
                connections += 1;
                stream = CookieStream::open(&producer.grpc, "bidder").await?;
            }
        }
        assert_eq!(received, expected);
        assert_eq!(connections, 5);
        anyhow::Ok(())
    };
    let (accepted, read) = tokio::join!(accept_all(&plan), reading);
    accepted?;
    read
}

#[tokio::test]
async fn paused_reader_stays_connected_and_receives_everything() -> Result<()> {
    const COOKIES: u64 = 20_000;
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut stream = CookieStream::open(&producer.grpc, "bidder").await?;
    // Many small chunks, and therefore many frames, arrive while it does not read.
    let plan = producer.ordered_load(1, 8_000, COOKIES)?;
    accept_all(&plan).await?;
    for number in 0..COOKIES {
        stream.read().await?;
        let cookie = stream.cookies.pop().unwrap_or_default();
        let sent = plan.traffic.cookie(0, number);
        assert_eq!(
            (&*cookie.user_id, cookie.dsp_id, &*cookie.buyer_uid),
            (sent.user_id(), sent.dsp_id(), sent.buyer_uid())
        );
    }
    Ok(())
}

/// Pauses a Python client while `cookies` arrive at 20,000 per second. It must receive all of them afterwards.
async fn check_paused_client(cookies: u64, timeout: Duration) -> Result<()> {
    let python = tokio::task::spawn_blocking(environment)
        .await?
        .context(MISSING)?;
    let dir = TempDir::new()?;
    let generated = dir.path().join("generated");
    generate(&python, &generated)?;
    let producer = Producer::start(&dir, &[]).await?;
    let plan = producer.ordered_load(1, 20_000, cookies)?;
    let mut expected = String::new();
    for number in 0..cookies {
        let sent = plan.traffic.cookie(0, number);
        let (user, dsp, buyer) = (sent.user_id(), sent.dsp_id(), sent.buyer_uid());
        writeln!(expected, "{user}\t{dsp}\t{buyer}")?;
    }
    let expected_path = dir.path().join("expected.txt");
    fs::write(&expected_path, expected)?;

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/pausing_client.py");
    let mut client = tokio::process::Command::new(&python)
        .arg(script)
        .arg(producer.grpc.trim_start_matches("http://"))
        .args([&expected_path, &generated])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines =
        BufReader::new(client.stdout.take().context("the client has no stdout")?).lines();
    let ready = within_timeout("the client opens its stream", lines.next_line()).await??;
    if ready.as_deref() == Some("ready") {
        accept_all(&plan).await?;
        let mut stdin = client.stdin.take().context("the client has no stdin")?;
        stdin.write_all(b"read\n").await?;
    }
    let output = time::timeout(timeout, client.wait_with_output()).await;
    let output = output.context("the client has not received every cookie in time")??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{errors}", output.status);
    let labels = [("subscriber", "pausing"), ("call", "get_cookies")];
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(names::STREAMS, &labels), 1);
    assert_eq!(metrics.count(names::SUBSCRIBER_LOST, &labels), 0);
    Ok(())
}

#[tokio::test]
async fn paused_python_client_receives_everything() -> Result<()> {
    check_paused_client(60_000, TIMEOUT).await
}

#[tokio::test]
#[ignore = "takes a minute"]
async fn python_client_paused_for_half_a_minute_receives_everything() -> Result<()> {
    check_paused_client(600_000, Duration::from_secs(180)).await
}

#[tokio::test]
async fn single_cookie_is_padded_and_delivered_unchanged() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut stream = CookieStream::open(&producer.grpc, "bidder").await?;
    for number in 1..=3 {
        producer.accept_numbers(number..=number).await?;
        stream.read_single().await?;
        let (user_id, dsp_id, buyer_uid) = numbered_cookie(number);
        let sent = Cookie {
            user_id,
            dsp_id,
            buyer_uid,
            ..Cookie::default()
        };
        assert_eq!(stream.cookies.last(), Some(&sent));
    }
    Ok(())
}

#[tokio::test]
async fn invalid_host_name_is_rejected() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    for host in [String::new(), "x".repeat(257)] {
        let channel = client::endpoint(producer.grpc.clone())?.connect().await?;
        let request = GetCookiesRequest {
            host,
            ..GetCookiesRequest::default()
        };
        let result = match client::get_cookies(channel, request).await {
            Ok(response) => response.into_inner().message().await.map(drop),
            Err(status) => Err(status),
        };
        let status = result.expect_err("the host name is invalid");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn newer_stream_of_a_host_closes_the_older() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut older = CookieStream::open(&producer.grpc, "bidder").await?;
    let _newer = CookieStream::open(&producer.grpc, "bidder").await?;
    assert_eq!(older.read_to_end().await?.code(), Code::Aborted);
    wait_until(TIMEOUT, "two streams are counted", async || {
        let labels = [("subscriber", "bidder"), ("call", "get_cookies")];
        Ok(producer.metrics().await?.count(names::STREAMS, &labels) == 2)
    })
    .await
}
