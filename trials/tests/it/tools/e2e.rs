//! Tests of `bench e2e` and `trials soak`, run as a user runs them, at low rates.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::report::{Report, Row};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::programs::BIN_DIR_VARIABLE;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::harness::{TRIALS, bench, bin_dir, wait_until};

/// Deadline for a complete run on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A run of a program in a temporary directory, which contains all its files except databases.
pub(crate) struct Run {
    dir: TempDir,
    child: Child,
}

/// Exit code, report and error output of a run.
pub(crate) struct RunResult {
    code: Option<i32>,
    report: Report,
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
            "exit code {:?}: {report:#?} {errors}",
            self.code
        );
        Ok(())
    }

    /// The rows of a table: their names, and the texts of their measurements by name.
    pub(crate) fn rows(&self, title: &str) -> Vec<(String, BTreeMap<String, String>)> {
        let texts = |row: &Row| {
            let measurements = row.measurements.iter();
            let texts = measurements.map(|it| (it.name.clone(), it.text.clone()));
            (row.name.clone(), texts.collect())
        };
        self.table(title).map(texts).collect()
    }

    /// The sum of a count of the verification over all stores.
    pub(crate) fn verified(&self, name: &str) -> f64 {
        let measurements = self.table("Verification").flat_map(|row| &row.measurements);
        let values = measurements.filter(|it| it.name == name);
        values.filter_map(|it| it.value).sum()
    }

    fn table(&self, title: &str) -> impl Iterator<Item = &Row> {
        let tables = self.report.tables.iter();
        let tables = tables.filter(move |table| table.title == title);
        tables.flat_map(|table| &table.rows)
    }
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
    let report = &result.report;
    let steps = result.rows("Steps");
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
    ensure!(result.verified("stored") > 1_000.0, "{report:#?}");
    ensure!(result.verified("stored") == result.verified("correct"));
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
async fn changed_document_fails_the_run() -> Result<()> {
    let args = ["e2e", "--rates", "200", "--step", "60s"];
    let run = Run::bench(&args).await?;
    let changed = tamper(&run).await;
    run.interrupt()?;
    let result = run.finish().await?;
    let indexes = changed.with_context(|| result.errors.clone())?;
    ensure!(indexes == ["_id_"], "unexpected indexes: {indexes:?}");
    result.expect_exit(1)?;
    let report = &result.report;
    ensure!(result.verified("wrong") == 1.0, "{report:#?}");
    ensure!(result.verified("unexpected") == 1.0, "{report:#?}");
    Ok(())
}

/// Changes one document of a run, adds another one, and returns the index names of their collection.
async fn tamper(run: &Run) -> Result<Vec<String>> {
    let temporary = run.dir.path().join("tmp");
    let found = RefCell::new(None);
    wait_until(RUN_TIMEOUT, "a cookie is stored", async || {
        let Some(port) = mongod_port(&temporary)? else {
            return Ok(false);
        };
        let uri = format!("mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=500");
        let client = Client::with_uri_str(uri).await?;
        // Until it accepts connections, there are no names.
        for name in client.list_database_names().await.unwrap_or_default() {
            let cookies = client.database(&name).collection::<Document>("cookies");
            if name.parse::<u32>().is_ok()
                && let Some(cookie) = cookies.find_one(doc! {}).await?
            {
                found.replace(Some((cookies, cookie)));
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    let (cookies, cookie) = found.into_inner().context("no document was found")?;
    let later = mongodb::bson::DateTime::from_millis(i64::MAX / 2);
    let change = doc! {"$set": {"b": "tampered", "t": later}};
    cookies
        .update_one(doc! {"_id": cookie.get_str("_id")?}, change)
        .await?;
    cookies
        .insert_one(doc! {"_id": "extra", "b": "b", "t": later})
        .await?;
    Ok(cookies.list_index_names().await?)
}

/// The port of the mongod of a run with this temporary directory, if it runs.
fn mongod_port(temporary: &Path) -> Result<Option<u16>> {
    let port = |process: PathBuf| {
        let line = fs::read_to_string(process.join("cmdline")).ok()?;
        let mut words = line.split('\0');
        words.find(|word| *word == "--dbpath")?;
        words.find(|word| *word == "--port")?;
        words.next()?.parse().ok()
    };
    Ok(processes_with(temporary)?.into_iter().find_map(port))
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
    let report = &result.report;
    let failures = report.failures.iter();
    let of_node = failures.filter(|failure| failure.starts_with("node-1 exited"));
    ensure!(of_node.count() == 1, "{report:#?}");
    let steps = result.rows("Steps");
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
    let report = &result.report;
    ensure!(
        report
            .findings
            .iter()
            .any(|it| it.contains(", interrupted;"))
    );
    let steps = result.rows("Steps");
    ensure!(steps.len() == 1 && steps[0].1["sustained"] == "interrupted");
    ensure!(result.verified("stored") > 0.0);
    ensure!(result.verified("stored") == result.verified("correct"));
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
    let events = format!("{:?}", result.rows("Faults"));
    ensure!(
        events.contains("killed") && events.contains("terminated"),
        "{events}"
    );
    ensure!(result.verified("missing") + result.verified("explained") == 0.0);
    ensure!(
        result.verified("stored") > 1_000.0
            && result.verified("stored") == result.verified("correct")
    );
    Ok(())
}
