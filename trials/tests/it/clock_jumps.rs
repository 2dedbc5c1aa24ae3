//! Clocks that are set back and forward while everything runs, by libfaketime.
//!
//! A producer's chunk times never decrease, whatever its clock does, and an epoch never comes again. A consumer goes on from
//! the time it had: the newest value still wins.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use bench::{scrape::names, tools::skip};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    harness::{Addresses, Consumer, Producer, TIMEOUT, accept_all, embedded, newest, wait_until},
    process_wrapper,
    stream_client::{Subscription, from_oldest},
};

/// Where distributions put the library for programs with threads.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A wall clock of its own for programs; their monotonic clock is the machine's. To be dropped after them: with it goes what the
/// library leaves in memory of a process that is killed.
struct FakeClock {
    library: &'static str,
    file: PathBuf,
    /// The ids of all processes that ran under it, one a line.
    processes: PathBuf,
}

impl Drop for FakeClock {
    fn drop(&mut self) {
        let processes = fs::read_to_string(&self.processes).unwrap_or_default();
        for left in processes.lines().flat_map(left_behind) {
            // It is gone where the process ended in order.
            drop(fs::remove_file(left));
        }
    }
}

/// Files that the library makes for a process.
fn left_behind(process_id: &str) -> [PathBuf; 2] {
    ["faketime_shm_", "sem.faketime_sem_"]
        .map(|name| Path::new("/dev/shm").join(format!("{name}{process_id}")))
}

impl FakeClock {
    /// One that is right; `None` where the library is not installed, which skips the test.
    fn new(dir: &TempDir, name: &str) -> Result<Option<Self>> {
        let library = LIBRARIES.iter().find(|library| Path::new(library).exists());
        let Some(library) = library else {
            skip("libfaketime is not installed (Debian: faketime)");
            return Ok(None);
        };
        let clock = Self {
            library,
            file: dir.path().join(name),
            processes: dir.path().join(format!("{name}.processes")),
        };
        clock.set("+0")?;
        Ok(Some(clock))
    }

    /// Sets it: so many seconds off, as `+3600`, or for good to a date and time.
    fn set(&self, time: &str) -> Result<()> {
        // Whole at once, since it is read all the time.
        let whole = self.file.with_extension("new");
        fs::write(&whole, time)?;
        Ok(fs::rename(&whole, &self.file)?)
    }

    /// Starts a program under it, which has the process id of what is started.
    fn wrap(&self, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let mut all = vec![
            "-c".to_owned(),
            "echo $$ >>\"$0\" && exec env \"$@\"".to_owned(),
            self.processes.display().to_string(),
            format!("LD_PRELOAD={}", self.library),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            program.display().to_string(),
        ];
        all.extend_from_slice(args);
        (PathBuf::from("sh"), all)
    }

    async fn producer(&self, dir: &TempDir, flags: &[&str]) -> Result<Producer> {
        let addresses = Addresses::free()?;
        Producer::start_wrapped(dir, &addresses, flags, &|program, args| {
            self.wrap(program, args)
        })
        .await
    }

    async fn consumer(
        &self,
        dir: &TempDir,
        producer: &Producer,
        flags: &[&str],
    ) -> Result<Consumer> {
        let store = embedded(&dir.path().join("store"));
        let wrap = |program: &Path, args: &[String]| self.wrap(program, args);
        process_wrapper::consumer(dir, ("node", HERE), producer, &store, flags, &wrap).await
    }
}

#[tokio::test]
async fn fake_clock_removes_the_files_of_a_killed_process() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    let (program, args) = clock.wrap(Path::new("sleep"), &["60".to_owned()]);
    let mut process = Command::new(program).args(args).spawn()?;
    let left = left_behind(&process.id().to_string());
    wait_until(TIMEOUT, "the library's files", async || {
        Ok(left.iter().all(|file| file.exists()))
    })
    .await?;
    process.kill()?;
    process.wait()?;
    drop(clock);
    ensure!(!left.iter().any(|file| file.exists()), "{left:?}");
    Ok(())
}

