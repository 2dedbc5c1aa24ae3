//! Tests of `bench e2e` and `trials soak`, run as a user runs them, at low rates.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::{
    programs::BIN_DIR_VARIABLE,
    report::{Report, Row},
};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::{
    harness::{TRIALS, bench, bin_dir, wait_until},
    mongods::shared,
};

/// Deadline for a complete run on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A run of a program in a temporary directory, which contains all its files except databases.
pub(crate) struct Run {
    dir: TempDir,
    child: Child,
}

/// Exit code, JSON report and error output of a run.
pub(crate) struct RunResult {
    code: Option<i32>,
    pub(crate) report: Value,
    errors: String,
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
            .stderr(fs::File::create(dir.path().join("errors"))?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { dir, child })
    }

    fn interrupt(&self) -> Result<()> {
        let id = self.child.id();
        let id = id.and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(kill_process(
            id.context("the program has ended")?,
            Signal::INT,
        )?)
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default()
    }

    /// Waits for the end of the program. No process or temporary file may remain.
    pub(crate) async fn finish(mut self) -> Result<RunResult> {
        let status = timeout(RUN_TIMEOUT, self.child.wait()).await;
        let errors = self.errors();
        let status = status.with_context(|| format!("the run does not end: {errors}"))??;
        let out = fs::read_to_string(self.dir.path().join("out"))?;
        let report = serde_json::from_str(&out).with_context(|| format!("{out:?} {errors}"))?;
        let temporary = self.dir.path().join("tmp");
        ensure!(
            fs::read_dir(&temporary)?.next().is_none(),
            "temporary files remain"
        );
        let remaining = processes_with(&temporary)?;
        ensure!(remaining.is_empty(), "processes remain: {remaining:?}");
        ensure!(self.dir.path().join("report/report.json").is_file());
        Ok(RunResult {
            code: status.code(),
            report,
            errors,
        })
    }
}

impl RunResult {
    /// Checks the exit code.
    #[track_caller]
    pub(crate) fn expect_exit(&self, code: i32) -> Result<()> {
        let Self { report, errors, .. } = self;
        ensure!(
            self.code == Some(code),
            "exit code {:?}: {report:#} {errors}",
            self.code
        );
        Ok(())
    }

    /// The sum of a count of the verification over all stores.
    pub(crate) fn verified(&self, count: &str) -> u64 {
        let verdicts = self.report["verification"]["verdicts"].as_array();
        let counts = verdicts
            .into_iter()
            .flatten()
            .map(|verdict| verdict[count].as_u64());
        counts.map(Option::unwrap_or_default).sum()
    }

    /// The report of `bench e2e`.
    fn e2e(&self) -> Result<Report> {
        Ok(serde_json::from_value(self.report.clone())?)
    }
}

/// Names of the rows of a table, each with the texts of its measurements by name.
fn rows(report: &Report, title: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let tables = report.tables.iter().filter(|table| table.title == title);
    let rows = tables.flat_map(|table| &table.rows);
    let texts = |row: &Row| {
        let measurements = row.measurements.iter();
        let texts = measurements.map(|it| (it.name.clone(), it.text.clone()));
        (row.name.clone(), texts.collect())
    };
    rows.map(texts).collect()
}

/// The sum of a measurement over all stores.
fn verified(report: &Report, name: &str) -> f64 {
    let tables = report.tables.iter();
    let rows = tables.filter(|table| table.title == "Verification");
    let measurements = rows.flat_map(|table| table.rows.iter().flat_map(|row| &row.measurements));
    let values = measurements.filter(|it| it.name == name);
    values.filter_map(|it| it.value).sum()
}

/// Processes with this directory in their environment.
fn processes_with(dir: &Path) -> Result<Vec<PathBuf>> {
    let text = dir.as_os_str().as_encoded_bytes();
    let processes = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
    let has = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.windows(text.len()).any(|part| part == text)
    };
    Ok(processes.filter(has).collect())
}

