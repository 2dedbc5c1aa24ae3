//! Tests, with real sockets, that clients without a token can use only a bounded amount of memory and connections.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use tempfile::TempDir;

use crate::serve::harness::{Limiter, TIMEOUT, body};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'peak', rate = '1000000/s' }]
";

/// Number of connections of untrusted clients.
const CONNECTIONS: usize = 1_900;

/// Memory that `deploy/` reserves in addition to the counters.
const MEMORY_MAX_MIB: u64 = 192;

const TOKEN: (&str, &str) = ("Authorization", "Bearer one-token-of-16b");

async fn with_token(dir: &TempDir) -> Result<Limiter> {
    let file = dir.path().join("tokens");
    fs::write(&file, "one one-token-of-16b *\n")?;
    Limiter::start(LIMITS, &[&format!("--token-file={}", file.display())]).await
}

/// A client that sends the same bytes repeatedly, and reads nothing.
struct UntrustedClient {
    stream: TcpStream,
    bytes: Arc<[u8]>,
    sent: usize,
}

impl UntrustedClient {
    /// Connects from this address, with a small receive buffer.
    fn connect(from: Ipv4Addr, to: SocketAddr, bytes: Arc<[u8]>) -> Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_recv_buffer_size(&socket, 4 << 10)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            bytes,
            sent: 0,
        })
    }

    /// Sends up to 1 MiB; returns whether the limiter has read nothing since the last call.
    fn send(&mut self) -> bool {
        let before = self.sent;
        while self.sent < before + (1 << 20) {
            let rest = &self.bytes[self.sent % self.bytes.len()..];
            match self.stream.write(rest) {
                Ok(written) => self.sent += written,
                Err(error) => return error.kind() == ErrorKind::WouldBlock && self.sent == before,
            }
        }
        false
    }
}

fn resident(limiter: &Limiter) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", limiter.process.id()))?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    Ok(kib.context("no VmRSS")?.trim().parse::<u64>()? << 10)
}

async fn trusted_calls(limiter: &Limiter, calls: usize) -> Result<()> {
    for _ in 0..calls {
        let mut client = limiter.client().await?;
        let response = client.post("/v1/limits/a/k/reserve", &[TOKEN], "{}");
        body(&tokio::time::timeout(TIMEOUT, response).await??, 200);
    }
    Ok(())
}

#[tokio::test]
async fn untrusted_clients_that_read_no_responses_neither_exhaust_memory_nor_block_others()
-> Result<()> {
    ensure!(
        runtime::raise_open_files() > 2 * CONNECTIONS as u64,
        "too few files"
    );
    let dir = TempDir::new()?;
    let mut limiter = with_token(&dir).await?;
    let address: SocketAddr = limiter.address.parse()?;
    trusted_calls(&limiter, 1).await?;
    let before = resident(&limiter)?;
    // A small response, and a large one that quickly fills the buffers.
    let paths = ["/v1/limits/a/k/delay", "/v1/openapi.json"];
    let get = paths.map(|path| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let post =
        "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n";
    let many: Arc<[u8]> = get.concat().repeat(125).into_bytes().into();
    let large: Arc<[u8]> = format!("{post}{}", " ".repeat(65_536)).into_bytes().into();
    let mut peak = before;
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let from = Ipv4Addr::new(127, 0, 0, [2, 3][number % 2]);
        let bytes = if number % 8 == 0 { &large } else { &many };
        clients.push(UntrustedClient::connect(from, address, Arc::clone(bytes))?);
    }
    // Each pipelines requests, or starts a large one, until the limiter stops reading from it.
    let mut blocked = 0;
    let deadline = Instant::now() + 3 * TIMEOUT;
    while blocked < CONNECTIONS / 2 && Instant::now() < deadline {
        blocked = 0;
        for client in &mut clients {
            blocked += usize::from(client.send());
        }
        trusted_calls(&limiter, 1).await?;
        peak = peak.max(resident(&limiter)?);
    }
    ensure!(blocked >= CONNECTIONS / 2, "{blocked} are blocked");
    trusted_calls(&limiter, 20).await?;
    peak = peak.max(resident(&limiter)?);
    let [peak, before] = [peak, before].map(|bytes| bytes >> 20);
    ensure!(peak < MEMORY_MAX_MIB, "{peak} MiB, {before} MiB before");
    limiter.stop().await
}

