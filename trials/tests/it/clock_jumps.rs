//! Tests in which the wall clock of running processes jumps, simulated with libfaketime.
//!
//! However a producer's clock jumps, its chunk times never decrease and its epochs never repeat. On a consumer, the
//! newest value still wins.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use testkit::{programs::free_address, scrape::names, tools::skip};

use crate::{
    deletions::{delete, start_producer, wait_done},
    harness::{
        Addresses, Consumer, Producer, TIMEOUT, accept_all, embedded, expected_contents, wait_until,
    },
    process_wrapper,
    stream_client::{Subscription, from_oldest},
};

/// Paths of the multi-threaded library in common distributions.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A fake wall clock for programs; their monotonic clock stays real.
///
/// Drop it after the programs: it removes the shared-memory files that the library leaves behind for killed processes.
pub(crate) struct FakeClock {
    library: &'static str,
    file: PathBuf,
    /// File with the ids of all processes started under this clock, one per line.
    processes: PathBuf,
}

impl Drop for FakeClock {
    fn drop(&mut self) {
        let processes = fs::read_to_string(&self.processes).unwrap_or_default();
        for file in processes.lines().flat_map(shared_memory_files) {
            // A process that exited cleanly has removed its file.
            drop(fs::remove_file(file));
        }
    }
}

/// Files that the library creates for a process.
fn shared_memory_files(process_id: &str) -> [PathBuf; 2] {
    ["faketime_shm_", "sem.faketime_sem_"]
        .map(|name| Path::new("/dev/shm").join(format!("{name}{process_id}")))
}

impl FakeClock {
    /// A correct clock, or `None` (a skipped test) if the library is not installed.
    pub(crate) fn new(dir: &TempDir, name: &str) -> Result<Option<Self>> {
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

    /// Sets the clock to an offset in seconds such as `+3600`, or stops it at a date and time.
    pub(crate) fn set(&self, time: &str) -> Result<()> {
        // Replaced atomically, because the library reads it at any time.
        let new = self.file.with_extension("new");
        fs::write(&new, time)?;
        Ok(fs::rename(&new, &self.file)?)
    }

    /// The command that runs a program under this clock and keeps its process id.
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

    pub(crate) async fn producer(&self, dir: &TempDir, flags: &[&str]) -> Result<Producer> {
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
        process_wrapper::consumer(dir, ("node", LOOPBACK), producer, &store, flags, &wrap).await
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
    let files = shared_memory_files(&process.id().to_string());
    wait_until(TIMEOUT, "the library creates its files", async || {
        Ok(files.iter().all(|file| file.exists()))
    })
    .await?;
    process.kill()?;
    process.wait()?;
    drop(clock);
    ensure!(!files.iter().any(|file| file.exists()), "{files:?}");
    Ok(())
}

/// Checks that no process panicked, and that no protocol violation or loss was counted.
async fn check_no_violations(consumer: &Consumer, producer: &Producer) -> Result<()> {
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
        // The last value wins at each of these times.
        let buyer = format!("b-{value}");
        producer.accept("alice", 17, &buyer).await?;
        consumer.wait_lookup("alice", json!({"17": buyer})).await?;
        sent += 1;
        stream.read_to(sent).await?;
    }
    let times = &stream.times;
    ensure!(times.is_sorted() && times.len() > 3, "{times:?}");
    // The same under load, with a jump during the load.
    let plan = producer.ordered_load(41, 3_000, 6_000)?;
    let jump = async {
        consumer.wait_written(2_000).await?;
        clock.set("-7200")
    };
    let (accepted, jumped) = tokio::join!(accept_all(&plan), jump);
    jumped?;
    accepted?;
    consumer.wait_settled(sent + 6_000).await?;
    consumer
        .wait_lookups(&expected_contents(&plan.traffic, 6_000))
        .await?;
    stream.read_to(sent + 6_000).await?;
    ensure!(stream.times.is_sorted());
    check_no_violations(&consumer, &producer).await
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
        consumer.wait_lookup("alice", json!({"17": buyer})).await?;
    }
    let metrics = consumer.metrics().await?;
    assert_eq!(metrics.count(names::STALE, &[]), 0);
    check_no_violations(&consumer, &producer).await
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
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    clock.set("+3600")?;
    consumer
        .check_unknown(["alice".to_owned()].into_iter())
        .await?;
    // The consumer does not reject a cookie that arrives while the clock is wrong.
    producer.accept("bob", 17, "b-1").await?;
    wait_until(TIMEOUT, "the second cookie has an outcome", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count(names::WRITTEN, &[]) + metrics.count(names::FAILED, &[]) == 2)
    })
    .await?;
    clock.set("+0")?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    consumer.wait_lookup("bob", json!({"17": "b-1"})).await?;
    check_no_violations(&consumer, &producer).await
}

