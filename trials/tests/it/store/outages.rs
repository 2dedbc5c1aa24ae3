//! MongoDB ends, stops answering, has no primary, no room, or no rights for us: the consumer reports it, keeps where it
//! stood, and goes on from there when it can. Nothing is lost and nothing is wrong.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bench::{admin, mongod::Mongod, scrape::names, tools::skip};
use consumer::store::mongodb::ExpiryMode;
use mongodb::{Client, bson::doc};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    documents::Documents,
    harness::{Consumer, Producer, TIMEOUT, accept_all, expect_exit, machine, newest, wait_until},
    maintenance::in_both_modes,
    mongods::{ReplicaSet, SLOW, command, create_root, create_user, fail, failing, heal},
};

/// Longer than a command may take.
const PAUSE: Duration = Duration::from_secs(38);

/// Checks that the consumer does not call the store working.
async fn check_down(consumer: &Consumer) -> Result<()> {
    let metrics = consumer.metrics().await?;
    ensure!(metrics.count(names::STORE_UP, &[]) == 0, "it counts as up");
    Ok(())
}

in_both_modes! {
    repeatedly_killed_mongod_loses_nothing,
    paused_mongod_loses_nothing,
}

async fn repeatedly_killed_mongod_loses_nothing(mode: ExpiryMode) -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--expiry", &mode.to_string(), "--expiry-window", "always"];
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let plan = producer.ordered_load(5, 4_000, 16_000)?;
    let crash = async {
        for round in 1..=2 {
            consumer.wait_written(round * 2_000).await?;
            mongod.kill()?;
            let user = format!("round-{round}");
            producer.accept(&user, 17, "meanwhile").await?;
            consumer.wait_not_ready("Connection refused").await?;
            check_down(&consumer).await?;
            mongod.restart().await?;
        }
        anyhow::Ok(())
    };
    let (accepted, crashed) = tokio::join!(accept_all(&plan), crash);
    crashed?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let mut known = newest(&plan.traffic, 16_000);
    for round in ["round-1", "round-2"] {
        let cookie = [(17, "meanwhile".to_owned())].into();
        known.insert(round.to_owned(), cookie);
    }
    documents.wait_exactly(&known).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

