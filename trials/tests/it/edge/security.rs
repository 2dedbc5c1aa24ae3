//! Tests of access to the streams: TLS, tokens, and limits per address that protect authorized clients.

mod access;
pub(crate) mod certificates;
mod https;

use std::{
    fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio, sync::Arc,
};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use proto::{client, v1::GetCookiesRequest, wire::decode_record};
use runtime::{
    connect::{
        Connector, Network, Tcp,
        credentials::{Security, SecurityArgs},
    },
    settings::ConfigErrors,
};
use rustls::{ALL_VERSIONS, version::TLS12};
use serde_json::json;
use tempfile::TempDir;
use testkit::http::HttpClient;
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tonic::Streaming;

use self::{
    certificates::{Authority, write},
    https::HttpsClient,
};
use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until, within_timeout},
    stream::python_client,
};

const TOKEN: &str = "a-token-that-is-good";

/// A `GetCookies` stream with or without TLS and a token.
struct Stream(Streaming<Bytes>);

impl Stream {
    /// Opens a stream. An error has the text that a consumer would log.
    async fn open(
        producer: &Producer,
        name: &str,
        https: bool,
        flags: SecurityArgs,
    ) -> Result<Self> {
        let mut errors = ConfigErrors::default();
        let security = Security::check(&mut errors, &flags, https);
        let security = errors.or(security)?;
        let address: SocketAddr = grpc(producer).parse()?;
        let network: Arc<dyn Network> = Arc::new(Tcp);
        let connector = Connector::new(&network, address, ("127.0.0.1", https), &security);
        let connector = connector.map_err(|reason| anyhow!(reason))?;
        let endpoint = client::endpoint(format!("http://{address}"))?;
        let opened = async {
            let channel = connector.connect(&endpoint).await?;
            let host = name.to_owned();
            let request = connector.request(GetCookiesRequest {
                host,
                ..GetCookiesRequest::default()
            });
            anyhow::Ok(client::get_cookies(channel, request).await?.into_inner())
        };
        match (
            within_timeout("the stream is open", opened).await?,
            connector.failure(),
        ) {
            (Ok(stream), _) => Ok(Self(stream)),
            (Err(_), Some(trouble)) => Err(anyhow!("{trouble}")),
            (Err(error), None) => Err(error),
        }
    }

    /// Checks that a stream is rejected with an error that contains `reason`.
    async fn expect_rejected(
        producer: &Producer,
        https: bool,
        flags: SecurityArgs,
        reason: &str,
    ) -> Result<()> {
        let opened = Self::open(producer, "untrusted", https, flags).await;
        let error = opened.err().context("the stream was accepted")?;
        let text = format!("{error:?}");
        ensure!(text.contains(reason), "{reason:?} is missing in {text}");
        Ok(())
    }

    /// Reads one cookie and returns its user id.
    async fn read(&mut self) -> Result<String> {
        let message = within_timeout("a cookie", self.0.message()).await??;
        let message = message.context("the stream ended")?;
        let cookie = decode_record(&message)?.cookie();
        Ok(cookie.context("a deletion")?.user_id.to_owned())
    }
}

fn grpc(producer: &Producer) -> &str {
    producer.grpc.trim_start_matches("http://")
}

fn https(producer: &Producer) -> String {
    format!("https://{}", grpc(producer))
}

/// Waits until a log contains `part` exactly `times` times.
async fn wait_logged_times(log: impl Fn() -> String, part: &str, times: usize) -> Result<()> {
    let what = format!("{part:?} is logged {times} times");
    wait_until(TIMEOUT, &what, async || {
        Ok(log().matches(part).count() == times)
    })
    .await
}

async fn wait_counted(producer: &Producer, name: &str, label: (&str, &str), n: u64) -> Result<()> {
    let what = format!("{name} {label:?} is {n}");
    wait_until(TIMEOUT, &what, async || {
        Ok(producer.metrics().await?.count(name, &[label]) == n)
    })
    .await
}

/// Starts a producer with a certificate of `authority`.
async fn start_with_tls(dir: &TempDir, authority: &Authority, flags: &[&str]) -> Result<Producer> {
    let (certificate, key) = authority.write_identity(dir.path(), "server")?;
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    Producer::start(dir, &[&tls[..], flags].concat()).await
}

