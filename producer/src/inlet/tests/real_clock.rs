//! Tests of limits with a real log, a real clock and a spool.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proto::{
    units::{DspId, Epoch, Sequence},
    wire::CookieRef,
};
use runtime::reload::{NamedFile, Reloader};
use tempfile::TempDir;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::super::{Inlet, spool::Spool};
use crate::inlet::counters::CookieOutcome;
use crate::{
    contracts::file::File,
    log::{AppendBatch, Config, Delivery, Log},
};

const LIMITS: &str = r#"
unknown = "unlimited"
[limits.dsp]
keys = [17]
mode = "shape"
rules = [ { id = "rate", rate = "10/s" } ]
"#;

struct Producer {
    dir: TempDir,
    log: Log,
    inlet: Inlet,
}

impl Producer {
    fn start(dir: TempDir) -> Self {
        fs::write(dir.path().join("limits.toml"), LIMITS).unwrap();
        let path = dir.path().join("limits.toml").display().to_string();
        let named = NamedFile::from_flag("--contracts", &path).unwrap();
        let file = Arc::new(Reloader::load(File::new(named)).unwrap());
        let log = Log::new(config());
        let inlet =
            Inlet::start("", Some(file), Some(&dir.path().join("spool")), log.clone()).unwrap();
        Self { dir, log, inlet }
    }

    fn append(&self, user: &str) {
        append(&self.inlet, user);
    }

    async fn run_until_released(&self, count: u64) {
        self.run_until(|| {
            let summaries = self.inlet.summaries();
            let summary = summaries.get("dsp");
            summary.is_some_and(|it| it.counters.of(CookieOutcome::Released) >= count)
        })
        .await;
    }

    async fn run_until(&self, is_done: impl Fn() -> bool) {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(self.inlet.clone().run(stop.clone()));
        tasks.close();
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        tasks.wait().await;
    }

    /// Closes the log; returns the users in it, and whether their cookies have an age.
    async fn logged(&self) -> Vec<(String, bool)> {
        let mut reader = self.log.reader(Sequence(1), u64::MAX, Sequence(0));
        self.log.close();
        let mut all = Vec::new();
        while let Delivery::Chunk { chunk, first } = reader.next().await {
            for record in chunk.cookies_from(first).records() {
                let cookie = record.unwrap().cookie().unwrap();
                all.push((cookie.user_id.to_owned(), cookie.age_micros > 0));
            }
        }
        all
    }

    fn spool(&self) -> PathBuf {
        self.dir.path().join("spool")
    }
}

fn append(inlet: &Inlet, user: &str) {
    let mut batch = AppendBatch::default();
    batch.push(&CookieRef {
        user_id: user,
        dsp_id: DspId(17),
        buyer_uid: "b",
        age_micros: 0,
    });
    inlet.append(&mut batch, Instant::now()).unwrap();
    assert!(batch.is_empty());
}

fn config() -> Config {
    Config {
        epoch: Epoch(1),
        bytes_max: 1 << 20,
        chunk_bytes: 64 << 10,
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_secs(3600),
    }
}

fn in_a_minute() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(60)
}

fn users(all: &[(String, bool)]) -> Vec<&str> {
    all.iter().map(|(user, _)| &**user).collect()
}

