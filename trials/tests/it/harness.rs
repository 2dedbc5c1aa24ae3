//! Starts what a test needs, in a directory of its own, and ends it with the test.

mod consumer;
mod cookies;
mod ledger;
mod producer;

use std::{
    collections::BTreeSet,
    fs,
    future::Future,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
pub(crate) use bench::producer::Addresses;
use bench::{
    cpu,
    programs::{Process, Programs},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

pub(crate) use self::{
    consumer::{Consumer, embedded, settled},
    cookies::{Known, newest, numbered, request},
    producer::{Producer, Wrap, accept_all},
};

/// How long a process may take to become ready, and a cookie to arrive, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a process may take to drain and to end: one that gives its drain up does so after 10 s, with another exit code.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long all tests before it may hold the machine.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// The programs, found or built once for all tests of this process.
pub(crate) async fn programs() -> Result<&'static Programs> {
    static PROGRAMS: OnceLock<Result<Programs>> = OnceLock::new();
    tokio::task::spawn_blocking(|| {
        let found = PROGRAMS.get_or_init(Programs::find_with_bench);
        found.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))
    })
    .await?
}

/// The `trials` program: part of this package, so that cargo has built it.
pub(crate) const TRIALS: &str = env!("CARGO_BIN_EXE_trials");

/// The `bench` program.
pub(crate) async fn bench() -> Result<&'static Path> {
    let bench = programs().await?.bench.as_deref();
    bench.context("it was asked for")
}

/// The directory with the programs, for those that start others: as [`BIN_DIR_VARIABLE`](bench::programs::BIN_DIR_VARIABLE).
pub(crate) async fn bin_dir() -> Result<&'static Path> {
    let dir = programs().await?.producer.parent();
    dir.context("a program lies in a directory")
}

/// One at a time of the tests that load the machine: hold it meanwhile. Most tests wait, so several run side by side; what loads both
/// cores would then measure, and be late for, others of its kind.
pub(crate) async fn machine() -> SemaphorePermit<'static> {
    static MACHINE: Semaphore = Semaphore::const_new(1);
    let waited = timeout(MACHINE_TIMEOUT, MACHINE.acquire()).await;
    let held = waited.expect("who holds the machine does not ask for it again");
    held.expect("it is never closed")
}

/// Waits until `condition` is true.
///
/// # Errors
/// When it is not after `timeout`, saying `what` did not happen; or when `condition` fails.
pub(crate) async fn wait_until<F>(
    timeout: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let deadline = Instant::now() + timeout;
    while !condition().await.with_context(|| what.to_owned())? {
        ensure!(Instant::now() < deadline, "{what}: not after {timeout:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until the log of a process has `part`: lines are written beside what they tell of.
pub(crate) async fn wait_said(process: &Process, part: &str) -> Result<()> {
    let said = wait_until(TIMEOUT, part, async || {
        Ok(process.last_lines(100).contains(part))
    });
    said.await.with_context(|| process.last_lines(100))
}

/// Waits for `future`, but not forever.
///
/// # Errors
/// When it takes longer than [`TIMEOUT`], saying `what` did not happen.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    match timeout(TIMEOUT, future).await {
        Ok(value) => Ok(value),
        Err(_) => bail!("{what}: not after {TIMEOUT:?}"),
    }
}

/// Fails unless a process ended with `code`, showing its last words.
///
/// # Errors
/// See above.
pub(crate) fn expect_exit(process: &Process, status: ExitStatus, code: i32) -> Result<()> {
    ensure!(
        status.code() == Some(code),
        "{} ended ({status}) instead of with {code}; its last lines:\n{}",
        process.name(),
        process.last_lines(20)
    );
    Ok(())
}

/// How a program that is expected to end by itself did so.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// What it wrote to standard error and output.
    pub(crate) words: String,
}

/// Runs a program to its end.
///
/// # Errors
/// When it runs longer than [`TIMEOUT`].
pub(crate) async fn run_to_end(
    program: &Path,
    args: &[&str],
    environment: &[(&str, &str)],
) -> Result<Ended> {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let what = format!("{} {args:?} ends", program.display());
    let output = in_time(&what, command.output()).await??;
    let mut words = String::from_utf8_lossy(&output.stderr).into_owned();
    words.push_str(&String::from_utf8_lossy(&output.stdout));
    Ok(Ended {
        code: output.status.code(),
        words,
    })
}

/// The processes that `parent` has started and not waited for.
pub(crate) fn children(parent: u32) -> Result<BTreeSet<u32>> {
    let mut children = BTreeSet::new();
    for process in fs::read_dir("/proc")? {
        let name = process?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if cpu::stat(id).is_some_and(|stat| u32::try_from(stat.ppid) == Ok(parent)) {
            children.insert(id);
        }
    }
    Ok(children)
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}
