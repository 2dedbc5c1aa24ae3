//! What clients that are slow, or never end, can make the lookup port hold.

use anyhow::{Result, ensure};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use testkit::{http::HttpClient, memory::Memory, scrape::names};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Code, Request};

use super::{Node, USER, grpc_request};
use crate::harness::{TIMEOUT, embedded, wait_until, within_timeout};

/// The maximum memory of the port.
const PORT_BYTES_MAX: u64 = 96 << 20;

/// Connections that send a part of a request, or do not read their answer.
const UNFINISHED: usize = 64;
const SLOW_READERS: usize = 20;

/// The port's maximum number of connections.
const CONNECTIONS_MAX: usize = 256;

/// A request, and a batch whose body is announced, with the beginning of the body: so many users.
fn unfinished(users: usize) -> String {
    format!(
        "GET /v1/users/{USER} HTTP/1.1\r\nhost: localhost\r\n\r\n\
         POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{{\"users\":[{}",
        128 << 10,
        "\"u\",".repeat(users),
    )
}

/// Sends 20 matches of [`USER`] with buyer uids of the maximum length, and waits until they are stored.
async fn accept_long(node: &Node) -> Result<()> {
    let mut expected = serde_json::Map::new();
    for dsp_id in 1..=20 {
        let uid = format!("{dsp_id:0256}");
        node.producer.accept(USER, dsp_id, &uid).await?;
        expected.insert(dsp_id.to_string(), uid.into());
    }
    node.consumer.wait_lookup(USER, expected.into()).await
}