#[tokio::test]
async fn queued_cookies_are_released_in_order() {
    let producer = Producer::start(TempDir::new().unwrap());
    producer.append("a");
    for user in ["b", "c", "d"] {
        producer.append(user);
    }
    producer.run_until_released(4).await;
    let logged = producer.logged().await;
    assert_eq!(users(&logged), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn queued_cookies_are_restored_at_the_next_start() {
    let first = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        first.append(user);
    }
    first.inlet.drain(in_a_minute()).await;
    assert_eq!(
        first.inlet.summaries()["dsp"]
            .counters
            .of(CookieOutcome::Spooled),
        2
    );
    assert_eq!(users(&first.logged().await), ["a"]);

    let Producer { dir, log, inlet } = first;
    drop((log, inlet));
    let next = Producer::start(dir);
    let summary = &next.inlet.summaries()["dsp"];
    assert_eq!((summary.counters.accepted, summary.usage.queued), (2, 2));
    assert!(!next.spool().exists());
    next.run_until_released(2).await;
    let logged = next.logged().await;
    assert_eq!(users(&logged), ["b", "c"]);
    assert!(logged.iter().all(|(_, is_old)| *is_old), "{logged:?}");
}

#[tokio::test]
async fn queued_cookies_are_restored_and_limited_also_without_limits_at_the_start() {
    let first = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b"] {
        first.append(user);
    }
    first.inlet.drain(in_a_minute()).await;
    let Producer { dir, log, inlet } = first;
    drop((log, inlet));
    let files = dir.path().to_owned();
    let path = |name: &str| files.join(name);
    fs::write(path("none.toml"), "[dsp.17]\n").unwrap();
    let named = NamedFile::from_flag("--contracts", &path("none.toml").display().to_string());
    let file = Arc::new(Reloader::load(File::new(named.unwrap())).unwrap());
    let log = Log::new(config());
    let inlet = Inlet::start("", Some(file.clone()), Some(&path("spool")), log.clone()).unwrap();
    assert!(!path("spool").exists());
    assert_eq!(inlet.describe().as_deref(), Some("none"));

    let next = Producer { dir, log, inlet };
    next.run_until(|| next.inlet.shared.is_idle.load(Ordering::Relaxed))
        .await;
    // Without limits, cookies do not wait for the lock.
    let (done, appended) = std::sync::mpsc::sync_channel(1);
    let state = next.inlet.state();
    let inlet = next.inlet.clone();
    std::thread::spawn(move || {
        append(&inlet, "e");
        done.send(())
    });
    appended.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(state);
    fs::copy(path("limits.toml"), path("none.toml")).unwrap();
    file.reload_once();
    next.run_until_released(0).await;
    for user in ["c", "d"] {
        next.append(user);
    }
    assert_eq!(next.inlet.held(), 1);
    assert_eq!(next.inlet.describe().as_deref(), Some("active"));
    assert_eq!(users(&next.logged().await), ["b", "e", "c"]);
}

#[tokio::test]
async fn queued_cookies_are_released_early_if_the_spool_is_not_writable() {
    let producer = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        producer.append(user);
    }
    fs::create_dir(producer.spool()).unwrap();
    producer.inlet.drain(in_a_minute()).await;
    assert_eq!(users(&producer.logged().await), ["a", "b", "c"]);
    let summary = &producer.inlet.summaries()["dsp"];
    assert_eq!(summary.counters.of(CookieOutcome::ReleasedEarly), 2);
}

#[test]
fn spool_written_after_the_deadline_is_discarded() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let producer = Producer::start(TempDir::new().unwrap());
        for user in ["a", "b", "c"] {
            producer.append(user);
        }
        // The only blocking thread is busy beyond the deadline.
        let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
        let blocked = tokio::task::spawn_blocking(move || busy.recv());
        producer.inlet.drain(tokio::time::Instant::now()).await;
        let counters = &producer.inlet.summaries()["dsp"].counters;
        assert_eq!(
            (
                counters.of(CookieOutcome::ReleasedEarly),
                counters.of(CookieOutcome::Spooled)
            ),
            (2, 0)
        );
        drop(free);
        assert!(blocked.await.unwrap().is_err());
        // Blocking tasks run in order, so the late write has finished.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(!producer.spool().exists());
    });
}

#[tokio::test]
async fn killed_process_loses_only_queued_cookies() {
    let killed = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        killed.append(user);
    }
    let usage = killed.inlet.summaries()["dsp"].usage;
    assert_eq!(usage.queued, 2);
    assert_eq!(users(&killed.logged().await), ["a"]);
    let Producer { dir, log, inlet } = killed;
    drop((log, inlet));
    let next = Producer::start(dir);
    assert_eq!(next.inlet.held(), 0);
    next.append("d");
    assert_eq!(users(&next.logged().await), ["d"]);
}

#[tokio::test]
async fn corrupt_spool_is_renamed_and_ignored() {
    let first = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        first.append(user);
    }
    first.inlet.drain(in_a_minute()).await;
    let Producer { dir, log, inlet } = first;
    drop((log, inlet));
    let spool = dir.path().join("spool");
    let valid = fs::read(&spool).unwrap();
    for at in [0, 30, 40, valid.len() - 1] {
        let mut corrupt = valid.clone();
        corrupt[at] ^= 1;
        fs::write(&spool, &corrupt).unwrap();
        let locked = Spool::lock(spool.clone()).unwrap();
        assert!(locked.read(|_, _| ()).is_none(), "byte {at}");
        assert!(!spool.exists(), "byte {at}");
    }
    fs::write(&spool, &valid[..valid.len() - 5]).unwrap();
    let next = Producer::start(dir);
    assert!(!spool.exists() && next.dir.path().join("spool.damaged").exists());
    assert_eq!(next.inlet.summaries()["dsp"].usage.queued, 0);
    next.append("d");
    assert_eq!(users(&next.logged().await), ["d"]);
}
