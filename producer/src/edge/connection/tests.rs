//! Tests of scheduling and closing of one connection.

mod plans;

use std::sync::atomic::{AtomicU64, Ordering};

use proto::{units::Sequence, wire::Record};
use runtime::metrics::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufStream, DuplexStream, duplex},
    sync::Semaphore,
    task::{JoinHandle, yield_now},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    contracts::file,
    edge::{
        Metrics,
        browser_cookies::BrowserCookies,
        mint::UidMode,
        opt_out::{self, OptOut},
    },
    inlet,
    log::{self, Delivery, Log},
};

/// An edge that closes its connections when `draining` is cancelled.
fn edge(opt_out: bool, draining: CancellationToken) -> Edge {
    edge_with(&Registry::new(), None, opt_out, UidMode::Require, draining)
}

/// An edge with an empty log, whose metrics are in `registry`.
pub(in crate::edge) fn edge_with(
    registry: &Registry,
    contracts: Option<&str>,
    opt_out: bool,
    uid: UidMode,
    draining: CancellationToken,
) -> Edge {
    let parsed = contracts.map(|text| file::parse(text).unwrap());
    let contracts = Arc::new(parsed.unwrap_or_default());
    let metrics = Metrics::register(registry, None, contracts).unwrap();
    let opt_out = opt_out.then(|| OptOut::new(opt_out::Config::default()));
    Edge {
        inlet: inlet::tests::without_limits(),
        opt_out,
        uid,
        cookies: BrowserCookies::default(),
        metrics,
        rejection_log: crate::edge::rejection_log(),
        refusals: Arc::default(),
        large_answers: Arc::new(Semaphore::new(1)),
        draining,
    }
}

type Served = JoinHandle<anyhow::Result<()>>;

fn connect(edge: Edge) -> (DuplexStream, Served) {
    let (client, server) = duplex(1 << 20);
    (client, serve(edge, EdgeConnection::default(), server))
}

