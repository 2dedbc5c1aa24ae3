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
    edge::{Metrics, dsps::Shown},
    log::{self, Log},
};

/// A connection to an edge that closes once `leaving` is cancelled.
fn connect(leaving: CancellationToken) -> (DuplexStream, JoinHandle<Result<(), ConnectionError>>) {
    let log = Log::new(log::Config {
        epoch: 1,
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_millis(30),
    });
    let shown = Shown {
        named: BTreeSet::new(),
        max: 2,
        refuses_others: false,
    };
    let metrics = Metrics::register(&Registry::new(), &shown).unwrap();
    let edge = Edge::new(log, None, metrics, leaving);
    let (near, far) = duplex(1 << 20);
    let served = TaskTracker::new().spawn(async move {
        let stopping = CancellationToken::new();
        Connection::default()
            .serve(&edge, far, &Activity::default(), &stopping)
            .await
    });
    (near, served)
}

/// Reads until there are `count` responses.
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
async fn other_tasks_run_between_the_requests_of_one_connection() {
    const REQUESTS: usize = 6_400;
    let (mut stream, served) = connect(CancellationToken::new());
    let turns = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&turns);
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
    let before = turns.load(Ordering::Relaxed);
    responses(&mut stream, REQUESTS).await;
    let between = turns.load(Ordering::Relaxed) - before;
    // Some may be answered while all are still being written.
    assert!(
        between >= REQUESTS as u64 / TURN_REQUESTS_MAX / 2,
        "{between} turns of another task beside {REQUESTS} requests"
    );
    other.abort();
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn requests_that_were_sent_together_are_all_answered_before_closing() {
    let leaving = CancellationToken::new();
    let (mut stream, served) = connect(leaving.clone());
    leaving.cancel();
    let request = "GET /?d=17&b=b HTTP/1.1\r\nCookie: uid=alice\r\n\r\n";
    // More than fit one read, and one turn.
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
