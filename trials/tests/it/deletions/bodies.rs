//! Tests of hostile request bodies and untrusted clients of the API: each request gets the documented error, and has no other effect.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{http::HttpClient, memory::Memory};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{UNLIMITED, call, start_producer};
use crate::harness::{Consumer, Producer, TIMEOUT, embedded, wait_until, within_timeout};

const MIB: usize = 1 << 20;

/// A row of 4,000 bytes whose buyer uid is random, so that gzip shrinks it by a factor of about 20.
fn padded_row(random: &mut fastrand::Rng) -> String {
    let buyer: String = (0..250).map(|_| random.alphanumeric()).collect();
    let row = format!("{{\"u\":\"u\",\"d\":1,\"b\":\"{buyer}\"");
    format!("{row:<3998}}}\n")
}

fn gzip(body: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body)?;
    Ok(encoder.finish()?)
}

/// A body and its expected status.
struct Case {
    name: &'static str,
    headers: &'static str,
    body: Vec<u8>,
    status: u16,
}

const NDJSON: &str = "content-type: application/x-ndjson\r\n";
const GZIP: &str = "content-type: application/x-ndjson\r\ncontent-encoding: gzip\r\n";

fn cases() -> Result<Vec<Case>> {
    let mut random = fastrand::Rng::with_seed(7);
    let block: String = (0..MIB / 4_000).map(|_| padded_row(&mut random)).collect();
    let valid = b"{\"u\":\"u\",\"d\":1,\"b\":\"b\"}\n";
    let deep = "[".repeat(4_000).into_bytes();
    let case = |name, headers, body, status| Case {
        name,
        headers,
        body,
        status,
    };
    let of_parts = |parts: &[&[u8]]| parts.concat();
    Ok(vec![
        case("ratio over 100:1", GZIP, gzip(&vec![b'\n'; 4 * MIB])?, 413),
        case(
            "over 64 MiB inflated",
            GZIP,
            gzip(block.as_bytes())?.repeat(66),
            413,
        ),
        case("over 16 MiB", NDJSON, block.repeat(18).into_bytes(), 413),
        case(
            "endless line",
            NDJSON,
            of_parts(&[&[b'x'; MIB], b"\n", valid]),
            207,
        ),
        case(
            "a million invalid rows",
            NDJSON,
            b"x\n".repeat(1_000_000),
            413,
        ),
        case("100,000 invalid rows", NDJSON, b"x\n".repeat(100_000), 207),
        case("only line breaks", NDJSON, vec![b'\n'; 2 * MIB], 413),
        case("deep JSON", NDJSON, of_parts(&[&deep, b"\n", valid]), 207),
        case(
            "invalid UTF-8",
            NDJSON,
            of_parts(&[b"{\"u\":\"\xff\"}\n", valid]),
            207,
        ),
        case(
            "incomplete row",
            NDJSON,
            of_parts(&[valid, &valid[..20]]),
            207,
        ),
        case("incomplete gzip", GZIP, gzip(valid)?[..20].to_vec(), 400),
        case("no gzip", GZIP, valid.to_vec(), 400),
        case(
            "other media type",
            "content-type: text/plain\r\n",
            valid.repeat(8 * MIB / valid.len()),
            415,
        ),
        case(
            "other encoding",
            "content-type: application/x-ndjson\r\ncontent-encoding: br\r\n",
            valid.to_vec(),
            415,
        ),
    ])
}

/// Sends a body, with its length or in chunks. The server reads the whole body, so that any client receives the response.
async fn send(api: &str, case: &Case, is_chunked: bool) -> Result<(u16, Value)> {
    let (headers, body) = (case.headers, &case.body);
    let mut request =
        format!("POST /v1/cookies HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\n{headers}")
            .into_bytes();
    if is_chunked {
        request.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        for part in body.chunks(100_000) {
            request.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
    } else {
        request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(body);
    }
    let mut connection = TcpStream::connect(api).await?;
    let mut response = Vec::new();
    let exchange = async {
        connection.write_all(&request).await?;
        connection.read_to_end(&mut response).await
    };
    within_timeout("a response", exchange).await??;
    let response = String::from_utf8(response)?;
    let parsed = response.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some((status, serde_json::from_str(body).ok()?))
    });
    parsed.with_context(|| format!("not a response: {response:?}"))
}

/// Sends one case and compares the response with the log.
async fn check(producer: &Producer, api: &str, case: &Case, is_chunked: bool) -> Result<Value> {
    let before = producer.appended().await?;
    let (status, body) = send(api, case, is_chunked).await?;
    ensure!(status == case.status, "{status} {body}");
    if status >= 400 {
        ensure!(
            body["status"] == status && body["type"] == Value::Null,
            "{body}"
        );
    }
    let accepted = body["accepted"].as_u64().unwrap_or(0);
    let appended = producer.appended().await? - before;
    ensure!(
        appended == accepted,
        "{appended} cookies were added to the log: {body}"
    );
    Ok(body)
}

