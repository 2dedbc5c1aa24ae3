//! What clients without a token can make a limiter hold, with real sockets.

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

use crate::harness::{Limiter, TIMEOUT, body};

const LIMITS: &str = "
[limits.a]
rules = [{ id = 'peak', rate = '1000000/s' }]
";

/// Connections of all strangers together.
const CONNECTIONS: usize = 1_900;

/// What `deploy/` reserves beside the counters.
const MEMORY_MAX_MIB: u64 = 192;

const TOKEN: (&str, &str) = ("Authorization", "Bearer one-token-of-16b");

async fn with_token(dir: &TempDir) -> Result<Limiter> {
    let file = dir.path().join("tokens");
    fs::write(&file, "one one-token-of-16b *\n")?;
    Limiter::start(LIMITS, &[&format!("--token-file={}", file.display())]).await
}

/// One who sends the same bytes again and again, and reads nothing.
struct Stranger {
    stream: TcpStream,
    bytes: Arc<[u8]>,
    sent: usize,
}

impl Stranger {
    /// From this address, with room for few bytes only.
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

    /// Sends what there is room for, once; true when there was none.
    fn send(&mut self) -> bool {
        let rest = &self.bytes[self.sent % self.bytes.len()..];
        let written = self.stream.write(rest);
        written
            .map(|bytes| self.sent += bytes)
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

fn resident(limiter: &Limiter) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", limiter.process.id()))?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    Ok(kib.context("no VmRSS")?.trim().parse::<u64>()? << 10)
}

async fn honest_calls(limiter: &Limiter, calls: usize) -> Result<()> {
    for _ in 0..calls {
        let mut client = limiter.client().await?;
        let taken = client.post("/v1/limits/a/k/reserve", &[TOKEN], "{}");
        body(&tokio::time::timeout(TIMEOUT, taken).await??, 200);
    }
    Ok(())
}

#[tokio::test]
async fn strangers_who_read_no_answer_hold_neither_memory_nor_the_calls_of_others() -> Result<()> {
    ensure!(
        runtime::raise_open_files() > 2 * CONNECTIONS as u64,
        "too few files"
    );
    let dir = TempDir::new()?;
    let mut limiter = with_token(&dir).await?;
    let address: SocketAddr = limiter.address.parse()?;
    honest_calls(&limiter, 1).await?;
    let before = resident(&limiter)?;
    let get = "GET /v1/limits/a/k/delay HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let post =
        "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n";
    let many: Arc<[u8]> = get.repeat(250).into_bytes().into();
    let large: Arc<[u8]> = format!("{post}{}", " ".repeat(65_536)).into_bytes().into();
    let mut most = before;
    let mut strangers = Vec::new();
    for number in 0..CONNECTIONS {
        let from = Ipv4Addr::new(127, 0, 0, [2, 3][number % 2]);
        let bytes = if number % 8 == 0 { &large } else { &many };
        strangers.push(Stranger::connect(from, address, Arc::clone(bytes))?);
    }
    // Each pipelines calls, or begins a large one, until the limiter reads no more of them.
    let mut blocked = 0;
    let deadline = Instant::now() + TIMEOUT;
    while blocked < CONNECTIONS / 2 && Instant::now() < deadline {
        blocked = 0;
        for stranger in &mut strangers {
            blocked += usize::from(stranger.send());
        }
        honest_calls(&limiter, 1).await?;
        most = most.max(resident(&limiter)?);
    }
    ensure!(blocked >= CONNECTIONS / 2, "{blocked} stopped");
    honest_calls(&limiter, 20).await?;
    most = most.max(resident(&limiter)?);
    let [most, before] = [most, before].map(|bytes| bytes >> 20);
    ensure!(
        most < MEMORY_MAX_MIB,
        "{most} MiB, of which {before} before"
    );
    limiter.stop().await
}

/// What comes until the end, to these bytes.
fn until_end(limiter: &Limiter, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(&limiter.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("it does not end")?;
    Ok(answer)
}

#[tokio::test]
async fn http_2_is_not_spoken() -> Result<()> {
    let mut limiter = Limiter::start(LIMITS, &[]).await?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = until_end(&limiter, preface)?;
    ensure!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    limiter.stop().await
}

#[tokio::test]
async fn answer_before_the_body_was_read_says_that_it_is_the_last() -> Result<()> {
    let dir = TempDir::new()?;
    let mut limiter = with_token(&dir).await?;
    let head =
        "POST /v1/limits/a/k/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n";
    for (more, status) in [
        ("", 401),
        ("Authorization: Bearer one-token-of-16b\r\n", 415),
        (
            "Authorization: Bearer one-token-of-16b\r\nContent-Type: application/json\r\n",
            413,
        ),
    ] {
        let answer = until_end(&limiter, format!("{head}{more}\r\n{{").as_bytes())?;
        let answer = String::from_utf8(answer)?.to_ascii_lowercase();
        ensure!(
            answer.starts_with(&format!("http/1.1 {status}")),
            "{answer}"
        );
        ensure!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    // Where nothing is left of a request, the next one is answered.
    let mut client = limiter.client().await?;
    for _ in 0..2 {
        body(&client.get("/v1/limits/a/k/delay", &[]).await?, 401);
    }
    limiter.stop().await
}
