//! `bench e2e` and `trials soak` as a user runs them, at tiny rates.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::{mongod::Mongod, programs::BIN_DIR_VARIABLE};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    sync::SemaphorePermit,
    time::timeout,
};

use crate::harness::{TRIALS, bench, bin_dir, reserve_machine, wait_until};

/// For a whole run, on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A run of the program in a directory of its own: what it makes is in there, but for the databases.
pub(crate) struct Run {
    dir: TempDir,
    child: Child,
    _machine: SemaphorePermit<'static>,
}

/// How a run ended.
pub(crate) struct Ended {
    code: Option<i32>,
    pub(crate) outcome: Value,
    words: String,
}

impl Run {
    /// Runs `bench` with these arguments.
    async fn bench(args: &[&str]) -> Result<Self> {
        Self::start(bench().await?, args).await
    }

    /// Runs `trials` with these arguments.
    pub(crate) async fn trials(args: &[&str]) -> Result<Self> {
        Self::start(Path::new(TRIALS), args).await
    }

    async fn start(program: &Path, args: &[&str]) -> Result<Self> {
        let machine = reserve_machine().await;
        let dir = tempfile::tempdir()?;
        let temporary = dir.path().join("tmp");
        fs::create_dir(&temporary)?;
        let child = Command::new(program)
            .args(args)
            .args(["--json", "--report"])
            .arg(dir.path().join("report"))
            .env("TMPDIR", &temporary)
            .env(BIN_DIR_VARIABLE, bin_dir().await?)
            .stdin(Stdio::null())
            .stdout(fs::File::create(dir.path().join("out"))?)
            .stderr(fs::File::create(dir.path().join("words"))?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            dir,
            child,
            _machine: machine,
        })
    }

    fn interrupt(&self) -> Result<()> {
        let id = self.child.id();
        let id = id.and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(kill_process(id.context("it runs")?, Signal::INT)?)
    }

    fn words(&self) -> String {
        fs::read_to_string(self.dir.path().join("words")).unwrap_or_default()
    }

    /// Waits for its end; nothing it started may be left.
    pub(crate) async fn end(mut self) -> Result<Ended> {
        let status = timeout(RUN_TIMEOUT, self.child.wait()).await;
        let words = self.words();
        let status = status.with_context(|| format!("it goes on and on: {words}"))??;
        let out = fs::read_to_string(self.dir.path().join("out"))?;
        let outcome = serde_json::from_str(&out).with_context(|| format!("{out:?} {words}"))?;
        let temporary = self.dir.path().join("tmp");
        ensure!(fs::read_dir(&temporary)?.next().is_none(), "files are left");
        let left = processes_with(&temporary)?;
        ensure!(left.is_empty(), "processes are left: {left:?}");
        ensure!(self.dir.path().join("report/report.json").is_file());
        Ok(Ended {
            code: status.code(),
            outcome,
            words,
        })
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> Result<()> {
        let Self { outcome, words, .. } = self;
        ensure!(
            self.code == Some(code),
            "{:?}: {outcome:#} {words}",
            self.code
        );
        Ok(())
    }

    /// The sum of this count over all nodes' stores.
    pub(crate) fn verified(&self, count: &str) -> u64 {
        let verdicts = self.outcome["verification"]["verdicts"].as_array();
        let counts = verdicts
            .into_iter()
            .flatten()
            .map(|verdict| verdict[count].as_u64());
        counts.map(Option::unwrap_or_default).sum()
    }
}

/// Processes that were started with this directory in their environment.
fn processes_with(dir: &Path) -> Result<Vec<PathBuf>> {
    let wanted = dir.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
    let has = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|part| part == wanted)
    };
    Ok(processes.filter(has).collect())
}

