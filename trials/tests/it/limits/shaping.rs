//! Tests of DSP limits in real producers: queueing, reload, spooling at shutdown, and configuration errors.

use std::{
    fs,
    io::ErrorKind,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use testkit::{admin, scrape::names};
use tokio::time::sleep;

use crate::{
    harness::{
        Addresses, Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, programs,
        run_to_end, wait_logged, wait_until,
    },
    mongods::shared,
    stream_client::{CookieStream, Subscription, from_oldest},
};

/// A limits file.
struct LimitsFile(PathBuf);

impl LimitsFile {
    fn new(dir: &TempDir, text: &str) -> Result<Self> {
        let file = Self(dir.path().join("limits.toml"));
        file.set(text)?;
        Ok(file)
    }

    fn set(&self, text: &str) -> Result<()> {
        // Replaced atomically, as operators should.
        let new = self.0.with_extension("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, &self.0)?)
    }

    fn flag(&self) -> String {
        format!("--contracts={}", self.0.display())
    }
}

/// Limits that shape DSP 17 at `rate`.
fn shaped(rate: &str) -> String {
    format!(
        r#"
        unknown = "unlimited"
        [limits.dsp]
        keys = [17]
        mode = "shape"
        shape = {{ max_wait = "1h", max_age = "2h" }}
        rules = [ {{ id = "contract", rate = "{rate}" }} ]
        "#
    )
}

async fn queued(producer: &Producer) -> Result<u64> {
    let metrics = producer.metrics().await?;
    Ok(metrics.count(names::DSP_LIMITS_QUEUED, &[]))
}

/// Sends one cookie for each user. The first is released immediately, the others are queued.
async fn accept_users(producer: &Producer, users: &[&str]) -> Result<()> {
    for user in users {
        producer.accept(user, 17, &format!("of-{user}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn queued_cookies_are_spooled_at_shutdown_and_released_after_the_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let spool = dir.path().join("waiting");
    let spool_flag = format!("--limits-spool={}", spool.display());
    let mut producer = Producer::start(&dir, &[&limits.flag(), &spool_flag]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    accept_users(&producer, &["alice", "bob", "carol"]).await?;
    let queued_cookies = queued(&producer).await?;
    assert_eq!(queued_cookies, 2);

    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)?;
    ensure!(spool.exists());
    limits.set(&shaped("100/s"))?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    for user in ["alice", "bob", "carol"] {
        let known = json!({"17": format!("of-{user}")});
        consumer.wait_lookup(user, known).await?;
    }
    let metrics = producer.metrics().await?;
    assert_eq!(
        metrics.count(names::DSP_LIMITS_ACCEPTED, &[]),
        queued_cookies
    );
    ensure!(!spool.exists());
    Ok(())
}

#[tokio::test]
async fn shutdown_without_a_spool_releases_queued_cookies_early() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let mut producer = Producer::start(&dir, &[&limits.flag()]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    accept_users(&producer, &["alice", "bob"]).await?;
    assert_eq!(queued(&producer).await?, 1);
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)?;
    wait_logged(
        &producer.process,
        "released queued cookies, ignoring their limits",
    )
    .await?;
    consumer.wait_lookup("bob", json!({"17": "of-bob"})).await
}

#[tokio::test]
async fn killed_producer_loses_only_queued_cookies() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let mut producer = Producer::start(&dir, &[&limits.flag()]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    accept_users(&producer, &["alice", "bob", "carol"]).await?;
    assert_eq!(queued(&producer).await?, 2);
    consumer
        .wait_lookup("alice", json!({"17": "of-alice"}))
        .await?;
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    assert_eq!(queued(&producer).await?, 0);
    accept_users(&producer, &["dave"]).await?;
    consumer
        .wait_lookup("dave", json!({"17": "of-dave"}))
        .await?;
    consumer
        .wait_lookup("alice", json!({"17": "of-alice"}))
        .await
}

#[tokio::test]
async fn invalid_limits_file_is_rejected_and_the_previous_version_stays_active() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let producer = Producer::start(&dir, &[&limits.flag()]).await?;
    accept_users(&producer, &["alice", "bob"]).await?;
    limits.set(&shaped("100/s").replace("shape\"", "shaped\""))?;
    wait_logged(&producer.process, "failed to reload changed files").await?;
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(names::CONTRACTS_VERSION, &[]), 1);
    assert_eq!(metrics.count(names::CONTRACTS_REFUSED_VERSION, &[]), 1);
    let ready = admin::get(&producer.admin, "/readyz").await?;
    ensure!(ready.status == 200, "{ready:?}");
    ensure!(
        ready.body.contains("the newest version is invalid"),
        "{ready:?}"
    );
    assert_eq!(queued(&producer).await?, 1);

    limits.set(&shaped("100/s"))?;
    wait_until(TIMEOUT, "the next version is active", async || {
        let metrics = producer.metrics().await?;
        let is_refused = metrics.count(names::CONTRACTS_REFUSED_VERSION, &[]) > 0;
        Ok(!is_refused && metrics.count(names::CONTRACTS_VERSION, &[]) == 2)
    })
    .await?;
    wait_until(TIMEOUT, "the queued cookie is released", async || {
        Ok(producer.appended().await? == 2)
    })
    .await
}

#[tokio::test]
async fn limits_apply_while_clients_without_age_support_are_connected() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let producer = Producer::start(&dir, &[&limits.flag()]).await?;
    let mut chunks = Subscription::open(&producer.grpc, from_oldest("old-node")).await?;
    let mut single = CookieStream::open(&producer.grpc, "older-node").await?;
    wait_until(TIMEOUT, "both readers are counted", async || {
        let metrics = producer.metrics().await?;
        Ok(metrics.count(names::STREAMS_WITHOUT_AGE_SUPPORT, &[]) == 2)
    })
    .await?;
    accept_users(&producer, &["alice", "bob"]).await?;
    assert_eq!(queued(&producer).await?, 1);
    assert_eq!(producer.appended().await?, 1);

    // Both readers receive released cookies with their age.
    limits.set(&shaped("100/s"))?;
    chunks.read_to(2).await?;
    single.read().await?;
    single.read().await?;
    for cookies in [&chunks.cookies, &single.cookies] {
        let released: Vec<_> = cookies
            .iter()
            .map(|cookie| (&*cookie.user_id, cookie.age_micros > 0))
            .collect();
        assert_eq!(released, [("alice", false), ("bob", true)]);
    }
    Ok(())
}

#[tokio::test]
async fn stores_keep_the_last_accepted_value_of_a_shaped_and_an_unshaped_producer() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let shaping = Producer::start(&dir, &[&limits.flag()]).await?;
    let other = Producer::start(&dir, &[]).await?;
    let stores = [embedded(&dir.path().join("store")), mongod.uri().to_owned()];
    let mut consumers = Vec::new();
    for (node, store) in ["embedded", "mongodb"].into_iter().zip(&stores) {
        let producers = [&shaping, &other];
        consumers.push(Consumer::start(&dir, node, &producers, store, &[]).await?);
    }
    shaping.accept("first", 17, "released").await?;
    // Accepted by the shaping producer first: the cookie released last is the older one.
    shaping.accept("alice", 17, "older").await?;
    sleep(Duration::from_millis(100)).await;
    other.accept("alice", 17, "newer").await?;
    // Accepted by the other producer first.
    other.accept("bob", 17, "older").await?;
    sleep(Duration::from_millis(100)).await;
    shaping.accept("bob", 17, "newer").await?;
    for consumer in &consumers {
        consumer
            .wait_lookup("alice", json!({"17": "newer"}))
            .await?;
        consumer.wait_lookup("bob", json!({"17": "older"})).await?;
    }
    limits.set(&shaped("100/s"))?;
    for consumer in &consumers {
        consumer.wait_lookup("bob", json!({"17": "newer"})).await?;
        wait_until(
            TIMEOUT,
            "every received cookie has an outcome",
            async || {
                let metrics = consumer.metrics().await?;
                let waiting = metrics.count(names::WAITING, &[]);
                Ok(waiting == 0 && metrics.count(names::RECEIVED, &[]) >= 5)
            },
        )
        .await?;
        consumer
            .wait_lookup("alice", json!({"17": "newer"}))
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn all_limit_errors_are_reported_before_a_port_is_bound() -> Result<()> {
    let dir = TempDir::new()?;
    let text = r#"
        [limits.dsp]
        keys = ["x", 17]
        mode = "shapes"
        rules = [ { id = "contract", rate = "many" } ]
        [limits.whole]
        global = true
        mode = "shape"
        rules = []
    "#;
    let limits = LimitsFile::new(&dir, text)?;
    let addresses = Addresses::free()?;
    let grpc = addresses.grpc.to_string();
    // Binding would fail with an error, because the port is in use.
    let listener = std::net::TcpListener::bind(&*grpc)?;
    let program = &programs().await?.producer;
    let flags = [
        "--grpc",
        &grpc,
        &limits.flag(),
        "--limits-spool=/none/there",
    ];
    let output = run_to_end(program, &flags, &[]).await?;
    assert_eq!(output.code, Some(2), "{}", output.text);
    for error in [
        "`many`",
        "`shapes`",
        "limits.whole",
        "--limits-spool",
        "add rules",
    ] {
        ensure!(output.text.contains(error), "{error}: {}", output.text);
    }
    ensure!(!output.text.contains("in use"), "{}", output.text);
    drop(listener);
    Ok(())
}

#[tokio::test]
async fn exact_sharing_mode_is_rejected() -> Result<()> {
    let dir = TempDir::new()?;
    let sharing = "[sharing]\nmode = \"exact\"\nredis = \"redis://127.0.0.1:1\"\ngroup = \"g\"\n";
    let limits = LimitsFile::new(&dir, &format!("{}{sharing}", shaped("1/h")))?;
    let program = &programs().await?.producer;
    let output = run_to_end(program, &[&limits.flag()], &[]).await?;
    assert_eq!(output.code, Some(2), "{}", output.text);
    let message = "exact sharing is for limiter serve: use mode = \"lease\"";
    ensure!(output.text.contains(message), "{}", output.text);
    Ok(())
}

/// Path, contents and modification time of each file in a directory.
fn files(dir: &TempDir) -> Result<Vec<(PathBuf, Vec<u8>, SystemTime)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let modified = fs::metadata(&path)?.modified()?;
        files.push((path.clone(), fs::read(&path)?, modified));
    }
    files.sort();
    Ok(files)
}