async fn paused_mongod_loses_nothing(mode: ExpiryMode) -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--expiry", &mode.to_string(), "--expiry-window", "always"];
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    let plan = producer.ordered_load(6, 3_000, 30_000)?;
    let pause = async {
        consumer.wait_written(3_000).await?;
        mongod.pause()?;
        consumer.wait_not_ready("store: no answer for 5s").await?;
        check_down(&consumer).await?;
        mongod.resume()?;
        consumer.wait_ready().await
    };
    let (accepted, paused) = tokio::join!(accept_all(&plan), pause);
    paused?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents
        .wait_exactly(&newest(&plan.traffic, 30_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// The same at the rate of a small exchange, away for twenty seconds. For release builds of the programs.
#[tokio::test]
#[ignore = "takes a minute and dist builds"]
async fn long_mongod_outage_at_20_000_per_second_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(12, 20_000, 800_000)?;
    let crash = async {
        consumer.wait_written(100_000).await?;
        mongod.kill()?;
        // The load is the clock.
        let at_kill = producer.appended().await?;
        wait_until(TIMEOUT, "20 s of load", async || {
            Ok(producer.appended().await? >= at_kill + 400_000)
        })
        .await?;
        check_down(&consumer).await?;
        mongod.restart().await
    };
    let (accepted, crashed) = tokio::join!(accept_all(&plan), crash);
    crashed?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let known = newest(&plan.traffic, 800_000);
    documents.wait_exactly(&known).await?;
    println!("{} documents, all as sent", documents.count().await?);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// Longer than a command may take, so that commands are given up, and executed by the server afterwards. Prints
/// what `/readyz` says meanwhile, and how soon it goes on.
#[tokio::test]
#[ignore = "takes a minute"]
async fn mongod_paused_beyond_the_command_timeout_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let plan = producer.ordered_load(10, 3_000, 180_000)?;
    let pause = async {
        consumer.wait_written(3_000).await?;
        mongod.pause()?;
        let began = Instant::now();
        let mut said = String::new();
        let written = consumer.metrics().await?.count(names::WRITTEN, &[]);
        let mut gone_on = None;
        loop {
            let answer = admin::get(&consumer.admin, "/readyz").await?;
            if answer.body != said {
                let (at, status) = (began.elapsed(), answer.status);
                said = answer.body;
                println!("after {at:.1?}: {status} {}", said.trim());
            }
            if gone_on.is_none() && began.elapsed() >= PAUSE {
                mongod.resume()?;
                gone_on = Some(Instant::now());
                println!("after {:.1?}: it goes on", began.elapsed());
            }
            let now = consumer.metrics().await?.count(names::WRITTEN, &[]);
            if let Some(at) = gone_on.filter(|_| now > written) {
                println!("first batch {:.1?} after that", at.elapsed());
                return Ok(());
            }
            ensure!(began.elapsed() < PAUSE + TIMEOUT, "it does not go on");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let (accepted, paused) = tokio::join!(accept_all(&plan), pause);
    paused?;
    accepted?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let known = newest(&plan.traffic, 180_000);
    documents.wait_exactly(&known).await?;
    println!(
        "{} documents, all as they were sent",
        documents.count().await?
    );
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
        let others = [(primary + 1) % 3, (primary + 2) % 3];
        for member in others {
            set.members[member].kill()?;
        }
        consumer.wait_not_ready("no server can be used").await?;
        check_down(&consumer).await?;
        for member in others {
            set.members[member].restart().await?;
        }
        consumer.wait_ready().await
    };
    let (accepted, changed) = tokio::join!(accept_all(&plan), changes);
    changed?;
    accepted?;
    let documents = Documents::connect(&set.uri()).await?;
    documents
        .wait_exactly(&newest(&plan.traffic, 20_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn store_error_is_reported_until_a_write_succeeds() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = failing(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    for (number, how, said) in [
        (1, doc! { "errorCode": 10_107 }, "NotWritablePrimary"),
        (2, doc! { "errorCode": 13 }, "Unauthorized"),
        (3, doc! { "errorCode": 14_031 }, "OutOfDiskSpace"),
        (4, doc! { "errorCode": 11_600 }, "InterruptedAtShutdown"),
        (5, doc! { "errorCode": 50 }, "MaxTimeMSExpired"),
        (6, doc! { "errorCode": 96 }, "code 96 (OperationFailed)"),
        (7, doc! { "closeConnection": true }, "store: "),
        (
            8,
            doc! { "writeConcernError": { "code": 64, "errmsg": "too few" } },
            "too few",
        ),
    ] {
        fail(&mongod, how).await?;
        let user = format!("user-{number}");
        producer.accept(&user, 17, "kept").await?;
        consumer.wait_not_ready(said).await?;
        check_down(&consumer).await?;
        heal(&mongod).await?;
        consumer.wait_ready().await?;
        consumer.wait_known(&user, json!({"17": "kept"})).await?;
    }
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn consumer_exits_and_refills_a_server_that_lost_its_data() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept("alice", 17, "a").await?;
    consumer.wait_known("alice", json!({"17": "a"})).await?;
    consumer.wait_settled(1).await?;
    // One that only was started anew is written on.
    mongod.kill()?;
    mongod.process().wait(TIMEOUT).await?;
    mongod.restart().await?;
    producer.accept("bob", 17, "b").await?;
    consumer.wait_known("bob", json!({"17": "b"})).await?;
    mongod.kill()?;
    mongod.process().wait(TIMEOUT).await?;
    let data = dir.path().join("mongod/data");
    fs::remove_dir_all(&data)?;
    fs::create_dir(&data)?;
    mongod.restart().await?;
    check_begins_anew(&mut consumer, &producer, 1).await?;
    // Without a restart, as a restore into a running server has it; but not between a commit's look at what there is and
    // its writing, which would put the cursors back. What is there may have come twice.
    wait_until(TIMEOUT, "nothing is in hand", async || {
        let metrics = consumer.metrics().await?;
        let waiting = metrics.count(names::WAITING, &[]);
        Ok(waiting == 0 && metrics.count(names::RECEIVED, &[]) >= 3)
    })
    .await?;
    for database in ["17", "cookiesync"] {
        let client = Client::with_uri_str(mongod.uri()).await?;
        client.database(database).drop().await?;
    }
    check_begins_anew(&mut consumer, &producer, 2).await
}

/// Whether a consumer whose server lost everything ends, and finds it all at the producer when it is started again.
async fn check_begins_anew(
    consumer: &mut Consumer,
    producer: &Producer,
    time: usize,
) -> Result<()> {
    // What repeats is not written, for all that the consumer knows.
    producer.accept("alice", 17, "a").await?;
    let status = consumer.process.wait(2 * TIMEOUT).await?;
    expect_exit(&consumer.process, status, 1)?;
    let log = consumer.process.last_lines(usize::MAX);
    let said = log.matches("the store broke: the server lacks").count();
    ensure!(said == time, "{said} times\n{log}");
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer.wait_known("alice", json!({"17": "a"})).await?;
    consumer.wait_known("bob", json!({"17": "b"})).await
}

#[tokio::test]
async fn unwritable_store_is_reported_without_traffic() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = failing(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    fail(&mongod, doc! { "errorCode": 10_107 }).await?;
    consumer.wait_not_ready("NotWritablePrimary").await?;
    heal(&mongod).await?;
    consumer.wait_ready().await?;
    // Nor does a consumer that starts now begin to read.
    fail(&mongod, doc! { "errorCode": 14_031 }).await?;
    consumer.process.kill()?;
    consumer.process.restart()?;
    consumer.wait_not_ready("OutOfDiskSpace").await?;
    heal(&mongod).await?;
    consumer.wait_ready().await
}

#[tokio::test]
async fn slow_mongod_is_reported_and_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = failing(&dir).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let millis = i32::try_from(SLOW.as_millis())?;
    fail(
        &mongod,
        doc! { "blockConnection": true, "blockTimeMS": millis },
    )
    .await?;
    producer.accept("alice", 17, "late").await?;
    consumer.wait_not_ready("no answer for 5s").await?;
    heal(&mongod).await?;
    consumer.wait_ready().await?;
    consumer.wait_known("alice", json!({"17": "late"})).await
}

#[tokio::test]
async fn corrected_credentials_and_permissions_apply_without_a_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = Mongod::start_with(&dir.path().join("mongod"), &["--auth"]).await?;
    create_root(&mongod.uri(), "boss", "boss-secret").await?;
    let boss = format!("mongodb://boss:boss-secret@{}/", mongod.address());
    create_user(&boss, "exchange", "another-secret", "readWriteAnyDatabase").await?;
    let producer = Producer::start(&dir, &[]).await?;
    // The password is `p@ss/w:rd secret`.
    let store = format!(
        "mongodb://exchange:p%40ss%2Fw%3Ard%20secret@{}/?authSource=admin",
        mongod.address()
    );
    let mut consumer = Consumer::spawn(&dir, "node", &[&producer.grpc], &store, &[]).await?;
    consumer.wait_not_ready("Authentication failed").await?;
    let right = doc! { "updateUser": "exchange", "pwd": "p@ss/w:rd secret" };
    command(&boss, right).await?;
    consumer.wait_ready().await?;

    // Read only, with nothing to write.
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
    // That is one DSP's trouble, and not the node's.
    consumer
        .wait_ready_and_says(
            "retry queue: 17 (refused with code 13 (Unauthorized): not authorized on",
        )
        .await?;
    let roles = doc! { "updateUser": "exchange", "roles": ["readWriteAnyDatabase"] };
    command(&boss, roles).await?;
    consumer.wait_ready().await?;
    consumer.wait_known("alice", json!({"17": "a-1"})).await?;
    let log = consumer.process.last_lines(usize::MAX);
    for secret in ["exchange:", "secret", "p%40ss", "p@ss"] {
        ensure!(!log.contains(secret), "{secret} in {log}");
    }
    Ok(())
}

/// A small file system in memory; gone with the test.
pub(crate) struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` where this may not be mounted, which skips the test.
    pub(crate) fn mount(dir: std::path::PathBuf, size: &str) -> Result<Option<Self>> {
        std::fs::create_dir_all(&dir)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        let mounted = mount.arg(&dir).output().context("there is no mount")?;
        if !mounted.status.success() {
            skip(String::from_utf8_lossy(&mounted.stderr));
            return Ok(None);
        }
        Ok(Some(Self(dir)))
    }

    /// Takes all the room there is.
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
    let _machine = machine().await;
    let dir = TempDir::new()?;
    let Some(disk) = SmallDisk::mount(dir.path().join("mongod/data"), "512m")? else {
        return Ok(());
    };
    let mut mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept_load(8, 1_000).await?;
    consumer.wait_written(1_000).await?;
    let filler = disk.fill();
    let plan = producer.ordered_load(9, 20_000, 300_000)?;
    accept_all(&plan).await?;
    // It ends itself when it cannot write.
    consumer.wait_not_ready("store: ").await?;
    check_down(&consumer).await?;
    mongod.process().wait(TIMEOUT).await?;
    std::fs::remove_file(filler)?;
    mongod.restart().await?;
    consumer.wait_ready().await?;
    let mut known = newest(&plan.traffic, 300_000);
    known.extend(newest(&producer.load(8)?.traffic, 1_000));
    // Half a minute of work for a build that is not optimised.
    wait_until(4 * TIMEOUT, "all is written", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count(names::WRITTEN, &[]) >= known.len() as u64)
    })
    .await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents.wait_exactly(&known).await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}
