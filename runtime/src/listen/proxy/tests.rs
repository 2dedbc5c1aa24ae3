//! Tests of PROXY headers through the accept loop of a port, on a simulated clock.

use std::{future::pending, net::SocketAddr};

use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc::{self, Receiver, Sender},
    time::{Instant, sleep},
};

use super::*;
use crate::{
    listen::{self, Limits, Listener, Metrics, Stage, WatchedStream, activity::CloseReason},
    metrics::Registry,
};

const PROXY: &str = "10.0.0.1";

/// The first byte after a header.
const NEXT: u8 = b'!';

const LOCAL: u8 = 0x20;
const PROXIED: u8 = 0x21;
const TCP_4: u8 = 0x11;
const TCP_6: u8 = 0x21;

/// A header with this version and command, family, and rest.
fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, rest].concat()
}

/// Source and destination with ports, followed by `fields`.
fn addresses(source: &str, fields: &[u8]) -> Vec<u8> {
    let source = match source.parse().unwrap() {
        IpAddr::V4(source) => source.octets().to_vec(),
        IpAddr::V6(source) => source.octets().to_vec(),
    };
    let destination = vec![9; source.len()];
    [&source, &destination, &[1, 2, 3, 4][..], fields].concat()
}

/// A port with a simulated network, whose connections are served after they have sent [`NEXT`].
struct TestPort {
    connections: Sender<(DuplexStream, SocketAddr)>,
    clients: Receiver<IpAddr>,
    metrics: Metrics,
}

struct TestListener(Receiver<(DuplexStream, SocketAddr)>);

impl Listener for TestListener {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        Ok(self.0.recv().await.unwrap())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl TestPort {
    fn start() -> Self {
        let (connections, listener) = mpsc::channel(8);
        let (served, clients) = mpsc::channel(8);
        let limits = Limits {
            connections_max: 100,
            connections_per_address_max: Some(1),
            request_timeout: Some(Duration::from_secs(10)),
            idle_timeout: Duration::from_secs(60),
            write_timeout: None,
        };
        let metrics = Metrics::register(&Registry::new(), "test", "http").unwrap();
        let serve = move |mut stream: WatchedStream<DuplexStream>, _| {
            let served = served.clone();
            async move {
                if matches!(stream.read_u8().await, Ok(NEXT)) {
                    served.try_send(stream.peer()).unwrap();
                }
                pending().await
            }
        };
        let proxies = ["10.0.0.0/24", "2001:db8::/32"].map(|network| network.parse().unwrap());
        let stage = Stage::default();
        stage.tasks.spawn(listen::accept(
            TestListener(listener),
            Proxies::new(proxies),
            limits.fixed(),
            metrics.clone(),
            stage.clone(),
            serve,
        ));
        Self {
            connections,
            clients,
            metrics,
        }
    }

    fn connect(&self, peer: &str) -> DuplexStream {
        let (near, far) = duplex(2 * HEADER_BYTES_MAX);
        let address = SocketAddr::new(peer.parse().unwrap(), 1);
        self.connections.try_send((far, address)).unwrap();
        near
    }

