//! Tests of MongoDB outages: the server is killed, paused or slow, or it lacks a primary, free disk space or permissions. The consumer
//! reports the outage, keeps its position, resumes after the outage, and loses nothing.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use serde_json::json;
use tempfile::TempDir;
use testkit::{admin, mongod, scrape::names, tools::skip};
use tokio::time::{Instant, sleep};

use crate::{
    documents::Documents,
    harness::{
        Consumer, Producer, TIMEOUT, accept_all, expect_exit, expected_contents, reserve_machine,
        wait_until,
    },
    mongods::{
        ReplicaSet, SLOW, clear_failpoint, command, create_root, create_user, set_failpoint,
        shared, start_failable,
    },
};

/// Longer than the timeout of a command.
const PAUSE: Duration = Duration::from_secs(38);

/// Checks that the consumer reports the store as down.
async fn check_store_down(consumer: &Consumer) -> Result<()> {
    let metrics = consumer.metrics().await?;
    ensure!(
        metrics.count(names::STORE_UP, &[]) == 0,
        "the store is reported as up"
    );
    Ok(())
}

#[tokio::test]
async fn repeatedly_killed_mongod_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--expiry-window", "always"];
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let plan = producer.ordered_load(5, 4_000, 16_000)?;
    let crash = async {
        for round in 1..=2 {
            consumer.wait_written(round * 2_000).await?;
            mongod.kill()?;
            let user = format!("round-{round}");
            producer.accept(&user, 17, "during-outage").await?;
            consumer.wait_not_ready("Connection refused").await?;
            check_store_down(&consumer).await?;
            mongod.restart().await?;
        }
        anyhow::Ok(())
    };
    let (accepted, crashed) = tokio::join!(accept_all(&plan), crash);
    crashed?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let mut contents = expected_contents(&plan.traffic, 16_000);
    for round in ["round-1", "round-2"] {
        let cookie = [(17, "during-outage".to_owned())].into();
        contents.insert(round.to_owned(), cookie);
    }
    documents.wait_exactly(&contents).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn paused_mongod_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--expiry-window", "always"];
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let plan = producer.ordered_load(6, 3_000, 30_000)?;
    let pause = async {
        consumer.wait_written(3_000).await?;
        mongod.pause()?;
        consumer.wait_not_ready("store: no response for 5s").await?;
        check_store_down(&consumer).await?;
        mongod.resume()?;
        consumer.wait_ready().await
    };
    let (accepted, paused) = tokio::join!(accept_all(&plan), pause);
    paused?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents
        .wait_exactly(&expected_contents(&plan.traffic, 30_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// An outage of 20 s at the rate of a small exchange, for dist builds.
#[tokio::test]
#[ignore = "takes a minute and dist builds"]
async fn long_mongod_outage_at_20_000_per_second_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(12, 20_000, 800_000)?;
    let crash = async {
        consumer.wait_written(100_000).await?;
        mongod.kill()?;
        // The load measures the time.
        let at_kill = producer.appended().await?;
        wait_until(TIMEOUT, "20 s of load", async || {
            Ok(producer.appended().await? >= at_kill + 400_000)
        })
        .await?;
        check_store_down(&consumer).await?;
        mongod.restart().await
    };
    let (accepted, crashed) = tokio::join!(accept_all(&plan), crash);
    crashed?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let contents = expected_contents(&plan.traffic, 800_000);
    documents.wait_exactly(&contents).await?;
    println!("{} documents, all correct", documents.count().await?);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// The consumer abandons commands that the server executes after the pause. Prints the responses of `/readyz` and the time to recovery.
#[tokio::test]
#[ignore = "takes a minute"]
async fn mongod_paused_beyond_the_command_timeout_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(10, 3_000, 180_000)?;
    let pause = async {
        consumer.wait_written(3_000).await?;
        mongod.pause()?;
        let began = Instant::now();
        let mut last_body = String::new();
        let written = consumer.metrics().await?.count(names::WRITTEN, &[]);
        let mut resumed_at = None;
        loop {
            let answer = admin::get(&consumer.admin, "/readyz").await?;
            if answer.body != last_body {
                let (at, status) = (began.elapsed(), answer.status);
                last_body = answer.body;
                println!("after {at:.1?}: {status} {}", last_body.trim());
            }
            if resumed_at.is_none() && began.elapsed() >= PAUSE {
                mongod.resume()?;
                resumed_at = Some(Instant::now());
                println!("after {:.1?}: mongod resumes", began.elapsed());
            }
            let now = consumer.metrics().await?.count(names::WRITTEN, &[]);
            if let Some(at) = resumed_at.filter(|_| now > written) {
                println!("first batch written {:.1?} later", at.elapsed());
                return Ok(());
            }
            ensure!(
                began.elapsed() < PAUSE + TIMEOUT,
                "no batch is written after the pause"
            );
            sleep(Duration::from_millis(20)).await;
        }
    };
    let (accepted, paused) = tokio::join!(accept_all(&plan), pause);
    paused?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let contents = expected_contents(&plan.traffic, 180_000);
    documents.wait_exactly(&contents).await?;
    println!("{} documents, all correct", documents.count().await?);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn election_and_missing_primary_lose_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut set = ReplicaSet::start(dir.path(), 3).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &set.uri(), &[]).await?;
    let plan = producer.ordered_load(7, 1_500, 20_000)?;
    let changes = async {
        consumer.wait_written(1_500).await?;
        set.step_down().await?;
        consumer.wait_written(4_000).await?;
        let primary = set.wait_primary().await?;
        let secondaries = [(primary + 1) % 3, (primary + 2) % 3];
        for member in secondaries {
            set.members[member].kill()?;
        }
        consumer.wait_not_ready("server selection failed").await?;
        check_store_down(&consumer).await?;
        for member in secondaries {
            set.members[member].restart().await?;
        }
        consumer.wait_ready().await
    };
    let (accepted, changed) = tokio::join!(accept_all(&plan), changes);
    changed?;
    accepted?;
    let documents = Documents::connect(&set.uri()).await?;
    documents
        .wait_exactly(&expected_contents(&plan.traffic, 20_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn store_error_is_reported_until_a_write_succeeds() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    for (number, failure, message) in [
        (1, doc! { "errorCode": 10_107 }, "NotWritablePrimary"),
        (2, doc! { "errorCode": 13 }, "Unauthorized"),
        (3, doc! { "errorCode": 14_031 }, "OutOfDiskSpace"),
        (4, doc! { "errorCode": 11_600 }, "InterruptedAtShutdown"),
        (5, doc! { "errorCode": 50 }, "MaxTimeMSExpired"),
        (6, doc! { "errorCode": 96 }, "error 96 (OperationFailed)"),
        (7, doc! { "closeConnection": true }, "store: "),
        (
            8,
            doc! { "writeConcernError": { "code": 64, "errmsg": "too few" } },
            "too few",
        ),
    ] {
        set_failpoint(&mongod, failure).await?;
        let user = format!("user-{number}");
        producer.accept(&user, 17, "kept").await?;
        consumer.wait_not_ready(message).await?;
        check_store_down(&consumer).await?;
        clear_failpoint(&mongod).await?;
        consumer.wait_ready().await?;
        consumer.wait_lookup(&user, json!({"17": "kept"})).await?;
    }
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn consumer_exits_and_refills_a_server_that_lost_its_data() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept("alice", 17, "a").await?;
    consumer.wait_lookup("alice", json!({"17": "a"})).await?;
    consumer.wait_settled(1).await?;
    // After a restart without data loss, the consumer continues.
    mongod.kill()?;
    mongod.process.wait(TIMEOUT).await?;
    mongod.restart().await?;
    producer.accept("bob", 17, "b").await?;
    consumer.wait_lookup("bob", json!({"17": "b"})).await?;
    mongod.kill()?;
    mongod.process.wait(TIMEOUT).await?;
    let data = dir.path().join("mongod/data");
    fs::remove_dir_all(&data)?;
    fs::create_dir(&data)?;
    mongod.restart().await?;
    check_exits_and_refills(&mut consumer, &producer, 1).await?;
    // Data loss without a restart of the server, as in a restore. A commit during the drop, such as for a new stream, writes the cursors
    // again, and no cursor is missing. The drop is then repeated. Cookies may be received twice.
    let client = Client::with_uri_str(mongod.uri()).await?;
    let cursors = client
        .database("cookiesync")
        .collection::<Document>("cursors");
    wait_until(2 * TIMEOUT, "the loss is detected", async || {
        if cursors.count_documents(doc! {}).await? > 0 {
            for database in ["17", "cookiesync"] {
                client.database(database).drop().await?;
            }
            producer.accept("alice", 17, "a").await?;
        }
        Ok(detected_losses(&consumer) == 2)
    })
    .await?;
    check_exits_and_refills(&mut consumer, &producer, 2).await
}

/// Number of exits because the server had lost its data.
fn detected_losses(consumer: &Consumer) -> usize {
    let log = consumer.process.last_lines(usize::MAX);
    log.matches("the store failed permanently: the server lost committed cursors")
        .count()
}

/// Checks that a consumer whose server lost its data exits, and that its restart restores the data from the producer.
async fn check_exits_and_refills(
    consumer: &mut Consumer,
    producer: &Producer,
    exits: usize,
) -> Result<()> {
    // A duplicate, which the consumer suppresses, so that only the check of the cursors detects the loss.
    producer.accept("alice", 17, "a").await?;
    let status = consumer.process.wait(2 * TIMEOUT).await?;
    expect_exit(&consumer.process, status, 1)?;
    let logged = detected_losses(consumer);
    ensure!(logged == exits, "logged {logged} times");
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a"})).await?;
    consumer.wait_lookup("bob", json!({"17": "b"})).await
}

#[tokio::test]
async fn unwritable_store_is_reported_without_traffic() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    set_failpoint(&mongod, doc! { "errorCode": 10_107 }).await?;
    consumer.wait_not_ready("NotWritablePrimary").await?;
    clear_failpoint(&mongod).await?;
    consumer.wait_ready().await?;
    // A consumer that starts with this error is not ready.
    set_failpoint(&mongod, doc! { "errorCode": 14_031 }).await?;
    consumer.process.kill()?;
    consumer.process.restart()?;
    consumer.wait_not_ready("OutOfDiskSpace").await?;
    clear_failpoint(&mongod).await?;
    consumer.wait_ready().await
}

#[tokio::test]
async fn slow_mongod_is_reported_and_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let millis = i32::try_from(SLOW.as_millis())?;
    set_failpoint(
        &mongod,
        doc! { "blockConnection": true, "blockTimeMS": millis },
    )
    .await?;
    producer.accept("alice", 17, "late").await?;
    consumer.wait_not_ready("no response for 5s").await?;
    clear_failpoint(&mongod).await?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "late"})).await
}