async fn check_rate_ladder(store: &str) -> Result<()> {
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
    let result = Run::bench(&args).await?.finish().await?;
    result.expect_exit(0)?;
    let report = result.e2e()?;
    let steps = rows(&report, "Steps");
    ensure!(steps.len() == 2);
    for (rate, _) in &steps {
        let value = |name: &str| report.value(&format!("{rate}{name}"));
        let accepted = value(": requests accepted");
        ensure!(accepted > Some(0.0), "{report:#?}");
        ensure!(accepted <= value(": requests offered"), "{report:#?}");
        for node in ["node-1", "node-2"] {
            let received = value(&format!(" {node}: received"));
            ensure!(received == accepted, "{report:#?}");
        }
        for process in ["producer-1", "producer-2", "node-1", "node-2", "generator"] {
            let memory = value(&format!(" {process}: peak"));
            ensure!(memory > Some(0.0), "{report:#?}");
        }
    }
    // 50 users of 20 DSPs: most of the 1,000 pairs are drawn for each node.
    ensure!(verified(&report, "stored") > 1_000.0, "{report:#?}");
    ensure!(verified(&report, "stored") == verified(&report, "correct"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_ladder_into_mongodb_completes_and_every_store_is_verified() -> Result<()> {
    check_rate_ladder("mongodb").await
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_ladder_into_embedded_stores_completes_and_every_store_is_verified() -> Result<()> {
    check_rate_ladder("embedded").await
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_document_fails_the_run_and_its_databases_are_dropped() -> Result<()> {
    let mongod = shared::start().await?;
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
        "--consumer-arg=--expiry=index",
    ];
    let run = Run::bench(&args).await?;
    let changed = tamper(&client).await;
    run.interrupt()?;
    let result = run.finish().await?;
    let indexes = changed.with_context(|| result.errors.clone())?;
    ensure!(
        indexes == ["_id_", "t_1"],
        "there is no index on t: {indexes:?}"
    );
    let report = result.e2e()?;
    ensure!(report.title.contains("--expiry index"), "{}", report.title);
    result.expect_exit(1)?;
    ensure!(verified(&report, "wrong") == 1.0, "{report:#?}");
    ensure!(verified(&report, "unexpected") == 1.0, "{report:#?}");
    let remaining = client.list_database_names().await?;
    ensure!(
        !remaining.iter().any(|name| name.starts_with("bench-e2e-")),
        "{remaining:?}"
    );
    Ok(())
}

/// Changes one document of a run, adds another one, and returns the index names of their collection.
async fn tamper(client: &Client) -> Result<Vec<String>> {
    let mut victim = None;
    wait_until(RUN_TIMEOUT, "a cookie is stored", async || {
        for name in client.list_database_names().await? {
            let is_dsp = name
                .rsplit('-')
                .next()
                .is_some_and(|dsp| dsp.parse::<u32>().is_ok());
            let cookies = client.database(&name).collection::<Document>("cookies");
            if name.starts_with("bench-e2e-")
                && is_dsp
                && cookies.find_one(doc! {}).await?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    for name in client.list_database_names().await? {
        let cookies = client.database(&name).collection::<Document>("cookies");
        if name.starts_with("bench-e2e-") && !name.ends_with("cookiesync") {
            victim = cookies
                .find_one(doc! {})
                .await?
                .map(|found| (cookies, found));
        }
        if victim.is_some() {
            break;
        }
    }
    let (cookies, found) = victim.context("no document was found")?;
    let later = mongodb::bson::DateTime::from_millis(i64::MAX / 2);
    let change = doc! {"$set": {"b": "tampered", "t": later}};
    cookies
        .update_one(doc! {"_id": found.get_str("_id")?}, change)
        .await?;
    cookies
        .insert_one(doc! {"_id": "extra", "b": "b", "t": later})
        .await?;
    Ok(cookies.list_index_names().await?)
}

/// Ids of the processes of a run whose command line contains `text`.
fn ids_with(dir: &Path, text: &str) -> Result<Vec<Pid>> {
    let has = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(text)
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
    wait_until(RUN_TIMEOUT, "the first step begins", async || {
        Ok(run.errors().contains("step 1 of 2"))
    })
    .await?;
    let temporary = run.dir.path().join("tmp");
    let victims = ids_with(&temporary, "--name node-1")?;
    ensure!(victims.len() == 1, "{victims:?}");
    kill_process(victims[0], Signal::KILL)?;
    let result = run.finish().await?;
    result.expect_exit(1)?;
    let report = result.e2e()?;
    let failures = report.failures.iter();
    let of_node = failures.filter(|failure| failure.starts_with("node-1 exited"));
    ensure!(of_node.count() == 1, "{report:#?}");
    let steps = rows(&report, "Steps");
    ensure!(steps.len() == 1, "{report:#?}");
    ensure!(steps[0].1["sustained"] == "process exited", "{steps:?}");
    ensure!(!report.findings.iter().any(|it| it.contains("interrupted")));
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
    wait_until(RUN_TIMEOUT, "the first step begins", async || {
        Ok(run.errors().contains("step 1 of 3"))
    })
    .await?;
    run.interrupt()?;
    let result = run.finish().await?;
    result.expect_exit(0)?;
    let report = result.e2e()?;
    ensure!(
        report
            .findings
            .iter()
            .any(|it| it.contains(", interrupted;"))
    );
    let steps = rows(&report, "Steps");
    ensure!(steps.len() == 1 && steps[0].1["sustained"] == "interrupted");
    ensure!(verified(&report, "stored") > 0.0);
    ensure!(verified(&report, "stored") == verified(&report, "correct"));
    Ok(())
}

/// With this seed, both kinds of faults occur.
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
    let result = Run::trials(&args).await?.finish().await?;
    result.expect_exit(0)?;
    let events = result.report["events"].to_string();
    ensure!(
        events.contains("killed") && events.contains("terminated"),
        "{events}"
    );
    ensure!(result.verified("missing") + result.verified("explained") == 0);
    ensure!(
        result.verified("stored") > 1_000
            && result.verified("stored") == result.verified("correct")
    );
    Ok(())
}