    /// Waits until `connection` is served or closed. Returns the client's address, or the reasons counted so far.
    async fn outcome(&mut self, connection: &mut DuplexStream) -> Result<String, Vec<&str>> {
        tokio::select! {
            biased;
            client = self.clients.recv() => Ok(client.unwrap().to_string()),
            _ = connection.read_u8() => {
                let closed = |reason: &CloseReason| {
                    let count = self.metrics.closed.with_label_values(&[reason.label()]).get();
                    vec![reason.label(); usize::try_from(count).unwrap()]
                };
                Err(CloseReason::ALL.iter().flat_map(closed).collect())
            }
        }
    }
}

/// Compares the outcome of a connection from `peer` that sends these bytes, one per `pace`, and then shuts down writing if `ends`.
async fn check(
    name: &str,
    peer: &str,
    (sent, pace, ends): (&[u8], Duration, bool),
    expected: Result<&str, &[&str]>,
) {
    let mut port = TestPort::start();
    let mut connection = port.connect(peer);
    let begin = Instant::now();
    for byte in sent {
        if connection.write_all(&[*byte]).await.is_err() {
            break;
        }
        sleep(pace).await;
    }
    if ends {
        drop(connection.shutdown().await);
    }
    let outcome = port.outcome(&mut connection).await;
    let expected = expected.map(str::to_owned).map_err(<[_]>::to_vec);
    assert_eq!(outcome, expected, "{name}");
    if outcome == Err(vec!["slow_request"]) {
        assert!(begin.elapsed() < Duration::from_secs(7), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn header_of_a_proxy_names_the_client_and_any_other_beginning_closes_the_connection() {
    let v4 = header(PROXIED, TCP_4, &addresses("192.0.2.7", &[]));
    let v6 = header(PROXIED, TCP_6, &addresses("2001:db8:9::7", &[]));
    let with = |bytes| header(PROXIED, TCP_4, &addresses("192.0.2.7", &vec![4; bytes]));
    let longest = HEADER_BYTES_MAX - v4.len();
    let mut other_version = v4.clone();
    other_version[12] = 0x11;
    let mut long = v4.clone();
    long[14..16].fill(0xff);
    let v1 = b"PROXY TCP4 192.0.2.7 192.0.2.8 56324 443\r\n".to_vec();
    let http = b"GET / HTTP/1.1\r\nHost: sync.example\r\n\r\n".to_vec();
    let invalid: Result<&str, &[&str]> = Err(&["invalid_proxy_header"]);
    for (name, bytes, expected) in [
        ("IPv4", v4.clone(), Ok("192.0.2.7")),
        ("IPv6", v6.clone(), Ok("2001:db8:9::7")),
        ("type-length-value fields", with(20), Ok("192.0.2.7")),
        ("maximum size", with(longest), Ok("192.0.2.7")),
        ("health check", header(LOCAL, 0, &[]), Ok(PROXY)),
        (
            "health check with addresses",
            header(LOCAL, TCP_4, &addresses("192.0.2.7", &[])),
            Ok(PROXY),
        ),
        ("unknown family", header(PROXIED, 0x00, &[]), Ok(PROXY)),
        ("AF_UNIX", header(PROXIED, 0x31, &[b'/'; 216]), Ok(PROXY)),
        (
            "UDP",
            header(PROXIED, 0x12, &addresses("192.0.2.7", &[])),
            Ok(PROXY),
        ),
        ("one byte too long", with(longest + 1), invalid),
        ("length of 64 KiB", long, invalid),
        ("version 1 of the protocol", v1, invalid),
        ("version 3", header(0x31, TCP_4, &[0; 12]), invalid),
        ("version 1 in the binary form", other_version, invalid),
        ("unknown command", header(0x22, TCP_4, &[0; 12]), invalid),
        ("invalid family", header(PROXIED, 0x41, &[0; 12]), invalid),
        (
            "short IPv4 block",
            header(PROXIED, TCP_4, &[0; 11]),
            invalid,
        ),
        (
            "short IPv6 block",
            header(PROXIED, TCP_6, &[0; 35]),
            invalid,
        ),
        ("HTTP", http, invalid),
        (
            "TLS",
            [&[22, 3, 1, 2, 0, 1][..], &[7; 30]].concat(),
            invalid,
        ),
        ("zeros", vec![0; 600], invalid),
    ] {
        let sent = [bytes, vec![NEXT]].concat();
        check(name, PROXY, (&sent, Duration::ZERO, false), expected).await;
    }
    for (name, sent, ends, expected) in [
        ("header and nothing", &v4[..], false, &["idle"][..]),
        ("nothing", &[], false, &["slow_request"]),
        ("nothing, and the end", &[], true, &[]),
        ("a part", &v4[..20], false, &["slow_request"]),
        ("less than a prefix", b"hello", false, &["slow_request"]),
    ] {
        check(name, PROXY, (sent, Duration::ZERO, ends), Err(expected)).await;
    }
    for length in 1..v4.len() {
        let sent = (&v4[..length], Duration::ZERO, true);
        check("truncated", PROXY, sent, invalid).await;
    }
    let drip = (&v6[..], Duration::from_secs(1), false);
    check("one byte per second", PROXY, drip, Err(&["slow_request"])).await;
    let slow = [&v6[..], &[NEXT]].concat();
    let slow = (&slow[..], Duration::from_millis(50), false);
    check("slow", "2001:db8::1", slow, Ok("2001:db8:9::7")).await;
    // The header of a client is not read.
    let sent = (&[NEXT][..], Duration::ZERO, false);
    check("client", "10.0.1.1", sent, Ok("10.0.1.1")).await;
    let mapped = (&[&v4[..], &[NEXT]].concat()[..], Duration::ZERO, false);
    check("mapped", "::ffff:10.0.0.9", mapped, Ok("192.0.2.7")).await;
}

#[tokio::test(start_paused = true)]
async fn connections_per_address_are_those_of_the_client_behind_the_proxy() {
    let mut port = TestPort::start();
    let proxied = |client| {
        let header = header(PROXIED, TCP_4, &addresses(client, &[]));
        [header, vec![NEXT]].concat()
    };
    let mut open = Vec::new();
    for client in ["192.0.2.1", "192.0.2.2"] {
        let mut connection = port.connect(PROXY);
        connection.write_all(&proxied(client)).await.unwrap();
        assert_eq!(port.outcome(&mut connection).await, Ok(client.to_owned()));
        open.push(connection);
    }
    let mut second = port.connect(PROXY);
    second.write_all(&proxied("192.0.2.1")).await.unwrap();
    let outcome = port.outcome(&mut second).await;
    assert_eq!(outcome, Err(vec!["too_many_per_address"]));
    let mut direct = port.connect("192.0.2.2");
    let outcome = port.outcome(&mut direct).await;
    assert_eq!(outcome, Err(vec!["too_many_per_address"; 2]));
}