fn serve(edge: Edge, connection: EdgeConnection, stream: impl ByteStream) -> Served {
    TaskTracker::new().spawn(async move {
        let (activity, stopping) = (Arc::default(), CancellationToken::new());
        connection.serve(&edge, stream, &activity, &stopping).await
    })
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
    let (mut stream, served) = connect(edge(false, CancellationToken::new()));
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
    // Some requests may be handled while others are still being written.
    assert!(
        between >= REQUESTS as u64 / YIELD_REQUESTS_MAX / 2,
        "another task was polled {between} times during {REQUESTS} requests"
    );
    other.abort();
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn connection_has_a_low_priority_while_its_requests_are_rejected() {
    const REQUESTS: usize = 2_048;
    let (mut stream, server) = duplex(1 << 20);
    let connection = EdgeConnection::default();
    let is_low = connection.is_low();
    let served = serve(edge(false, CancellationToken::new()), connection, server);
    for (target, expected) in [("/", true), ("/?d=17&b=b", false)] {
        let request = format!("HEAD {target} HTTP/1.1\r\ncookie: uid=alice\r\n\r\n");
        let requests = request.repeat(REQUESTS);
        stream.write_all(requests.as_bytes()).await.unwrap();
        responses(&mut stream, REQUESTS).await;
        assert_eq!(is_low.load(Ordering::Relaxed), expected, "{target}");
    }
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn responses_are_flushed_and_a_known_client_cannot_state_another_address() {
    let (mut stream, server) = duplex(1 << 20);
    let client = Some("192.0.2.1".parse().unwrap());
    let connection = EdgeConnection::new(client);
    let edge = edge(true, CancellationToken::new());
    // Like a TLS stream, `BufStream` sends buffered responses only when it is flushed.
    let served = serve(edge, connection, BufStream::new(server));
    let mut accepted = 0;
    for number in 0..60 {
        let lines = "host: a\r\norigin: https://a\r\ncookie: uid=alice";
        let request = format!(
            "POST /optout?choice=out HTTP/1.1\r\n{lines}\r\nx-forwarded-for: 198.51.100.{number}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = [0; 4096];
        let reading = timeout(Duration::from_secs(1), stream.read(&mut bytes));
        let read = reading.await.expect("a response").unwrap();
        accepted += u32::from(bytes[..read].starts_with(b"HTTP/1.1 303 "));
    }
    assert_eq!(accepted, 50, "the burst of one address");
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn pipelined_requests_are_all_handled_before_closing() {
    let draining = CancellationToken::new();
    let (mut stream, served) = connect(edge(false, draining.clone()));
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

fn records(log: &Log) -> Vec<String> {
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let mut records = Vec::new();
    while let Some(Delivery::Chunk { chunk, first }) = log::tests::now(reader.next()) {
        for record in chunk.cookies_from(first).records() {
            records.push(match record.unwrap() {
                Record::Set(it) => format!("{} {} {}", it.user_id, it.dsp_id, it.buyer_uid),
                Record::Delete { scope, .. } => format!("{scope:?}"),
            });
        }
    }
    records
}

#[tokio::test]
async fn opt_out_deletes_a_match_that_was_sent_with_it() {
    let edge = edge(true, CancellationToken::new());
    let log = edge.inlet.log().clone();
    let (mut stream, served) = connect(edge);
    let sync = "GET /?d=17&b=b HTTP/1.1\r\ncookie: uid=alice\r\n\r\n";
    let lines = "host: a\r\norigin: https://a\r\ncookie: uid=alice";
    let sent = format!("{sync}POST /optout?choice=out HTTP/1.1\r\n{lines}\r\n\r\n");
    stream.write_all(sent.as_bytes()).await.unwrap();
    responses(&mut stream, 2).await;
    // The deletion follows in the next chunk.
    log::tests::seal(&log);
    log::tests::seal(&log);
    assert_eq!(records(&log)[1..], ["User(\"alice\")"]);
    drop(stream);
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn opt_out_deletes_and_stops_the_recording_until_it_is_undone() {
    let edge = edge(true, CancellationToken::new());
    let log = edge.inlet.log().clone();
    let (mut stream, served) = connect(edge);
    let mut send = async |request: &str, cookie: &str| {
        let host = "host: sync.example\r\norigin: https://sync.example";
        let head = format!("{request} HTTP/1.1\r\n{host}\r\ncookie: {cookie}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let response = responses(&mut stream, 1).await;
        let lines = response.lines().filter(|line| !line.starts_with("date"));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let opted_out = "uid=alice; cookiesync_optout=1";
    let cookie = |max_age: u32| {
        let attributes = "Path=/; Secure; HttpOnly; SameSite=None";
        format!("set-cookie: cookiesync_optout=1; Max-Age={max_age}; {attributes}")
    };
    let accepted = send("GET /?d=17&b=before", "uid=alice").await;
    for (choice, cookies, max_age) in [("out", "uid=alice", 34_560_000), ("in", opted_out, 0)] {
        let response = send(&format!("POST /optout?choice={choice}"), cookies).await;
        assert_eq!(response[0], "HTTP/1.1 303 See Other");
        assert!(response.contains(&"location: /optout".to_owned()));
        assert!(response.contains(&cookie(max_age)), "{response:?}");
        log::tests::seal(&log);
        if choice == "out" {
            // The browser sees no difference.
            assert_eq!(send("GET /?d=17&b=opted-out", opted_out).await, accepted);
        }
    }
    send("GET /?d=17&b=after", "uid=alice").await;
    log::tests::seal(&log);
    assert_eq!(
        records(&log),
        ["alice 17 before", "User(\"alice\")", "alice 17 after"]
    );
    drop(stream);
    served.await.unwrap().unwrap();
}

#[test]
fn responses_of_a_write_have_a_maximum_size() {
    let contracts = "[dsp.17]\nanswer = 'redirect'\nredirect = 'https://sync.example/?gpp={GPP}'\n";
    let draining = CancellationToken::new();
    let edge = edge_with(
        &Registry::new(),
        Some(contracts),
        false,
        UidMode::Mint,
        draining,
    );
    let request = |cookie: &str, bytes: usize| {
        let (begin, end) = ("GET /?d=17&b=b&gpp=", format!(" HTTP/1.1\r\n{cookie}\r\n"));
        format!(
            "{begin}{}{end}",
            "x".repeat(bytes - begin.len() - end.len())
        )
    };
    let longest = request("", HEAD_BYTES_MAX);
    let redirected = request("cookie: uid=u\r\n", 8_000);
    for count in 0..64 {
        for bytes in [64, 300, 1_000, 8_000] {
            let mut connection = EdgeConnection::default();
            let requests = request("", bytes).repeat(count) + &redirected + &longest;
            let input = (longest.clone() + &requests).into_bytes();
            let (mut consumed, mut output, mut next) = (0, Vec::new(), Next::Respond);
            while next == Next::Respond {
                let context = ReadContext {
                    read_at: Instant::now(),
                    is_stopping: false,
                    activity: &Arc::default(),
                };
                let rest = &input[consumed..];
                let handled = connection.handle(&edge, rest, &context, &mut output);
                let handled = handled.unwrap();
                next = handled.next;
                consumed += handled.consumed;
                let capacity = output.capacity();
                assert!(capacity <= WRITE_BYTES_MAX, "{capacity}");
                output.clear();
            }
        }
    }
}