async fn climbs_and_verifies(store: &str) -> Result<()> {
    let args = [
        "e2e",
        "--rates",
        "200,400",
        "--step",
        "3s",
        "--consumers",
        "2",
        "--producers",
        "2",
        "--store",
        store,
        "--users",
        "50",
    ];
    let ended = Run::bench(&args).await?.end().await?;
    ended.expect(0)?;
    let steps = ended.outcome["steps"].as_array().context("steps")?;
    ensure!(steps.len() == 2);
    for step in steps {
        let accepted = step["accepted"].as_u64();
        ensure!(
            accepted > Some(0) && accepted == step["sent"].as_u64(),
            "{step:#}"
        );
        for node in step["nodes"].as_array().context("nodes")? {
            ensure!(node["received"].as_u64() == accepted, "{step:#}");
        }
        let roles = ["producer", "consumer", "generator"];
        for role in roles {
            let processes = step["processes"].as_array().context("processes")?;
            let of = processes.iter().filter(|used| used["role"] == role);
            let memory = of.map(|used| used["peak_bytes"].as_u64());
            ensure!(
                memory.clone().count() > 0 && memory.min() > Some(Some(0)),
                "{step:#}"
            );
        }
    }
    // Fifty users of twenty DSPs; few pairs are left out by so many draws.
    ensure!(ended.verified("stored") > 1_000, "{:#}", ended.outcome);
    ensure!(ended.verified("stored") == ended.verified("right"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_ladder_into_mongodb_completes_and_every_store_is_verified() -> Result<()> {
    climbs_and_verifies("mongodb").await
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_ladder_into_embedded_stores_completes_and_every_store_is_verified() -> Result<()> {
    climbs_and_verifies("embedded").await
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_document_fails_the_run_and_its_databases_are_dropped() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mongod = Mongod::start(dir.path()).await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let uri = mongod.uri();
    let args = [
        "e2e",
        "--rates",
        "200",
        "--step",
        "60s",
        "--store",
        &uri,
        "--mongodb-prefix",
        "it-",
        "--consumer-arg=--expiry=index",
    ];
    let run = Run::bench(&args).await?;
    let changed = tamper(&client).await;
    run.interrupt()?;
    let ended = run.end().await?;
    let indexes = changed.with_context(|| ended.words.clone())?;
    ensure!(
        indexes == ["_id_", "t_1"],
        "there is no index on t: {indexes:?}"
    );
    ensure!(ended.outcome["expiry"] == "index", "{:#}", ended.outcome);
    ended.expect(1)?;
    ensure!(ended.verified("wrong") == 1, "{:#}", ended.outcome);
    ensure!(ended.verified("extra") == 1, "{:#}", ended.outcome);
    let left = client.list_database_names().await?;
    ensure!(!left.iter().any(|name| name.starts_with("it-")), "{left:?}");
    Ok(())
}

/// Gives one document of a run another value, and adds one; returns the indexes of their collection.
async fn tamper(client: &Client) -> Result<Vec<String>> {
    let mut victim = None;
    wait_until(RUN_TIMEOUT, "something is stored", async || {
        for name in client.list_database_names().await? {
            let is_dsp = name
                .rsplit('-')
                .next()
                .is_some_and(|dsp| dsp.parse::<u32>().is_ok());
            let cookies = client.database(&name).collection::<Document>("cookies");
            if name.starts_with("it-") && is_dsp && cookies.find_one(doc! {}).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    for name in client.list_database_names().await? {
        let cookies = client.database(&name).collection::<Document>("cookies");
        if name.starts_with("it-") && !name.ends_with("cookiesync") {
            victim = cookies
                .find_one(doc! {})
                .await?
                .map(|found| (cookies, found));
        }
        if victim.is_some() {
            break;
        }
    }
    let (cookies, found) = victim.context("a document")?;
    let later = mongodb::bson::DateTime::from_millis(i64::MAX / 2);
    let change = doc! {"$set": {"b": "tampered", "t": later}};
    cookies
        .update_one(doc! {"_id": found.get_str("_id")?}, change)
        .await?;
    cookies
        .insert_one(doc! {"_id": "nobody", "b": "b", "t": later})
        .await?;
    Ok(cookies.list_index_names().await?)
}

/// The ids of the processes of this run with these words in their arguments.
fn ids_with(dir: &Path, words: &str) -> Result<Vec<Pid>> {
    let has = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(words)
    };
    let id = |process: PathBuf| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?);
    let processes = processes_with(dir)?.into_iter();
    Ok(processes.filter(has).filter_map(id).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn unexpected_exit_of_a_process_is_reported_with_the_measurements() -> Result<()> {
    let args = [
        "e2e",
        "--rates",
        "200,300",
        "--step",
        "60s",
        "--consumers",
        "2",
        "--store",
        "embedded",
    ];
    let run = Run::bench(&args).await?;
    wait_until(RUN_TIMEOUT, "the first step has begun", async || {
        Ok(run.words().contains("step 1 of 2"))
    })
    .await?;
    let temporary = run.dir.path().join("tmp");
    let victims = ids_with(&temporary, "--name node-1")?;
    ensure!(victims.len() == 1, "{victims:?}");
    kill_process(victims[0], Signal::KILL)?;
    let ended = run.end().await?;
    ended.expect(1)?;
    let outcome = &ended.outcome;
    let faults = outcome["faults"].as_array().context("faults")?;
    let of_node = faults.iter().filter(|fault| {
        fault
            .as_str()
            .is_some_and(|it| it.starts_with("node-1 exited"))
    });
    ensure!(of_node.count() == 1, "{outcome:#}");
    let steps = outcome["steps"].as_array().context("steps")?;
    ensure!(steps.len() == 1, "{outcome:#}");
    ensure!(steps[0]["is_sustained"] == false && steps[0]["cut"] == "ended");
    ensure!(outcome["interrupted"] == false);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_run_stops_all_processes_verifies_and_reports() -> Result<()> {
    let args = [
        "e2e",
        "--rates",
        "200,200,200",
        "--step",
        "60s",
        "--consumers",
        "2",
    ];
    let run = Run::bench(&args).await?;
    wait_until(RUN_TIMEOUT, "the first step has begun", async || {
        Ok(run.words().contains("step 1 of 3"))
    })
    .await?;
    run.interrupt()?;
    let ended = run.end().await?;
    ended.expect(0)?;
    ensure!(ended.outcome["interrupted"] == true);
    let steps = ended.outcome["steps"].as_array().context("steps")?;
    ensure!(steps.len() == 1 && steps[0]["cut"] == "interrupted");
    ensure!(steps[0]["is_sustained"] == false);
    ensure!(ended.verified("stored") > 0 && ended.verified("stored") == ended.verified("right"));
    Ok(())
}

/// The seed is one with which both kinds strike.
#[tokio::test(flavor = "multi_thread")]
async fn soak_with_a_killed_consumer_and_a_restarted_producer_loses_nothing() -> Result<()> {
    let args = [
        "soak",
        "--for",
        "20s",
        "-l",
        "400",
        "--fault=kill-consumer=5s",
        "--fault=restart-producer=12s",
        "--consumers",
        "2",
        "--producers",
        "2",
        "--store",
        "embedded",
        "--seed",
        "9",
    ];
    let ended = Run::trials(&args).await?.end().await?;
    ended.expect(0)?;
    let events = ended.outcome["events"].to_string();
    ensure!(
        events.contains("killed") && events.contains("told to end"),
        "{events}"
    );
    ensure!(ended.verified("missing") + ended.verified("explained") == 0);
    ensure!(
        ended.verified("stored") > 1_000 && ended.verified("stored") == ended.verified("right")
    );
    Ok(())
}
