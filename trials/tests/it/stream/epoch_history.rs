//! Tests of what consumers report when an epoch of a producer (one run of its process) ends: no loss, an exact number, a maximum,
//! or an unknown loss. Each report must be correct.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use bench::load;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    scrape::{Samples, names},
    tools::skip,
};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{
        Addresses, Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, wait_logged,
        wait_until,
    },
    tcp_proxy::TcpProxy,
};

/// A separate disk for `--state` that can hang. While it hangs, writers block and cannot be killed.
struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// `None` (a skipped test) without the permission to mount.
    fn mount(within: &TempDir) -> Result<Option<Self>> {
        let [image, dir] = ["image", "disk"].map(|name| within.path().join(name));
        File::create(&image)?.set_len(8 << 20)?;
        fs::create_dir(&dir)?;
        let [q, o, lo] = ["-qF", "-o", "loop"].map(OsStr::new);
        let is_mounted = succeeds("mkfs.ext4", &[q, image.as_ref()])
            && succeeds("mount", &[o, lo, image.as_ref(), dir.as_ref()]);
        if !is_mounted {
            skip("mkfs.ext4 or mount fails");
            return Ok(None);
        }
        Ok(Some(Self { dir }))
    }

    /// Blocks writes until the result is dropped.
    fn hang(&self) -> Result<Hanging<'_>> {
        ensure!(succeeds("fsfreeze", &["-f".as_ref(), self.dir.as_ref()]));
        Ok(Hanging(self))
    }

    fn flags(&self) -> Vec<&str> {
        vec!["--state", self.dir.to_str().unwrap_or_default()]
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !succeeds("umount", &["-l".as_ref(), self.dir.as_ref()]) {
            eprintln!("cannot unmount {}", self.dir.display());
        }
    }
}

struct Hanging<'a>(&'a Disk);

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        if !succeeds("fsfreeze", &["-u".as_ref(), self.0.dir.as_ref()]) {
            eprintln!("cannot unfreeze {}", self.0.dir.display());
        }
    }
}