#[tokio::test]
async fn corrected_credentials_and_permissions_apply_without_a_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = mongod::start_with(&dir.path().join("mongod"), &["--auth"]).await?;
    create_root(&mongod.uri(), "boss", "boss-secret").await?;
    let boss = format!("mongodb://boss:boss-secret@{}/", mongod.address);
    create_user(&boss, "exchange", "another-secret", "readWriteAnyDatabase").await?;
    let producer = Producer::start(&dir, &[]).await?;
    // The password is `p@ss/w:rd secret`.
    let store = format!(
        "mongodb://exchange:p%40ss%2Fw%3Ard%20secret@{}/?authSource=admin",
        mongod.address
    );
    let mut consumer = Consumer::spawn(&dir, "node", &[&producer.grpc], &store, &[]).await?;
    consumer.wait_not_ready("Authentication failed").await?;
    let right = doc! { "updateUser": "exchange", "pwd": "p@ss/w:rd secret" };
    command(&boss, right).await?;
    consumer.wait_ready().await?;

    // Read permission only, without traffic.
    let roles = doc! { "updateUser": "exchange", "roles": ["readAnyDatabase"] };
    command(&boss, roles).await?;
    consumer
        .wait_not_ready("not authorized on cookiesync to execute command { update")
        .await?;
    producer.accept("alice", 17, "a-1").await?;
    let roles = doc! { "updateUser": "exchange", "roles": [
        { "role": "readWrite", "db": "cookiesync" }, { "role": "readAnyDatabase", "db": "admin" },
    ] };
    command(&boss, roles).await?;
    // A missing permission for one DSP does not affect readiness.
    consumer
        .wait_ready_with_state("retry queue: 17 (error 13 (Unauthorized): not authorized on")
        .await?;
    let roles = doc! { "updateUser": "exchange", "roles": ["readWriteAnyDatabase"] };
    command(&boss, roles).await?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    let log = consumer.process.last_lines(usize::MAX);
    for secret in ["exchange:", "secret", "p%40ss", "p@ss"] {
        ensure!(!log.contains(secret), "{secret} appears in {log}");
    }
    Ok(())
}