/// Like [`start_with_tls`], with the same certificate for sync requests.
async fn start_with_https(
    dir: &TempDir,
    authority: &Authority,
    flags: &[&str],
) -> Result<Producer> {
    let file = |name| format!("{}/server.{name}", dir.path().display());
    let (certificate, key) = (file("pem"), file("key"));
    let tls = ["--http-tls-cert", &certificate, "--http-tls-key", &key];
    start_with_tls(dir, authority, &[&tls[..], flags].concat()).await
}

#[tokio::test]
async fn consumer_reads_over_tls_from_a_trusted_producer_only() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = Authority::new("ours")?;
    let ca = ours.write(dir.path(), "ca.pem")?;
    let producer = start_with_tls(&dir, &ours, &[]).await?;
    let url = https(&producer);
    let store = format!("embedded:{}", dir.path().join("store").display());
    let flags = ["--tls-ca", &ca];
    let mut consumer = Consumer::spawn(&dir, "ours", &[&url], &store, &flags).await?;
    consumer.wait_ready().await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    let metrics = consumer.metrics().await?;
    let expiry = "consumer_tls_certificate_expiry_unix_seconds";
    ensure!(metrics.count(expiry, &[("kind", "authority")]) > 1_700_000_000);
    let metrics = producer.metrics().await?;
    let expiry = "producer_tls_certificate_expiry_unix_seconds";
    ensure!(metrics.count(expiry, &[("kind", "certificate")]) > 1_700_000_000);

    let other = Authority::new("others")?.write(dir.path(), "other.pem")?;
    let flags = ["--tls-ca", &other];
    let untrusting = Consumer::spawn(
        &dir,
        "untrusting",
        &[&url],
        &embedded(&dir.path().join("untrusting")),
        &flags,
    )
    .await?;
    let log = || untrusting.process.last_lines(usize::MAX);
    wait_logged_times(log, "not signed by an authority of --tls-ca", 1).await?;
    let flags = ["--tls-ca", &ca, "--tls-server-name", "other.test"];
    let misnamed = Consumer::spawn(
        &dir,
        "misnamed",
        &[&url],
        &embedded(&dir.path().join("misnamed")),
        &flags,
    )
    .await?;
    let log = || misnamed.process.last_lines(usize::MAX);
    wait_logged_times(log, "certificate is not for other.test", 1).await
}

#[tokio::test]
async fn tls_on_one_side_only_is_reported() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = Authority::new("ours")?;
    let ca = ours.write(dir.path(), "ca.pem")?;
    let secure = start_with_tls(&dir, &ours, &[]).await?;
    let plain = Producer::start(&dir, &[]).await?;
    let with_ca = SecurityArgs {
        tls_ca: ca.clone(),
        ..SecurityArgs::default()
    };
    Stream::expect_rejected(&plain, true, with_ca, "http:// instead of https://").await?;
    let none = SecurityArgs::default();
    Stream::expect_rejected(&secure, false, none, "https:// instead of http://").await?;
    let handshakes = "producer_tls_handshakes_total";
    wait_counted(&secure, handshakes, ("outcome", "failed"), 1).await
}

#[tokio::test]
async fn client_certificate_must_be_signed_by_the_configured_authority() -> Result<()> {
    let dir = TempDir::new()?;
    let (ours, others) = (Authority::new("ours")?, Authority::new("others")?);
    let ca = ours.write(dir.path(), "ca.pem")?;
    let producer = start_with_tls(&dir, &ours, &["--tls-client-ca", &ca]).await?;
    let with_ca = SecurityArgs {
        tls_ca: ca.clone(),
        ..SecurityArgs::default()
    };
    Stream::expect_rejected(
        &producer,
        true,
        with_ca.clone(),
        "requires a client certificate",
    )
    .await?;
    let (certificate, key) = others.write_identity(dir.path(), "untrusted")?;
    let untrusted = SecurityArgs {
        tls_cert: certificate,
        tls_key: key,
        ..with_ca.clone()
    };
    Stream::expect_rejected(&producer, true, untrusted, "rejects the certificate").await?;
    let (certificate, key) = ours.write_identity(dir.path(), "node")?;
    let node = SecurityArgs {
        tls_cert: certificate,
        tls_key: key,
        ..with_ca.clone()
    };
    let mut stream = Stream::open(&producer, "node", true, node).await?;
    producer.accept("alice", 17, "a-1").await?;
    assert_eq!(stream.read().await?, "alice");
    Ok(())
}

