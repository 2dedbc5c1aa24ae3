//! Test that a Python client, generated from the `.proto`, reads both streams.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use testkit::{
    programs::{Process, free_address, target_dir},
    tools::installed_or_skip,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::{Producer, TIMEOUT, numbered_cookie, wait_until, within_timeout};

/// Packages of the Python clients, from PyPI.
const PACKAGES: [&str; 6] = [
    "grpcio==1.80.0",
    "grpcio-tools==1.80.0",
    "grpcio-health-checking==1.80.0",
    "grpcio-reflection==1.80.0",
    "pymongo==4.16.0",
    "nats-py==2.16.0",
];

/// Error text if the Python environment is missing.
pub(crate) const MISSING: &str = "the Python client needs Python 3.9 or later with venv and pip (Debian and Ubuntu: apt install \
                       python3-venv python3-pip), and grpcio, pymongo and nats-py from PyPI, once";

#[tokio::test]
async fn python_client_reads_both_streams() -> Result<()> {
    let python = python().await?;
    let dir = TempDir::new()?;
    let generated = dir.path().join("generated");
    generate(&python, &generated)?;
    let producer = Producer::start(&dir, &[]).await?;

    let expected: Vec<_> = (1..=500).map(numbered_cookie).collect();
    let expected_path = dir.path().join("expected.json");
    fs::write(&expected_path, serde_json::to_vec(&expected)?)?;
    let mut client = tokio::process::Command::new(&python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/client.py"))
        .arg(producer.grpc.trim_start_matches("http://"))
        .args([&expected_path, &generated])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = client.stdout.take().context("the client has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = within_timeout("the Python client is ready", lines.next_line()).await??;
    if first.as_deref() == Some("ready") {
        producer.accept_numbers(1..=200).await?;
        producer.accept_numbers(201..=201).await?;
        producer.accept_numbers(202..=500).await?;
    }
    let output = within_timeout("the Python client exits", client.wait_with_output()).await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{errors}", output.status);
    Ok(())
}

/// An idle stream passes through a proxy that closes idle connections after eight seconds, and ends with its status.
#[tokio::test]
async fn idle_stream_is_not_closed_by_a_proxy() -> Result<()> {
    let Some(haproxy) = installed_or_skip(&["haproxy"]) else {
        return Ok(());
    };
    let python = python().await?;
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let address = free_address()?.to_string();
    let file = dir.path().join("haproxy.cfg");
    let server = producer.grpc.trim_start_matches("http://");
    let configuration = format!(
        "defaults\n  mode http\n  timeout connect 2s\n  timeout client 8s\n  timeout server 8s\n\
         listen grpc\n  bind {address} proto h2\n  server one {server} proto h2\n"
    );
    fs::write(&file, configuration)?;
    let args = [
        "-db".to_owned(),
        "-f".to_owned(),
        file.display().to_string(),
    ];
    let _proxy = Process::start("haproxy", &haproxy, &args, &dir.path().join("haproxy.log"))?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/python/read_cookies.py");
    let mut client = tokio::process::Command::new(&python)
        .arg(example)
        .args(["--name", "idle", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = client.stdout.take().context("the client has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let count = async |name| {
        let metrics = producer.metrics().await?;
        anyhow::Ok(metrics.count(name, &[("subscriber", "idle")]))
    };
    let sent = async || count("producer_subscriber_sent_bytes_total").await;
    for (number, heartbeats) in [(1, 2), (2, 0)] {
        let before = sent().await?;
        wait_until(TIMEOUT, "heartbeats were sent", async || {
            Ok(sent().await? >= before + 5 + 2 * heartbeats)
        })
        .await?;
        let (user_id, dsp_id, buyer_uid) = numbered_cookie(number);
        producer.accept(&user_id, dsp_id, &buyer_uid).await?;
        let line = within_timeout("the cookie is received", lines.next_line()).await??;
        let line = line.context("the client ended")?;
        ensure!(line.contains(&user_id), "{line}");
    }
    ensure!(count("producer_subscriber_streams_total").await? == 1);
    let before = sent().await?;
    wait_until(TIMEOUT, "a heartbeat was sent", async || {
        Ok(sent().await? > before)
    })
    .await?;
    producer.process.stop(TIMEOUT).await?;
    let repeated = within_timeout("the last cookie is repeated", lines.next_line()).await??;
    ensure!(repeated.is_some_and(|it| it.contains(&numbered_cookie(2).0)));
    client.start_kill()?;
    let output = client.wait_with_output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(errors.contains("the producer is shutting down"), "{errors}");
    Ok(())
}

/// The Python interpreter for the clients.
pub(crate) async fn python() -> Result<PathBuf> {
    tokio::task::spawn_blocking(environment)
        .await?
        .context(MISSING)
}

/// The interpreter of a virtual environment with [`PACKAGES`], created once in cargo's target directory. Concurrent processes wait for the
/// one that creates it.
pub(crate) fn environment() -> Result<PathBuf> {
    let dir = target_dir().join("python");
    fs::create_dir_all(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).context("cannot lock the Python environment")?;
    let (venv, complete) = (dir.join("venv"), dir.join("complete"));
    let python = venv.join("bin/python");
    let packages = PACKAGES.join("\n");
    let is_complete = fs::read_to_string(&complete).is_ok_and(|installed| installed == packages);
    if is_complete && run(Command::new(&python).args(["-c", "import grpc"])).is_ok() {
        return Ok(python);
    }
    eprintln!("fetching grpcio and pymongo from PyPI, once");
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"])
        .args(PACKAGES))?;
    fs::write(&complete, packages)?;
    Ok(python)
}

/// Generates the client's code from the `.proto` into the new directory `into`.
pub(crate) fn generate(python: &Path, into: &Path) -> Result<()> {
    fs::create_dir(into)?;
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    run(Command::new(python)
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", protos.display()))
        .arg(format!("--python_out={}", into.display()))
        .arg(format!("--grpc_python_out={}", into.display()))
        .arg("cookiesync/v1/cookiesync.proto"))
}

/// Runs a program to its end.
///
/// # Errors
/// If it fails; with its standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {} {}", output.status, errors.trim());
    }
    Ok(())
}