fn succeeds(program: &str, args: &[&OsStr]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// A producer, and a consumer that has stored its first cookie.
struct Pair {
    _dir: TempDir,
    producer: Producer,
    consumer: Consumer,
}

impl Pair {
    async fn start(flags: &[&str]) -> Result<Self> {
        let dir = TempDir::new()?;
        let producer = Producer::start(&dir, flags).await?;
        let store = embedded(&dir.path().join("store"));
        let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
        producer.accept("alice", 1, "first").await?;
        consumer.wait_lookup("alice", json!({"1": "first"})).await?;
        Ok(Self {
            _dir: dir,
            producer,
            consumer,
        })
    }

    async fn stop_consumer(&mut self) -> Result<()> {
        let status = self.consumer.process.stop(DRAIN_TIMEOUT).await?;
        expect_exit(&self.consumer.process, status, 0)
    }

    async fn stop_producer(&mut self) -> Result<()> {
        let status = self.producer.process.stop(DRAIN_TIMEOUT).await?;
        expect_exit(&self.producer.process, status, 0)
    }

    /// Kills the producer once all its cookies are sealed, so that its epoch history has the exact position.
    async fn kill_idle_producer(&mut self, cookies: u64) -> Result<()> {
        wait_until(TIMEOUT, "all cookies are sealed", async || {
            let metrics = self.producer.metrics().await?;
            Ok(metrics.count("producer_log_cookies", &[]) == cookies)
        })
        .await?;
        self.producer.process.kill()
    }

    async fn start_producer(&mut self) -> Result<()> {
        self.producer.process.restart()?;
        self.producer.wait_ready().await
    }

    async fn start_consumer(&mut self) -> Result<()> {
        self.consumer.process.restart()?;
        self.consumer.wait_ready().await
    }

    /// Waits until the consumer has reported its first restart of a producer, checks label and log message, and returns the metrics.
    async fn expect_restart(&self, loss: &str, message: &str) -> Result<Samples> {
        let restarts = "consumer_producer_restarts_total";
        wait_until(TIMEOUT, "the restart is reported", async || {
            Ok(self.consumer.metrics().await?.count(restarts, &[]) == 1)
        })
        .await?;
        let metrics = self.consumer.metrics().await?;
        let counted = metrics.count(restarts, &[("loss", loss)]);
        ensure!(counted == 1, "{}", self.consumer.process.last_lines(100));
        // The log message is written after the metric is counted.
        wait_logged(&self.consumer.process, message).await?;
        Ok(metrics)
    }

    /// Checks that the consumer receives cookies of the current epoch.
    async fn check_receives(&self) -> Result<()> {
        self.producer.accept("alice", 2, "last").await?;
        let known = json!({"1": "first", "2": "last"});
        self.consumer.wait_lookup("alice", known).await
    }

    /// The path of the epoch history, the only file in its directory.
    fn history_file(dir: &Path) -> Result<std::path::PathBuf> {
        let mut files = fs::read_dir(dir)?;
        let file = files.next().context("no epoch history")??;
        ensure!(files.next().is_none(), "more than one file");
        Ok(file.path())
    }
}

#[tokio::test]
async fn reported_bound_covers_the_losses_of_a_killed_producer() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let mut proxy = TcpProxy::to(producer.grpc.trim_start_matches("http://")).await?;
    let store = embedded(&dir.path().join("store"));
    let url = proxy.url();
    let mut consumer = Consumer::spawn(&dir, "node", &[&url], &store, &[]).await?;
    consumer.wait_ready().await?;

    let plan = producer.ordered_load(51, 3_000, 1_000_000)?;
    let stop = CancellationToken::new();
    let crash = async {
        let wait_appended = async |cookies: u64| {
            wait_until(TIMEOUT, "cookies are appended", async || {
                Ok(producer.appended().await? >= cookies)
            })
            .await
        };
        wait_appended(1_500).await?;
        proxy.disconnect().await;
        consumer.wait_not_ready("no producer is connected").await?;
        let accepted = producer.appended().await?;
        wait_appended(accepted + 1_500).await?;
        producer.process.kill()?;
        stop.cancel();
        anyhow::Ok(())
    };
    let (outcome, crashed) = tokio::join!(load::run(&plan, &stop), crash);
    crashed?;
    let outcome = outcome?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    proxy.reconnect().await?;
    consumer.wait_ready().await?;
    wait_until(TIMEOUT, "the restart is reported", async || {
        Ok(consumer
            .metrics()
            .await?
            .count(names::UNCERTAIN_RESTARTS, &[])
            == 1)
    })
    .await?;

    // Once this cookie is stored, all cookies received before it are counted.
    producer.accept("bob", 1, "next-epoch").await?;
    consumer
        .wait_lookup("bob", json!({"1": "next-epoch"}))
        .await?;
    let metrics = consumer.metrics().await?;
    let received = metrics.count(names::RECEIVED, &[]) - 1;
    let bound = metrics.count("consumer_uncertain_loss_cookies_total", &[]);
    let log = consumer.process.last_lines(100);
    // Requests without a response may have been accepted.
    let (lost_min, lost_max) = (
        outcome.counts.accepted - received,
        outcome.counts.sent - received,
    );
    ensure!(
        lost_min >= 1_000,
        "too few losses to check: {}",
        outcome.report().summary()
    );
    ensure!(
        (lost_min..=lost_max + producer::epoch_history::BOUND_STEP).contains(&bound),
        "{lost_min} to {lost_max} cookies are lost, but the reported maximum is {bound}:\n{log}"
    );
    let message = "up to cookies_max cookies after this sequence number are lost";
    ensure!(log.contains(message), "{log}");
    ensure!(log.contains(&format!("cookies_max={bound}")), "{log}");
    let message = "until it is restored, cookies after this sequence number are unaccounted for";
    ensure!(log.contains(message), "{log}");
    Ok(())
}

#[tokio::test]
async fn undelivered_cookies_of_a_drained_producer_are_counted_exactly() -> Result<()> {
    let mut pair = Pair::start(&[]).await?;
    pair.stop_consumer().await?;
    pair.producer.accept_numbers(1..=50).await?;
    pair.stop_producer().await?;
    pair.start_producer().await?;
    pair.start_consumer().await?;
    let metrics = pair
        .expect_restart(
            "exact",
            "cookies after this sequence number are lost, and their exact number is known",
        )
        .await?;
    let reason = [("reason", "producer_ended")];
    assert_eq!(metrics.count(names::LOST, &reason), 50);
    assert_eq!(metrics.count(names::UNCERTAIN_RESTARTS, &[]), 0);
    pair.check_receives().await
}

#[tokio::test]
async fn goodbye_confirms_no_loss_to_a_restarted_consumer() -> Result<()> {
    let mut pair = Pair::start(&[]).await?;
    pair.stop_producer().await?;
    wait_until(TIMEOUT, "the goodbye is stored", async || {
        let metrics = pair.consumer.metrics().await?;
        Ok(metrics.count("consumer_producer_drains_total", &[]) == 1)
    })
    .await?;
    pair.stop_consumer().await?;
    pair.start_producer().await?;
    pair.start_consumer().await?;
    let metrics = pair
        .expect_restart("none", "producer restarted; nothing lost")
        .await?;
    assert_eq!(metrics.count(names::LOST, &[]), 0);
    pair.check_receives().await
}

#[tokio::test]
async fn missed_epochs_are_counted() -> Result<()> {
    let mut pair = Pair::start(&[]).await?;
    pair.stop_consumer().await?;
    pair.producer.accept_numbers(1..=20).await?;
    pair.kill_idle_producer(21).await?;
    pair.start_producer().await?;
    pair.producer.accept_numbers(21..=50).await?;
    pair.stop_producer().await?;
    pair.start_producer().await?;
    pair.start_consumer().await?;
    let metrics = pair.expect_restart("bounded", "cookies_max=50").await?;
    let bound = metrics.count("consumer_uncertain_loss_cookies_total", &[]);
    assert_eq!(
        (bound, metrics.count(names::UNCERTAIN_RESTARTS, &[])),
        (50, 1)
    );
    pair.check_receives().await
}