/// A small file system in memory, unmounted on drop.
pub(crate) struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// Mounts a file system; `None` (a skipped test) without the permission to mount.
    pub(crate) fn mount(dir: std::path::PathBuf, size: &str) -> Result<Option<Self>> {
        std::fs::create_dir_all(&dir)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        let mounted = mount.arg(&dir).output().context("cannot run mount")?;
        if !mounted.status.success() {
            skip(String::from_utf8_lossy(&mounted.stderr));
            return Ok(None);
        }
        Ok(Some(Self(dir)))
    }

    /// Fills the file system with one file and returns its path.
    pub(crate) fn fill(&self) -> std::path::PathBuf {
        let filler = self.0.join("filler");
        if let Ok(mut file) = std::fs::File::create(&filler) {
            let block = vec![1; 64 << 10];
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
        }
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {}", self.0.display());
        }
    }
}

#[tokio::test]
async fn full_mongod_disk_loses_nothing_once_space_is_free() -> Result<()> {
    let _machine = reserve_machine().await;
    let dir = TempDir::new()?;
    let Some(disk) = SmallDisk::mount(dir.path().join("mongod/data"), "512m")? else {
        return Ok(());
    };
    let mut mongod = mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept_load(8, 1_000).await?;
    consumer.wait_written(1_000).await?;
    let filler = disk.fill();
    let plan = producer.ordered_load(9, 20_000, 300_000)?;
    accept_all(&plan).await?;
    // mongod exits when it cannot write.
    consumer.wait_not_ready("store: ").await?;
    check_store_down(&consumer).await?;
    mongod.process.wait(TIMEOUT).await?;
    std::fs::remove_file(filler)?;
    mongod.restart().await?;
    consumer.wait_ready().await?;
    let mut contents = expected_contents(&plan.traffic, 300_000);
    contents.extend(expected_contents(&producer.load(8)?.traffic, 1_000));
    // Takes half a minute in an unoptimized build.
    wait_until(4 * TIMEOUT, "every cookie is written", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count(names::WRITTEN, &[]) >= contents.len() as u64)
    })
    .await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents.wait_exactly(&contents).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}