/// Nothing panicked, and nothing broke the contract.
async fn check_calm(consumer: &Consumer, producer: &Producer) -> Result<()> {
    for process in [&consumer.process, &producer.process] {
        let log = process.last_lines(usize::MAX);
        ensure!(!log.contains("panicked"), "{log}");
    }
    let metrics = consumer.metrics().await?;
    assert_eq!(metrics.count("consumer_stream_violations_total", &[]), 0);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn chunk_times_never_decrease_when_the_producer_clock_jumps() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    let producer = clock.producer(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let mut stream = Subscription::open(&producer.grpc, from_oldest("reader")).await?;
    let mut sent = 0;
    for (value, time) in ["+0", "-3600", "+3600", "-86400", "+0"].iter().enumerate() {
        clock.set(time)?;
        // The last value wins, at each of these times.
        let buyer = format!("b-{value}");
        producer.accept("alice", 17, &buyer).await?;
        consumer.wait_known("alice", json!({"17": buyer})).await?;
        sent += 1;
        stream.read_to(sent).await?;
    }
    let times = &stream.times;
    ensure!(times.is_sorted() && times.len() > 3, "{times:?}");
    // The same under a load, with a jump in its middle.
    let plan = producer.ordered_load(41, 3_000, 6_000)?;
    let jump = async {
        consumer.wait_written(2_000).await?;
        clock.set("-7200")
    };
    let (accepted, jumped) = tokio::join!(accept_all(&plan), jump);
    jumped?;
    accepted?;
    consumer.wait_settled(sent + 6_000).await?;
    consumer.wait_knows(&newest(&plan.traffic, 6_000)).await?;
    stream.read_to(sent + 6_000).await?;
    ensure!(stream.times.is_sorted());
    check_calm(&consumer, &producer).await
}

#[tokio::test]
async fn changed_value_is_stored_after_the_node_clock_is_set_back() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = clock.consumer(&dir, &producer, &[]).await?;
    for (value, time) in ["+0", "-3600", "+3600", "-86400", "+0"].iter().enumerate() {
        clock.set(time)?;
        let buyer = format!("b-{value}");
        producer.accept("alice", 17, &buyer).await?;
        consumer.wait_known("alice", json!({"17": buyer})).await?;
    }
    let metrics = consumer.metrics().await?;
    assert_eq!(metrics.count(names::STALE, &[]), 0);
    check_calm(&consumer, &producer).await
}

#[tokio::test]
async fn cookie_hidden_by_a_wrong_clock_reappears_when_the_clock_is_corrected() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    let producer = Producer::start(&dir, &[]).await?;
    let flags = ["--ttl", "30m", "--expiry-window", "never"];
    let consumer = clock.consumer(&dir, &producer, &flags).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_known("alice", json!({"17": "a-1"})).await?;
    clock.set("+3600")?;
    consumer
        .knows_none(["alice".to_owned()].into_iter())
        .await?;
    // Nor is one refused that comes meanwhile.
    producer.accept("bob", 17, "b-1").await?;
    wait_until(TIMEOUT, "it has come", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count(names::WRITTEN, &[]) + metrics.count(names::FAILED, &[]) == 2)
    })
    .await?;
    clock.set("+0")?;
    consumer.wait_known("alice", json!({"17": "a-1"})).await?;
    consumer.wait_known("bob", json!({"17": "b-1"})).await?;
    check_calm(&consumer, &producer).await
}

/// A machine without a clock of its own begins each epoch at the same time.
#[tokio::test]
async fn epochs_differ_when_a_producer_starts_twice_at_the_same_time() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    // For good, so that a start takes no time.
    let now = jiff::Zoned::now();
    clock.set(&now.strftime("%Y-%m-%d %H:%M:%S").to_string())?;
    let mut producer = clock.producer(&dir, &["--id", "p"]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept_numbers(1..=100).await?;
    consumer.wait_settled(100).await?;

    producer.process.kill()?;
    consumer.wait_not_ready("no producer is connected").await?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept("alice", 17, "second-epoch").await?;
    consumer
        .wait_known("alice", json!({"17": "second-epoch"}))
        .await?;
    let metrics = consumer.metrics().await?;
    let lossless = metrics.count("consumer_producer_restarts_total", &[("loss", "none")]);
    assert_eq!(lossless, 1, "the epoch history tells the two apart");
    check_calm(&consumer, &producer).await
}

/// Its cookies are older than what the first epoch stored, by its own clock; other pairs are not touched by that.
#[tokio::test]
async fn producer_restarted_with_an_earlier_clock_is_read_from_its_first_cookie() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    let mut producer = clock.producer(&dir, &["--id", "p"]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept("alice", 17, "first-epoch").await?;
    consumer
        .wait_known("alice", json!({"17": "first-epoch"}))
        .await?;
    producer.process.kill()?;
    clock.set("-3600")?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept("alice", 17, "older").await?;
    producer.accept("bob", 17, "second-epoch").await?;
    consumer
        .wait_known("bob", json!({"17": "second-epoch"}))
        .await?;
    // Newest wins by the time of acceptance, so the first epoch's value stays until this clock is right.
    consumer
        .wait_known("alice", json!({"17": "first-epoch"}))
        .await?;
    consumer.wait_settled(3).await?;
    let stale = consumer.metrics().await?.count(names::STALE, &[]);
    assert_eq!(stale, 1, "and it is counted");
    check_calm(&consumer, &producer).await
}