#[tokio::test]
async fn replaced_certificate_applies_to_new_connections_and_an_invalid_one_is_ignored()
-> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path();
    let (before, after) = (Authority::new("before")?, Authority::new("after")?);
    let old = before.write(path, "before.pem")?;
    let new = after.write(path, "after.pem")?;
    let with_ca = |ca: &String| SecurityArgs {
        tls_ca: ca.clone(),
        ..SecurityArgs::default()
    };
    let producer = start_with_https(&dir, &before, &[]).await?;
    let mut stream = Stream::open(&producer, "early", true, with_ca(&old)).await?;
    Stream::expect_rejected(&producer, true, with_ca(&new), "not signed by an authority").await?;
    let http = &producer.http;
    let mut keep_alive = HttpsClient::connect(http, &old).await?;
    keep_alive.sync(&["alice", "bob"]).await?;
    assert_eq!(stream.read().await?, "alice");
    assert_eq!(stream.read().await?, "bob");
    let versions = [&TLS12];
    let old_version = HttpsClient::connect_with(http, &old, &versions, "http/1.1");
    old_version.await?.close().await?;
    let http_2 = HttpsClient::connect_with(http, &old, ALL_VERSIONS, "h2").await;
    ensure!(http_2.is_err(), "HTTP/2 was accepted");
    let plain = producer.accept("carol", 17, "a-1").await;
    ensure!(plain.is_err(), "HTTP without TLS was accepted");
    let handshakes = "producer_http_tls_handshakes_total";
    wait_counted(&producer, handshakes, ("outcome", "failed"), 2).await?;

    // Both ports read the files.
    let reloads = "producer_file_reloads_total";
    after.write_identity(path, "server")?;
    wait_counted(&producer, reloads, ("outcome", "done"), 2).await?;
    Stream::expect_rejected(&producer, true, with_ca(&old), "not signed by an authority").await?;
    Stream::open(&producer, "late", true, with_ca(&new)).await?;
    let distrusting = HttpsClient::connect(http, &old).await;
    ensure!(distrusting.is_err(), "the old certificate is in use");
    HttpsClient::connect(http, &new).await?.close().await?;

    write(path, "server.pem", "no certificate at all")?;
    wait_counted(&producer, reloads, ("outcome", "failed"), 2).await?;
    Stream::open(&producer, "late", true, with_ca(&new)).await?;
    HttpsClient::connect(http, &new)
        .await?
        .sync(&["dave"])
        .await?;
    keep_alive.sync(&["erin"]).await?;
    assert_eq!(stream.read().await?, "dave");
    assert_eq!(stream.read().await?, "erin");
    keep_alive.close().await?;
    let log = || producer.process.last_lines(usize::MAX);
    wait_logged_times(log, "contains no certificate", 2).await?;
    wait_logged_times(log, "keeping the versions already loaded", 2).await?;

    after.write_identity(path, "server")?;
    wait_counted(&producer, reloads, ("outcome", "done"), 4).await
}

#[tokio::test]
async fn slow_handshake_is_closed_and_delays_no_other_client() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = Authority::new("ours")?;
    let ca = ours.write(dir.path(), "ca.pem")?;
    let producer = start_with_tls(&dir, &ours, &[]).await?;
    let mut silent = TcpStream::connect(grpc(&producer)).await?;
    let with_ca = SecurityArgs {
        tls_ca: ca.clone(),
        ..SecurityArgs::default()
    };
    let mut stream = Stream::open(&producer, "node", true, with_ca).await?;
    let read = within_timeout("the connection is closed", silent.read_u8()).await?;
    ensure!(read.is_err());
    let handshakes = "producer_tls_handshakes_total";
    wait_counted(&producer, handshakes, ("outcome", "timeout"), 1).await?;
    producer.accept("alice", 17, "a-1").await?;
    assert_eq!(stream.read().await?, "alice");
    Ok(())
}