#[tokio::test]
async fn hanging_state_disk_blocks_no_request_and_yields_no_bound() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(disk) = Disk::mount(&dir)? else {
        return Ok(());
    };
    let mut pair = Pair::start(&disk.flags()).await?;
    pair.stop_consumer().await?;
    let hanging = disk.hang()?;
    pair.producer.accept_numbers(1..=5_000).await?;
    pair.producer.process.kill()?;
    drop(hanging);
    pair.start_producer().await?;
    pair.start_consumer().await?;
    pair.expect_restart("unknown", "number of lost cookies is unknown")
        .await?;
    pair.check_receives().await
}

#[tokio::test]
async fn hanging_state_disk_blocks_no_drain_and_yields_no_end() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(disk) = Disk::mount(&dir)? else {
        return Ok(());
    };
    let mut flags = disk.flags();
    flags.extend(["--drain-timeout", "2s"]);
    let mut pair = Pair::start(&flags).await?;
    pair.stop_consumer().await?;
    pair.producer.accept_numbers(1..=50).await?;
    let hanging = disk.hang()?;
    pair.stop_producer().await?;
    drop(hanging);
    pair.start_producer().await?;
    pair.start_consumer().await?;
    pair.expect_restart("unknown", "number of lost cookies is unknown")
        .await?;
    pair.check_receives().await
}

#[tokio::test]
async fn corrupt_record_yields_no_bound_and_confirms_nothing() -> Result<()> {
    let state = TempDir::new_in("/dev/shm")?;
    let flag = state.path().display().to_string();
    let mut pair = Pair::start(&["--state", &flag]).await?;
    pair.producer.process.kill()?;
    fs::write(Pair::history_file(state.path())?, "garbage")?;
    pair.start_producer().await?;
    let metrics = pair
        .expect_restart("unknown", "number of lost cookies is unknown")
        .await?;
    assert_eq!(metrics.count(names::UNCERTAIN_RESTARTS, &[]), 1);
    assert_eq!(
        metrics.count("consumer_uncertain_loss_cookies_total", &[]),
        0
    );
    // The new epoch is recorded.
    pair.stop_producer().await?;
    pair.start_producer().await?;
    wait_until(TIMEOUT, "the next end confirms no loss", async || {
        let metrics = pair.consumer.metrics().await?;
        Ok(metrics.count("consumer_producer_restarts_total", &[("loss", "none")]) == 1)
    })
    .await?;
    pair.check_receives().await
}

#[tokio::test]
async fn producer_without_an_epoch_history_runs_and_reports_it() -> Result<()> {
    let nowhere = ["--state", "/nonexistent/directory"];
    let mut pair = Pair::start(&nowhere).await?;
    wait_logged(&pair.producer.process, "epoch history unavailable").await?;
    let recorded = async |producer: &Producer| {
        let metrics = producer.metrics().await?;
        anyhow::Ok(metrics.count("producer_epoch_history_recorded", &[]))
    };
    assert_eq!(recorded(&pair.producer).await?, 0);
    pair.producer.process.kill()?;
    pair.start_producer().await?;
    pair.expect_restart("unknown", "number of lost cookies is unknown")
        .await?;
    pair.check_receives().await
}

#[tokio::test]
async fn second_producer_with_the_same_id_runs_without_an_epoch_history() -> Result<()> {
    let (dir, state) = (TempDir::new()?, TempDir::new_in("/dev/shm")?);
    let state = state.path().display().to_string();
    let flags = ["--id", "p", "--state", &state];
    let first = Producer::start(&dir, &flags).await?;
    let second = Producer::start_at(&dir, &Addresses::free()?, &flags).await?;
    wait_logged(
        &second.process,
        "another process with the same --id is using this file",
    )
    .await?;
    let recorded = "producer_epoch_history_recorded";
    assert_eq!(first.metrics().await?.count(recorded, &[]), 1);
    assert_eq!(second.metrics().await?.count(recorded, &[]), 0);
    // A consumer detects both without any cookie.
    let store = embedded(&dir.path().join("store"));
    let urls = [&*first.grpc, &*second.grpc];
    let mut consumer = Consumer::spawn(&dir, "node", &urls, &store, &[]).await?;
    consumer
        .wait_not_ready("two producers have the id p; give each its own --id")
        .await?;
    let found = "consumer_duplicate_producer_ids_total";
    ensure!(consumer.metrics().await?.count(found, &[]) > 0);
    wait_logged(&consumer.process, "two producers have the same id").await?;
    drop(second);
    consumer.wait_ready().await
}