#[tokio::test]
async fn slow_clients_hold_bounded_memory_and_do_not_stop_others() -> Result<()> {
    let dir = TempDir::new()?;
    let node = Node::start(&dir, &embedded(&dir.path().join("store")), &[]).await?;
    accept_long(&node).await?;
    let small = json!({"users": [USER], "dsps": [1]});
    assert_eq!(node.post(&small).await?.0, 200);
    let resident = || Memory::of(node.consumer.process.id()).unwrap_or_default();
    let before = resident().resident_bytes;

    let mut held: Vec<HttpClient> = Vec::new();
    // An answer of 5 MiB: one user, a thousand times.
    let large = json!({"users": vec![USER; 1_000], "dsps": (1..=20).collect::<Vec<_>>()});
    let head = format!(
        "POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{large}",
        large.to_string().len()
    );
    let mut statuses = Vec::new();
    for _ in 0..SLOW_READERS {
        let mut http = node.http().await?;
        http.send(head.as_bytes()).await?;
        statuses.push(http.head_response().await?.status);
        held.push(http);
    }
    let answered = statuses.iter().filter(|status| **status == 200).count();
    ensure!((5..=12).contains(&answered), "{statuses:?}");
    ensure!(
        statuses[answered..].iter().all(|it| *it == 429),
        "{statuses:?}"
    );
    for number in 0..UNFINISHED {
        let mut http = node.http().await?;
        // Of every second one, nothing arrives after the first packet.
        let users = if number % 2 == 0 { 1 } else { 30 << 10 };
        http.send(unfinished(users).as_bytes()).await?;
        held.push(http);
    }
    wait_until(TIMEOUT, "further requests are rejected", async || {
        let mut http = node.http().await?;
        http.send(unfinished(1).as_bytes()).await?;
        // The port may not have seen all others yet: then it waits for the body.
        let unknown = node.http().await?.get("/v1/users/unknown", &[]).await?;
        Ok(unknown.status == 429 && unknown.head.contains("\r\nretry-after: 1\r\n"))
    })
    .await?;
    while held.len() < CONNECTIONS_MAX - 1 {
        held.push(node.http().await?);
    }
    let (status, body) = node.post(&small).await?;
    assert_eq!((status, &body["complete"]), (200, &json!(true)));
    let grown = resident().peak_bytes.saturating_sub(before);
    ensure!(grown <= PORT_BYTES_MAX, "the memory grew by {grown} bytes");
    let slow = [("reason", "slow_request")];
    wait_until(TIMEOUT, "unfinished requests are closed", async || {
        let closed = node.consumer.metrics().await?;
        let closed = closed.count("consumer_lookup_connections_closed_total", &slow);
        Ok(closed >= UNFINISHED as u64)
    })
    .await?;
    assert_eq!(
        node.http()
            .await?
            .get("/v1/users/unknown", &[])
            .await?
            .status,
        404
    );

    drop(held);
    wait_until(TIMEOUT, "large answers are sent again", async || {
        let mut http = node.http().await?;
        http.send(head.as_bytes()).await?;
        let response = http.response().await?;
        Ok(response.status == 200 && response.body.matches(r#""20":"#).count() == 1_000)
    })
    .await?;
    let busy = [("api", "http"), ("outcome", "busy")];
    let metrics = node.consumer.metrics().await?;
    ensure!(metrics.count(names::LOOKUPS, &busy) >= (SLOW_READERS - 12) as u64);
    node.check_no_ids().await
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Calls of a client that accepts the first 1,000 bytes of their answers: HTTP/2 then takes the whole answer.
fn unread_calls(calls: u32, message: &[u8]) -> Vec<u8> {
    let (data, headers, settings) = (0, 1, 4);
    let (end_stream, end_headers) = (1, 4);
    let initial_window_size = [0, 4, 0, 0, 3, 232];
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(settings, 0, 0, &initial_window_size));
    // Header fields without compression.
    let mut fields = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/cookiesync.v1.Lookup/Get"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "1S"),
    ] {
        fields.push(0);
        for text in [name, value] {
            fields.push(u8::try_from(text.len()).unwrap_or(0));
            fields.extend_from_slice(text.as_bytes());
        }
    }
    let length = u32::try_from(message.len()).unwrap_or(0).to_be_bytes();
    let message = [&[0], &length[..], message].concat();
    for stream in (0..calls).map(|call| 2 * call + 1) {
        bytes.extend(frame(headers, end_headers, stream, &fields));
        bytes.extend(frame(data, end_stream, stream, &message));
    }
    bytes
}

#[tokio::test]
async fn unread_answers_of_calls_are_bounded_and_given_up() -> Result<()> {
    let dir = TempDir::new()?;
    let node = Node::start(&dir, &embedded(&dir.path().join("store")), &[]).await?;
    accept_long(&node).await?;
    let request = grpc_request(&[USER; 1_000], &(1..=20).collect::<Vec<_>>());
    let message = request.encode_to_vec();
    let before = Memory::of(node.consumer.process.id()).unwrap_or_default();
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(&node.lookup).await?;
        stream.write_all(&unread_calls(3, &message)).await?;
        unread.push(stream);
    }
    let busy = [("api", "grpc"), ("outcome", "busy")];
    let ok = [("api", "grpc"), ("outcome", "ok")];
    wait_until(TIMEOUT, "the calls are answered or rejected", async || {
        let metrics = node.consumer.metrics().await?;
        let counts = [&busy, &ok].map(|labels| metrics.count(names::LOOKUPS, labels));
        Ok(counts.iter().sum::<u64>() == 12)
    })
    .await?;
    let after = Memory::of(node.consumer.process.id()).unwrap_or_default();
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    ensure!(grown <= PORT_BYTES_MAX, "the memory grew by {grown} bytes");
    let mut grpc = node.grpc().await?.max_decoding_message_size(16 << 20);
    let status = grpc.get(request.clone()).await.err().map(|it| it.code());
    assert_eq!(status, Some(Code::ResourceExhausted));
    for stream in &mut unread {
        // Headers and the first bytes arrive; then the server closes the connection.
        let mut received = Vec::new();
        let reading = stream.read_to_end(&mut received);
        within_timeout("the connection is closed", reading)
            .await?
            .ok();
        ensure!(received.len() < 64 << 10, "{} bytes", received.len());
    }
    let mut call = Request::new(request);
    call.set_timeout(TIMEOUT);
    let response = grpc.get(call).await?.into_inner();
    assert_eq!(response.users.len(), 1_000);
    Ok(())
}
