//! `cargo demo limits` as a user runs it, only shorter: what it tells at its end adds up, however it ends.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    producer::Addresses,
    programs::{BIN_DIR_VARIABLE, find, free_address},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::harness::{TIMEOUT, bin_dir, within_timeout};

/// For a whole demonstration, on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

const SECONDS: &str = "8";

/// A demonstration that runs.
struct Demo {
    _dir: TempDir,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Demo {
    async fn start(args: &[&str]) -> Result<Self> {
        let [program] = tokio::task::spawn_blocking(|| find(["demo"])).await??;
        let dir = TempDir::new()?;
        let Addresses { http, grpc, admin } = Addresses::free()?;
        let mut child = Command::new(program)
            .args(args)
            .args(["--http", &http, "--grpc", &grpc])
            .args(["--producer-admin", &admin])
            .args(["--consumer-admin", &free_address()?.to_string()])
            .arg("--dir")
            .arg(dir.path())
            .env(BIN_DIR_VARIABLE, bin_dir().await?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("it has no output")?;
        Ok(Self {
            _dir: dir,
            child,
            lines: BufReader::new(stdout).lines(),
            said: Vec::new(),
        })
    }

    /// Reads until cookies wait.
    async fn wait_waiting(&mut self) -> Result<()> {
        loop {
            let line = within_timeout("a line", self.lines.next_line()).await??;
            let line = line.with_context(|| format!("nothing waits: {:#?}", self.said))?;
            let is_it = has(&line, 3);
            self.said.push(line);
            if is_it {
                return Ok(());
            }
        }
    }

    fn interrupt(&self) -> Result<()> {
        let id = self.child.id().context("it has ended")?;
        let id = Pid::from_raw(id.try_into()?).context("an id is not 0")?;
        kill_process(id, Signal::INT).context("cannot signal it")
    }

    /// Waits for its end, which must be an orderly one; everything it said.
    async fn end(mut self) -> Result<Vec<String>> {
        let reading = async {
            while let Some(line) = self.lines.next_line().await? {
                self.said.push(line);
            }
            anyhow::Ok(self.child.wait().await?)
        };
        let status = timeout(RUN_TIMEOUT, reading).await;
        let status = status.with_context(|| format!("it goes on and on: {:#?}", self.said))??;
        ensure!(status.success(), "{status}: {:#?}", self.said);
        Ok(self.said)
    }
}

/// Whether this is a line about a second, whose figure in this column is not 0.
fn has(line: &str, column: usize) -> bool {
    let figures = line.split("  ").map(str::trim);
    let figures: Vec<_> = figures.filter(|figure| !figure.is_empty()).collect();
    let is_about_a_second = figures.len() == 7 && figures[0].ends_with(" s");
    is_about_a_second && !figures[column].starts_with('0')
}

/// A number of the ledger, which stands at the end of a line with this word.
fn count(said: &[String], word: &str) -> Result<u64> {
    let lines = said.iter();
    let mut found =
        lines.filter_map(|line| line.trim_start_matches([' ', '=', '+']).strip_prefix(word));
    let number = found.next().with_context(|| format!("{word}: {said:#?}"))?;
    Ok(number.replace(' ', "").parse()?)
}

/// The ledger as it was told: how many were accepted, how many released.
fn check_ledger(said: &[String]) -> Result<(u64, u64)> {
    let from = said
        .iter()
        .position(|line| line.starts_with("the ledger of the limit"));
    let ledger = &said[from.with_context(|| format!("no ledger: {said:#?}"))?..];
    let fates = [
        "released",
        "superseded",
        "dropped",
        "spooled",
        "queued",
        "dead",
        "parked",
    ];
    let mut sum = 0;
    for fate in fates {
        sum += count(ledger, fate)?;
    }
    let accepted = count(ledger, "accepted")?;
    ensure!(accepted == sum, "{accepted} and {sum}: {ledger:#?}");
    Ok((accepted, count(ledger, "released")?))
}

#[tokio::test]
async fn limits_demo_ends_with_a_balanced_ledger() -> Result<()> {
    let demo = Demo::start(&["limits", "--seconds", SECONDS]).await?;
    let said = demo.end().await?;
    let (accepted, released) = check_ledger(&said)?;
    let sent = 600 * SECONDS.parse::<u64>()?;
    // A machine that is busy may not send all of it in time.
    ensure!(accepted <= sent && released < accepted, "{said:#?}");
    let changed = said.iter().position(|line| line.ends_with("says 450/s"));
    let in_force = said
        .iter()
        .position(|line| line == "version 2 of the limits is in force");
    ensure!(changed.is_some() && changed < in_force, "{said:#?}");
    for (column, what) in [
        (1, "in"),
        (2, "out"),
        (3, "queued"),
        (5, "dead"),
        (6, "requeued"),
    ] {
        let any = said.iter().any(|line| has(line, column));
        ensure!(any, "no {what}: {said:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn interrupted_limits_demo_prints_its_ledger() -> Result<()> {
    let mut demo = Demo::start(&["limits"]).await?;
    demo.wait_waiting().await?;
    demo.interrupt()?;
    let said = demo.end().await?;
    let (accepted, released) = check_ledger(&said)?;
    ensure!(released < accepted, "{said:#?}");
    // What waited did not go before its time.
    let is_kept = said
        .iter()
        .any(|line| line.starts_with("cookies that still waited are kept in"));
    ensure!(is_kept, "{said:#?}");
    Ok(())
}

#[tokio::test]
async fn invalid_demo_arguments_are_rejected_with_a_reason() -> Result<()> {
    let [program] = tokio::task::spawn_blocking(|| find(["demo"])).await??;
    for (args, said) in [
        (&["limit"][..], "unrecognized subcommand 'limit'"),
        (&["limits", "--seconds", "5"], "5 is not in 6..=3600"),
        (&["limits", "--load", "5"], "unexpected argument '--load'"),
        (&["--load", "5", "limits"], "cannot be used with"),
    ] {
        let output = Command::new(&program)
            .args(args)
            .stdin(Stdio::null())
            .output();
        let output = timeout(TIMEOUT, output).await??;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && words.contains(said),
            "{args:?}: {words}"
        );
    }
    Ok(())
}