#[tokio::test]
async fn handshakes_of_one_address_are_limited() -> Result<()> {
    const HANDSHAKES_MAX: u64 = 64;
    let dir = TempDir::new()?;
    let ours = Authority::new("ours")?;
    let producer = start_with_tls(&dir, &ours, &[]).await?;
    let mut silent = Vec::new();
    for _ in 0..=HANDSHAKES_MAX {
        silent.push(TcpStream::connect(grpc(&producer)).await?);
    }
    let handshakes = "producer_tls_handshakes_total";
    wait_counted(&producer, handshakes, ("outcome", "too_many"), 1).await
}

#[tokio::test]
async fn connections_of_one_address_are_limited_on_both_ports() -> Result<()> {
    let dir = TempDir::new()?;
    let flags = [
        "--grpc-connections-per-address=1",
        "--http-connections-per-address=2",
    ];
    let producer = Producer::start(&dir, &flags).await?;
    let reason = ("reason", "too_many_per_address");
    let none = SecurityArgs::default();
    let first = Stream::open(&producer, "first", false, none.clone()).await?;
    let second = Stream::open(&producer, "second", false, none.clone()).await;
    ensure!(second.is_err(), "the second connection was accepted");
    let cut = "producer_grpc_connections_closed_total";
    ensure!(producer.metrics().await?.count(cut, &[reason]) >= 1);

    // A new connection is accepted as soon as the first one is closed.
    drop(first);
    wait_until(TIMEOUT, "a third connection is accepted", async || {
        Ok(Stream::open(&producer, "third", false, none.clone())
            .await
            .is_ok())
    })
    .await?;

    let mut accepted = Vec::new();
    for _ in 0..2 {
        let mut connection = HttpClient::connect(&producer.http).await?;
        connection.send(b"GET /none HTTP/1.1\r\n\r\n").await?;
        assert_eq!(connection.response().await?.status, 404);
        accepted.push(connection);
    }
    let mut third = HttpClient::connect(&producer.http).await?;
    third.wait_ended().await?;
    wait_counted(
        &producer,
        "producer_http_connections_closed_total",
        reason,
        1,
    )
    .await
}

#[tokio::test]
async fn python_client_syncs_and_reads_over_tls_with_a_certificate_and_a_token() -> Result<()> {
    let dir = TempDir::new()?;
    let python = python_client::python().await?;
    let generated = dir.path().join("generated");
    python_client::generate(&python, &generated)?;
    let ours = Authority::new("ours")?;
    let ca = ours.write(dir.path(), "ca.pem")?;
    let tokens = write(dir.path(), "tokens", TOKEN)?;
    let (certificate, key) = ours.write_identity(dir.path(), "node")?;
    let flags = ["--tls-client-ca", &ca, "--token-file", &tokens];
    let producer = start_with_https(&dir, &ours, &flags).await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/secure_client.py");
    let client = tokio::process::Command::new(&python)
        .arg(script)
        .args([
            &producer.http,
            grpc(&producer),
            &ca,
            &certificate,
            &key,
            &tokens,
        ])
        .arg(&generated)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within_timeout("the Python client exits", client).await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{errors}", output.status);
    Ok(())
}

/// Checks that only the owner can access a file, or a directory and all its contents.
fn check_private(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    ensure!(mode & 0o077 == 0, "{}: {mode:o}", path.display());
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            check_private(&entry?.path())?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn files_with_user_ids_are_readable_only_by_their_owner() -> Result<()> {
    let dir = TempDir::new()?;
    let state = TempDir::new_in("/dev/shm")?;
    let state_flag = format!("--state={}", state.path().display());
    let mut producer = Producer::start(&dir, &[&state_flag]).await?;
    let store = dir.path().join("store");
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &embedded(&store), &[]).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    // After a restart, the store has files of all kinds.
    consumer.process.stop(TIMEOUT).await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    check_private(&store)?;
    producer.process.stop(TIMEOUT).await?;
    for file in fs::read_dir(&state)? {
        check_private(&file?.path())?;
    }
    Ok(())
}