#[tokio::test]
async fn config_check_opens_no_connection_and_writes_no_file() -> Result<()> {
    let dir = TempDir::new()?;
    let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    server.set_nonblocking(true)?;
    let text = format!(
        "{}[sharing]\nmode = \"lease\"\nredis = \"redis://{}\"\ngroup = \"g\"\n",
        shaped("1/h"),
        server.local_addr()?
    );
    let limits = LimitsFile::new(&dir, &text)?.flag();
    let spool = format!("--limits-spool={}", dir.path().join("waiting").display());
    let state = format!("--state={}", dir.path().display());
    let before = files(&dir)?;
    let program = &programs().await?.producer;
    for flag in ["--check-config", "--print-config"] {
        let output = run_to_end(program, &[flag, &limits, &spool, &state], &[]).await?;
        assert_eq!(output.code, Some(0), "{flag}: {}", output.text);
        // Any connection would be pending here.
        let connected = server.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(connected, Err(ErrorKind::WouldBlock), "{flag}");
        assert_eq!(files(&dir)?, before, "{flag}");
    }
    Ok(())
}

#[tokio::test]
async fn second_producer_cannot_use_the_spool_of_the_first() -> Result<()> {
    let dir = TempDir::new()?;
    let limits = LimitsFile::new(&dir, &shaped("1/h"))?;
    let spool = format!("--limits-spool={}", dir.path().join("waiting").display());
    let first = Producer::start(&dir, &[&limits.flag(), &spool]).await?;
    let program = &programs().await?.producer;
    let mut flags = vec![limits.flag(), spool, "--state=/nonexistent".to_owned()];
    for port in ["http", "grpc", "admin"] {
        flags.push(format!("--{port}=127.0.0.1:0"));
    }
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let output = run_to_end(program, &flags, &[]).await?;
    assert_eq!(output.code, Some(1), "{}", output.text);
    ensure!(
        output.text.contains("another process is using this spool"),
        "{}",
        output.text
    );
    drop(first);
    Ok(())
}
