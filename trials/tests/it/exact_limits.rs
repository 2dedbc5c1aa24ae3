//! A quota that two producers keep together, as a server decides on each cookie. Without `redis-server`, or the one that `REDIS_SERVER` names,
//! nothing is tested.

use std::{
    cell::Cell,
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use bench::{
    admin,
    programs::{Process, free_address},
    scrape::names,
    tools::redis_server_or_skip,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{PATIENCE, Producer, wait_until};

/// So many may go, and no more within the hour.
const QUOTA: u64 = 100;

/// What may be under way when the server is stopped, and is counted by it without going.
const WASTED_MAX: u64 = 40;

/// A server that keeps nothing on disk, when it answers.
async fn server(program: &Path, address: SocketAddr, folder: &TempDir) -> Result<Process> {
    let port = address.port().to_string();
    let args = [
        "--bind",
        "127.0.0.1",
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
    ];
    let args = args.map(str::to_owned);
    let log = folder.path().join("redis.log");
    let process = Process::start("redis-server", program, &args, &log)?;
    wait_until(PATIENCE, "the server listens", async || {
        Ok(TcpStream::connect(address).is_ok())
    })
    .await?;
    Ok(process)
}

struct Group {
    file: PathBuf,
    server: SocketAddr,
    producers: Vec<Producer>,
    users: Cell<u64>,
}

impl Group {
    fn set(&self, rate: &str, name: &str) -> Result<()> {
        let text = format!(
            r#"
            unknown = "unlimited"
            [sharing]
            mode = "exact"
            redis = "redis://{}"
            group = "{name}"
            [limits.dsp]
            keys = [17]
            mode = "shape"
            shape = {{ horizon = "30s", max_age = "1h" }}
            rules = [ {{ id = "quota", rate = "{rate}", burst = {QUOTA} }} ]
            "#,
            self.server
        );
        let unfinished = self.file.with_extension("new");
        fs::write(&unfinished, text)?;
        Ok(fs::rename(unfinished, &self.file)?)
    }

    /// Each accepts so many.
    async fn accept(&self, each: u64) -> Result<()> {
        for producer in &self.producers {
            for _ in 0..each {
                self.users.set(self.users.get() + 1);
                let user = format!("user-{}", self.users.get());
                producer.accept(&user, 17, "b").await?;
            }
        }
        Ok(())
    }

    /// How often each sent one back.
    async fn refused(&self) -> Result<Vec<u64>> {
        let labels = [("limit", "dsp"), ("outcome", "refused")];
        let mut refused = Vec::new();
        for producer in &self.producers {
            let metrics = producer.metrics().await?;
            refused.push(metrics.count(names::SHAPING_OVER, &labels));
        }
        Ok(refused)
    }

    /// How many went, by all.
    async fn went(&self) -> Result<u64> {
        let mut went = 0;
        for producer in &self.producers {
            went += producer.appended().await?;
        }
        Ok(went)
    }

    async fn until_went(&self, least: u64, most: u64) -> Result<()> {
        let what = format!("{least} to {most} went");
        wait_until(PATIENCE, &what, async || {
            let went = self.went().await?;
            ensure!(went <= most, "{went} went");
            Ok(went >= least)
        })
        .await
    }

    async fn until_state(&self, state: &str) -> Result<()> {
        for producer in &self.producers {
            wait_until(PATIENCE, state, async || {
                let metrics = producer.metrics().await?;
                let labels = [("state", state)];
                Ok(metrics.count(figures::producer::SHARING_STATE, &labels) == 1)
            })
            .await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn quota_of_two_producers_is_never_exceeded_and_outlives_a_stopped_server() -> Result<()> {
    let Some(program) = redis_server_or_skip() else {
        return Ok(());
    };
    let folder = TempDir::new()?;
    let mut group = Group {
        file: folder.path().join("limits.toml"),
        server: free_address()?,
        producers: Vec::new(),
        users: Cell::new(0),
    };
    group.set("1/1h", "test")?;
    let flag = format!("--limits={}", group.file.display());
    // The producers are there first: nothing goes.
    for _ in 0..2 {
        group
            .producers
            .push(Producer::start(&folder, &[&flag]).await?);
    }
    group.accept(15).await?;
    group.until_state("floor").await?;
    assert_eq!(group.went().await?, 0);
    let mut server = server(&program, group.server, &folder).await?;
    group.until_went(30, 30).await?;
    group.until_state("ok").await?;

    server.signal(Signal::STOP)?;
    // More than what is left.
    group.accept(60).await?;
    group.until_state("floor").await?;
    assert_eq!(group.went().await?, 30);
    server.signal(Signal::CONT)?;
    group.until_went(QUOTA - WASTED_MAX, QUOTA).await?;
    group.until_state("ok").await?;
    wait_until(PATIENCE, "the server has no more", async || {
        let before = group.refused().await?;
        group.accept(1).await?;
        let after = group.refused().await?;
        Ok(before
            .iter()
            .zip(&after)
            .all(|(before, after)| before < after))
    })
    .await?;
    let went = group.went().await?;
    ensure!(went <= QUOTA, "{went} of {QUOTA}");

    // Other rules are the server's at once.
    group.set("1000/s", "test")?;
    let all = group.users.get();
    group.until_went(all, all).await?;

    // Who shares it is not.
    group.set("1/1h", "other")?;
    for producer in &group.producers {
        wait_until(PATIENCE, "a version is refused", async || {
            let ready = admin::get(&producer.admin, "/readyz").await?;
            ensure!(ready.status == 200, "{ready:?}");
            Ok(ready
                .body
                .contains("the newest is refused: it is shared otherwise"))
        })
        .await?;
    }
    Ok(())
}