/// A machine without a battery-backed clock starts every epoch at the same time.
#[tokio::test]
async fn epochs_differ_when_a_producer_starts_twice_at_the_same_time() -> Result<()> {
    let dir = TempDir::new()?;
    let Some(clock) = FakeClock::new(&dir, "clock")? else {
        return Ok(());
    };
    // A stopped clock, so that both starts have the same time.
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
        .wait_lookup("alice", json!({"17": "second-epoch"}))
        .await?;
    let metrics = consumer.metrics().await?;
    let lossless = metrics.count("consumer_producer_restarts_total", &[("loss", "none")]);
    assert_eq!(lossless, 1, "the epoch history distinguishes the epochs");
    check_no_violations(&consumer, &producer).await
}

/// By its clock, cookies of the second epoch are older than the stored ones. They lose only to values of the same pair.
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
        .wait_lookup("alice", json!({"17": "first-epoch"}))
        .await?;
    producer.process.kill()?;
    clock.set("-3600")?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept("alice", 17, "older").await?;
    producer.accept("bob", 17, "second-epoch").await?;
    consumer
        .wait_lookup("bob", json!({"17": "second-epoch"}))
        .await?;
    // The newest acceptance time wins, so the value of the first epoch stays until this clock has caught up.
    consumer
        .wait_lookup("alice", json!({"17": "first-epoch"}))
        .await?;
    consumer.wait_settled(3).await?;
    let stale = consumer.metrics().await?.count(names::STALE, &[]);
    assert_eq!(stale, 1);
    check_no_violations(&consumer, &producer).await
}

/// The receipt of a deletion at one producer also proves that earlier matches of the other producer are gone.
#[tokio::test]
async fn deletion_covers_earlier_syncs_at_a_producer_with_another_clock() -> Result<()> {
    // The difference exists at the start, or the clock is set ahead while no new stream measures it.
    for (at_start, ahead) in [("+30", "+30"), ("-30", "-30"), ("+0", "+30")] {
        let dir = TempDir::new()?;
        let Some(clock) = FakeClock::new(&dir, "clock")? else {
            return Ok(());
        };
        let (right, right_api) = start_producer(&dir, &["--id", "right"]).await?;
        clock.set(at_start)?;
        let wrong_api = free_address()?.to_string();
        let wrong = clock
            .producer(&dir, &["--id", "wrong", "--api", &wrong_api])
            .await?;
        let store = embedded(&dir.path().join("store"));
        let mut consumer = Consumer::start(&dir, "node", &[&right, &wrong], &store, &[]).await?;
        clock.set(ahead)?;
        let both = [(&right, &right_api), (&wrong, &wrong_api)];
        for (number, [(syncs, _), (deletes, api)]) in [both, [both[1], both[0]]].iter().enumerate()
        {
            let user = format!("user-{number}");
            syncs.accept(&user, 17, "old").await?;
            consumer.wait_lookup(&user, json!({"17": "old"})).await?;
            let deletion = delete(api, &format!("/v1/users/{user}")).await?;
            wait_done(api, &deletion).await?;
            consumer.check_unknown([user.clone()].into_iter()).await?;
            // Later matches are kept.
            syncs.accept(&user, 17, "new").await?;
            deletes.accept(&user, 18, "new").await?;
            let new = json!({"17": "new", "18": "new"});
            consumer.wait_lookup(&user, new.clone()).await?;
            consumer.process.kill()?;
            consumer.process.restart()?;
            consumer.wait_ready().await?;
            consumer.wait_lookup(&user, new).await?;
        }
    }
    Ok(())
}