#[tokio::test]
async fn hostile_body_gets_its_problem_and_changes_nothing_more() -> Result<()> {
    let dir = TempDir::new()?;
    let (producer, api) = start_producer(&dir, &UNLIMITED).await?;
    for case in &cases()? {
        for is_chunked in [false, true] {
            let what = || format!("{}, chunked: {is_chunked}", case.name);
            let body = check(&producer, &api, case, is_chunked)
                .await
                .with_context(what)?;
            match case.name {
                "over 16 MiB" if !is_chunked => ensure!(body["accepted"] == Value::Null, "{body}"),
                "100,000 invalid rows" => {
                    let errors = body["errors"].as_array().map(Vec::len);
                    ensure!(errors == Some(100) && body["rejected"] == 100_000, "{body}");
                    ensure!(body["errors_omitted"] == 99_900, "{body}");
                }
                "endless line" | "deep JSON" | "invalid UTF-8" => {
                    let error = json!([{ "row": 1, "reason": "malformed" }]);
                    ensure!(body["accepted"] == 1 && body["errors"] == error, "{body}");
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The maximum is the value in the documented memory table.
#[tokio::test]
async fn concurrent_hostile_bodies_take_little_memory() -> Result<()> {
    let dir = TempDir::new()?;
    let flags = [&UNLIMITED[..], &["--log-bytes", "1MiB"]].concat();
    let (producer, api) = start_producer(&dir, &flags).await?;
    let memory = || Memory::of(producer.process.id()).context("the producer has ended");
    let before = memory()?.resident_bytes;
    let mut sending = JoinSet::new();
    for is_chunked in [false, true] {
        for case in cases()? {
            let api = api.clone();
            sending.spawn(async move { send(&api, &case, is_chunked).await.context(case.name) });
        }
    }
    let requests = sending.len();
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    let growth = memory()?.peak_bytes.saturating_sub(before) / requests as u64;
    println!("{} KiB for each of {requests} requests", growth >> 10);
    ensure!(growth <= 1_253_376, "{growth} bytes for each request");
    Ok(())
}

#[tokio::test]
async fn rows_of_a_client_that_disconnects_are_counted() -> Result<()> {
    let dir = TempDir::new()?;
    let (producer, api) = start_producer(&dir, &UNLIMITED).await?;
    let mut connection = HttpClient::connect(&api).await?;
    let rows = "{\"u\":\"u\",\"d\":1,\"b\":\"b\"}\n".repeat(1_000);
    let head = format!(
        "POST /v1/cookies HTTP/1.1\r\nhost: {api}\r\n{NDJSON}content-length: {}\r\n\r\n",
        rows.len() + 1
    );
    connection.send((head + &rows).as_bytes()).await?;
    let appended = async || Ok(producer.appended().await? == 1_000);
    wait_until(TIMEOUT, "the rows are in the log", appended).await?;
    drop(connection);
    wait_until(TIMEOUT, "the rows are counted", async || {
        let metrics = producer.metrics().await?;
        let labels = [("outcome", "accepted")];
        Ok(metrics.count("producer_api_rows_total", &labels) == 1_000)
    })
    .await
}

#[tokio::test]
async fn untrusted_client_changes_nothing() -> Result<()> {
    const WRITER: &str = "a-token-that-writes-17";
    const DELETER: &str = "a-token-that-deletes-17";
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    std::fs::write(
        &tokens,
        format!("w {WRITER} 17 write\nd {DELETER} 17 delete\n"),
    )?;
    let tokens = tokens.display().to_string();
    let flags = ["--api-tokens", &tokens, "--opt-out"];
    let (producer, api) = start_producer(&dir, &flags).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept("alice", 17, "a").await?;
    producer.accept("alice", 18, "a").await?;
    let stored = json!({ "17": "a", "18": "a" });
    consumer.wait_lookup("alice", stored.clone()).await?;

    let row = "{\"u\":\"alice\",\"d\":18,\"b\":\"x\"}";
    let deletions = "{\"u\":\"alice\"}\n{\"u\":\"alice\",\"d\":18}";
    for (request, token, body, expected) in [
        ("DELETE /v1/users/alice", "", "", 401),
        ("DELETE /v1/users/alice", "an-unknown-token-of-any", "", 401),
        ("DELETE /v1/users/alice", WRITER, "", 403),
        // This token may delete at DSP 17 only.
        ("DELETE /v1/users/alice", DELETER, "", 403),
        ("DELETE /v1/users/alice/dsps/18", DELETER, "", 403),
        ("DELETE /v1/dsps/18?confirm=18", DELETER, "", 403),
        ("POST /v1/deletions", "", deletions, 401),
        ("POST /v1/deletions", WRITER, deletions, 403),
        ("POST /v1/deletions", DELETER, deletions, 400),
        ("POST /v1/cookies", "", row, 401),
        ("POST /v1/cookies", DELETER, row, 403),
        ("POST /v1/cookies", WRITER, row, 207),
        ("GET /v1/receipts/r", WRITER, "", 403),
    ] {
        let token = match token {
            "" => String::new(),
            token => format!("authorization: Bearer {token}\r\n"),
        };
        let head = format!("{request} HTTP/1.1\r\n{token}content-type: application/x-ndjson");
        let (status, response) = call(&api, &head, body).await?;
        ensure!(status == expected, "{head}: {status} {response}");
    }

    let host = &producer.http;
    let own = format!("origin: http://{host}\r\n");
    for (method, query, origin, expected) in [
        ("GET", "choice=out", own.as_str(), 200),
        ("POST", "choice=out", "", 403),
        ("POST", "choice=out", "origin: null\r\n", 403),
        (
            "POST",
            "choice=out",
            "origin: https://evil.example\r\n",
            403,
        ),
        ("POST", "choice=none", &own, 403),
        ("DELETE", "choice=out", &own, 405),
    ] {
        let head = format!("{method} /optout?{query} HTTP/1.1\r\n{origin}cookie: uid=alice");
        let (status, response) = call(host, &head, "").await?;
        ensure!(status == expected, "{head}: {status} {response}");
    }
    assert_eq!(producer.appended().await?, 2, "no record was added");
    consumer.wait_lookup("alice", stored).await
}
