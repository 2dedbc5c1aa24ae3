//! Tests of scheduling and closing of one connection.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use runtime::metrics::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    edge::{Metrics, dsps::DspSeries},
    log::{self, Log},
};

/// Connects to an edge that closes its connections when `draining` is cancelled.
fn connect(
    draining: CancellationToken,
) -> (DuplexStream, JoinHandle<Result<(), EdgeConnectionError>>) {
    let log = Log::new(log::Config {
        epoch: 1,
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_millis(30),
    });
    let series = DspSeries {
        listed: BTreeSet::new(),
        max: 2,
        rejects_unlisted: false,
    };
    let metrics = Metrics::register(&Registry::new(), &series).unwrap();
    let edge = Edge::new(log, None, None, metrics, draining);
    let (client, server) = duplex(1 << 20);
    let served = TaskTracker::new().spawn(async move {
        let stopping = CancellationToken::new();
        EdgeConnection::default()
            .serve(&edge, server, &Activity::default(), &stopping)
            .await
    });
    (client, served)
}

/// Reads `count` responses.
async fn responses(stream: &mut DuplexStream, count: usize) -> String {
    let mut text = String::new();
    while text.matches("HTTP/1.1").count() < count || !text.ends_with("\r\n\r\n") {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "closed after {text}");
        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    text
}

#[tokio::test]
async fn busy_connection_yields_to_other_tasks() {
    const REQUESTS: usize = 6_400;
    let (mut stream, served) = connect(CancellationToken::new());
    let polls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&polls);
    let other = TaskTracker::new().spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    let request = "HEAD / HTTP/1.1\r\n\r\n";
    stream
        .write_all(request.repeat(REQUESTS).as_bytes())
        .await
        .unwrap();
    let before = polls.load(Ordering::Relaxed);
    responses(&mut stream, REQUESTS).await;
    let between = polls.load(Ordering::Relaxed) - before;
    // Some may be handled while others are still being written.
    assert!(
        between >= REQUESTS as u64 / YIELD_REQUESTS_MAX / 2,
        "another task was polled {between} times during {REQUESTS} requests"
    );
    other.abort();
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn pipelined_requests_are_all_handled_before_closing() {
    let draining = CancellationToken::new();
    let (mut stream, served) = connect(draining.clone());
    draining.cancel();
    let request = "GET /?d=17&b=b HTTP/1.1\r\nCookie: uid=alice\r\n\r\n";
    // More than one read, and more than one yield interval.
    let sent = request.repeat(100);
    stream.write_all(sent.as_bytes()).await.unwrap();
    let text = responses(&mut stream, 100).await;
    assert_eq!(text.matches("200 OK").count(), 100);
    assert_eq!(text.matches("connection: close").count(), 1);
    let last = text.rfind("HTTP/1.1").unwrap();
    assert!(text[last..].contains("connection: close"), "{text}");
    drop(stream);
    served.await.unwrap().unwrap();
}