#[tokio::test]
async fn idle_connections_leave_files_for_the_state() -> Result<()> {
    const FILES: usize = 1_024;
    ensure!(
        runtime::raise_open_files() > 2 * FILES as u64,
        "too few files"
    );
    let dir = TempDir::new()?;
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "one one-token-of-16b *\n")?;
    let flags = [
        &*format!("--token-file={}", tokens.display()),
        "--connections-per-address=4096",
    ];
    let mut limiter = Limiter::start_with_files(FILES, LIMITS, &flags).await?;
    let mut trusted = limiter.client().await?;
    let mut idle = Vec::new();
    for _ in 0..1_100 {
        idle.push(TcpStream::connect(&limiter.address)?);
    }
    // The state is written before each response, and synced every second.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let response = trusted.post("/v1/limits/a/k/reserve", &[TOKEN], "{}");
        body(&tokio::time::timeout(TIMEOUT, response).await??, 200);
    }
    ensure!(
        limiter
            .process
            .last_lines(100)
            .contains("the open-file limit is too low"),
        "{}",
        limiter.process.last_lines(100)
    );
    drop(idle);
    limiter.stop().await
}

/// Sends these bytes, and reads until the connection closes.
fn until_end(limiter: &Limiter, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(&limiter.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(bytes)?;
    let mut response = Vec::new();
    stream
        .read_to_end(&mut response)
        .context("the connection stays open")?;
    Ok(response)
}

#[tokio::test]
async fn http_2_is_rejected() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let response = until_end(&limiter, preface)?;
    ensure!(response.is_empty() || response.starts_with(b"HTTP/1.1 400"));
    limiter.stop().await
}

#[tokio::test]
async fn only_an_unread_body_closes_the_connection() -> Result<()> {
    let dir = TempDir::new()?;
    let mut limiter = with_token(&dir).await?;
    let head =
        "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n";
    let response = until_end(&limiter, format!("{head}\r\n{{").as_bytes())?;
    let response = String::from_utf8(response)?.to_ascii_lowercase();
    ensure!(response.starts_with("http/1.1 413"), "{response}");
    ensure!(response.contains("\r\nconnection: close\r\n"), "{response}");
    // After a complete request, the connection stays open.
    let mut client = limiter.client().await?;
    for _ in 0..2 {
        body(&client.get("/v1/limits/a/k/delay", &[]).await?, 401);
        let reserve = client.post("/v1/limits/a/k/reserve", &[], "{}");
        body(&reserve.await?, 401);
    }
    limiter.stop().await
}

#[tokio::test]
async fn unreadable_requests_get_a_problem_and_end_the_connection() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let post = "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let headers = format!("{post}X: {}", "x".repeat(20_000));
    for (request, status, problem) in [
        ("no request\r\n\r\n", 400, "invalid-request"),
        (&*headers, 413, "too-large"),
        (
            &*format!("{post}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"),
            411,
            "length-required",
        ),
        (
            &*format!("{post}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
            411,
            "length-required",
        ),
    ] {
        let response = String::from_utf8(until_end(&limiter, request.as_bytes())?)?;
        ensure!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{response}"
        );
        ensure!(response.contains(problem), "{response}");
        ensure!(response.contains("\r\nconnection: close\r\n"), "{response}");
    }
    limiter.stop().await
}

#[tokio::test]
async fn requests_that_arrive_during_a_wait_are_answered_in_order() -> Result<()> {
    let limits = "[limits.a]\nrules = [{ id = 'r', rate = '1/s' }]";
    let mut limiter = Limiter::start(limits, &[]).await?;
    let reserve = |body: &str| {
        let length = body.len();
        format!(
            "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let mut client = limiter.client().await?;
    client.send(reserve("{}").as_bytes()).await?;
    body(&client.response().await?, 200);
    client.send(reserve("{\"wait\": true}").as_bytes()).await?;
    limiter.wait_metric("limiter_waiting", 1).await?;
    let delay = "GET /v1/limits/a/other/delay HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(format!("{delay}{delay}").as_bytes()).await?;
    let held = body(&client.response().await?, 200);
    assert_eq!(held["binding"], "a/r");
    for _ in 0..2 {
        let free = body(&client.response().await?, 200);
        ensure!(free["binding"].is_null(), "{free}");
    }
    limiter.stop().await
}
