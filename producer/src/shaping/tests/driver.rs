//! Limits with a real log and a real clock.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use proto::wire::CookieRef;
use runtime::reload::{NamedFile, Reloader};
use tempfile::TempDir;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::super::{Shaping, contract::File, spool::Spool};
use crate::log::{Burst, Config, Delivery, Log};

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
    shaping: Shaping,
}

impl Producer {
    fn start(dir: TempDir) -> Self {
        fs::write(dir.path().join("limits.toml"), LIMITS).unwrap();
        let path = dir.path().join("limits.toml").display().to_string();
        let named = NamedFile::from_flag("--limits", &path).unwrap();
        let file = Arc::new(Reloader::load(File(named)).unwrap());
        let log = Log::new(Config {
            epoch: 1,
            bytes_max: 1 << 20,
            chunk_bytes: 64 << 10,
            chunk_age: Duration::from_millis(10),
            idle_after: Duration::from_secs(3600),
        });
        let shaping = Shaping::start(
            "",
            file,
            Some(Spool::take(dir.path().join("spool")).unwrap()),
            log.clone(),
        );
        Self { dir, log, shaping }
    }

    fn append(&self, user: &str) {
        let mut burst = Burst::default();
        burst.push(&CookieRef {
            user_id: user,
            dsp_id: 17,
            buyer_uid: "b",
            age_micros: 0,
        });
        let now = Instant::now();
        self.shaping.append(&mut burst, now).unwrap();
        assert!(burst.is_empty());
    }

    async fn run_until_released(&self, count: u64) {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(self.shaping.clone().run(stop.clone()));
        tasks.close();
        while self.shaping.summaries()["dsp"].figures.released < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        tasks.wait().await;
    }

    /// Users in the log, and whether each is older than its chunk; then the log is closed.
    async fn logged(&self) -> Vec<(String, bool)> {
        let mut reader = self.log.reader(1, u64::MAX, 0);
        self.log.close();
        let mut all = Vec::new();
        while let Delivery::Chunk { chunk, first } = reader.next().await {
            for cookie in chunk.cookies_from(first).cookies() {
                let cookie = cookie.unwrap();
                all.push((cookie.user_id.to_owned(), cookie.age_micros > 0));
            }
        }
        all
    }

    fn spool(&self) -> PathBuf {
        self.dir.path().join("spool")
    }
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(60)
}

fn users(all: &[(String, bool)]) -> Vec<&str> {
    all.iter().map(|(user, _)| &**user).collect()
}

#[tokio::test]
async fn what_waits_is_released_in_its_turn() {
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
async fn what_waits_at_the_end_waits_again_at_the_next_start() {
    let first = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        first.append(user);
    }
    first.shaping.drain(soon()).await;
    assert_eq!(first.shaping.summaries()["dsp"].figures.spooled, 2);
    assert_eq!(users(&first.logged().await), ["a"]);

    let Producer { dir, log, shaping } = first;
    drop((log, shaping));
    let next = Producer::start(dir);
    let summary = &next.shaping.summaries()["dsp"];
    assert_eq!((summary.figures.accepted, summary.holding.waiting), (2, 2));
    assert!(!next.spool().exists());
    next.run_until_released(2).await;
    let logged = next.logged().await;
    assert_eq!(users(&logged), ["b", "c"]);
    assert!(logged.iter().all(|(_, is_old)| *is_old), "{logged:?}");
}

#[tokio::test]
async fn without_a_file_that_can_be_written_it_is_released_early() {
    let producer = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        producer.append(user);
    }
    fs::create_dir(producer.spool()).unwrap();
    producer.shaping.drain(soon()).await;
    assert_eq!(users(&producer.logged().await), ["a", "b", "c"]);
    let summary = &producer.shaping.summaries()["dsp"];
    assert_eq!(summary.figures.released_early, 2);
}

#[test]
fn file_that_is_late_does_not_hold_what_was_released() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let producer = Producer::start(TempDir::new().unwrap());
        for user in ["a", "b", "c"] {
            producer.append(user);
        }
        // The only thread that writes files is busy beyond the deadline.
        let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
        let blocked = tokio::task::spawn_blocking(move || busy.recv());
        producer.shaping.drain(tokio::time::Instant::now()).await;
        let figures = &producer.shaping.summaries()["dsp"].figures;
        assert_eq!((figures.released_early, figures.spooled), (2, 0));
        drop(free);
        assert!(blocked.await.unwrap().is_err());
        // It works in order: the write that came too late is over.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(!producer.spool().exists());
    });
}

#[tokio::test]
async fn kill_costs_what_waits_and_nothing_else() {
    let killed = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        killed.append(user);
    }
    let holding = killed.shaping.summaries()["dsp"].holding;
    assert_eq!(holding.waiting, 2);
    assert_eq!(users(&killed.logged().await), ["a"]);
    let Producer { dir, log, shaping } = killed;
    drop((log, shaping));
    let next = Producer::start(dir);
    assert_eq!(next.shaping.held(), 0);
    next.append("d");
    assert_eq!(users(&next.logged().await), ["d"]);
}

#[tokio::test]
async fn damaged_file_is_put_aside_and_nothing_else_happens() {
    let first = Producer::start(TempDir::new().unwrap());
    for user in ["a", "b", "c"] {
        first.append(user);
    }
    first.shaping.drain(soon()).await;
    let Producer { dir, log, shaping } = first;
    drop((log, shaping));
    let spool = dir.path().join("spool");
    let good = fs::read(&spool).unwrap();
    for at in [0, 30, 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&spool, &bad).unwrap();
        let taken = Spool::take(spool.clone()).unwrap();
        assert!(taken.read(|_, _| ()).is_none(), "byte {at}");
        assert!(!spool.exists(), "byte {at}");
    }
    fs::write(&spool, &good[..good.len() - 5]).unwrap();
    let next = Producer::start(dir);
    assert!(!spool.exists() && next.dir.path().join("spool.damaged").exists());
    assert_eq!(next.shaping.summaries()["dsp"].holding.waiting, 0);
    next.append("d");
    assert_eq!(users(&next.logged().await), ["d"]);
}
