//! Starts the processes of a test in a temporary directory, and stops them when the test ends.

mod consumer;
mod cookies;
mod ledger;
mod producer;

use std::{
    collections::BTreeSet,
    fs,
    future::Future,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
pub(crate) use testkit::producer::Addresses;
use testkit::{
    cpu,
    programs::{Process, find_with},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

pub(crate) use self::{
    consumer::{Consumer, embedded, settled},
    cookies::{StoreContents, expected_contents, numbered_contents, numbered_cookie, sync_request},
    producer::{Producer, Wrapper, accept_all},
};

/// Deadline for a process to become ready, or for a cookie to arrive, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Deadline for a drain. A process that abandons its drain exits after 10 s with another code.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Deadline for [`reserve_machine`], long enough for all other tests to reserve the machine first.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// Features of the programs under test.
const FEATURES: &str = "producer/archive,consumer/archive";

/// Paths of the programs under test.
pub(crate) struct Programs {
    pub(crate) producer: PathBuf,
    pub(crate) consumer: PathBuf,
    pub(crate) cookiesync: PathBuf,
}

/// The programs under test and `bench`, found or built once per test process.
async fn programs_with_bench() -> Result<&'static (Programs, PathBuf)> {
    static PROGRAMS: OnceLock<Result<(Programs, PathBuf)>> = OnceLock::new();
    tokio::task::spawn_blocking(|| {
        let found = PROGRAMS.get_or_init(|| {
            let names = ["producer", "consumer", "cookiesync", "bench"];
            let [producer, consumer, cookiesync, bench] = find_with(names, FEATURES)?;
            let programs = Programs {
                producer,
                consumer,
                cookiesync,
            };
            Ok((programs, bench))
        });
        found.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))
    })
    .await?
}

/// The programs under test.
pub(crate) async fn programs() -> Result<&'static Programs> {
    programs_with_bench().await.map(|(programs, _)| programs)
}

/// The `trials` program, which cargo builds with this package.
pub(crate) const TRIALS: &str = env!("CARGO_BIN_EXE_trials");

/// The `bench` program.
pub(crate) async fn bench() -> Result<&'static Path> {
    programs_with_bench().await.map(|(_, bench)| &**bench)
}

/// The directory of the programs, the value of [`BIN_DIR_VARIABLE`](testkit::programs::BIN_DIR_VARIABLE).
pub(crate) async fn bin_dir() -> Result<&'static Path> {
    let dir = programs().await?.producer.parent();
    dir.context("the producer's path has no parent")
}

/// Reserves the machine for a test that loads all cores or measures a rate, until the permit is dropped.
///
/// Two loads would distort each other's measurements. Other tests mostly wait and may run concurrently.
pub(crate) async fn reserve_machine() -> SemaphorePermit<'static> {
    static MACHINE: Semaphore = Semaphore::const_new(1);
    let waited = timeout(MACHINE_TIMEOUT, MACHINE.acquire()).await;
    let permit = waited.expect("no test reserves the machine twice");
    permit.expect("the semaphore is never closed")
}

/// Waits until `condition` is true.
///
/// # Errors
/// If `condition` is false until `timeout`, naming `what`, or if `condition` fails.
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
        ensure!(Instant::now() < deadline, "{what}: not within {timeout:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until the log of a process contains `part`. Log lines may be written after their effect is visible.
pub(crate) async fn wait_logged(process: &Process, part: &str) -> Result<()> {
    let logged = wait_until(TIMEOUT, part, async || {
        Ok(process.last_lines(100).contains(part))
    });
    logged.await.with_context(|| process.last_lines(100))
}

/// Waits for `future`, up to [`TIMEOUT`].
///
/// # Errors
/// On a timeout, naming `what`.
pub(crate) async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    match timeout(TIMEOUT, future).await {
        Ok(value) => Ok(value),
        Err(_) => bail!("{what}: not within {TIMEOUT:?}"),
    }
}

/// Checks that a process ended with `code`.
///
/// # Errors
/// If it ended otherwise; with the last log lines.
pub(crate) fn expect_exit(process: &Process, status: ExitStatus, code: i32) -> Result<()> {
    ensure!(
        status.code() == Some(code),
        "{} ended with {status} instead of code {code}; last log lines:\n{}",
        process.name(),
        process.last_lines(20)
    );
    Ok(())
}

/// Exit code and output of a program that exited without a signal from the test.
pub(crate) struct ProgramOutput {
    pub(crate) code: Option<i32>,
    /// Standard error, followed by standard output.
    pub(crate) text: String,
}

/// Runs a program to completion.
///
/// # Errors
/// If it runs longer than [`TIMEOUT`].
pub(crate) async fn run_to_end(
    program: &Path,
    args: &[&str],
    environment: &[(&str, &str)],
) -> Result<ProgramOutput> {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let what = format!("{} {args:?} ends", program.display());
    let output = within_timeout(&what, command.output()).await??;
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    Ok(ProgramOutput {
        code: output.status.code(),
        text,
    })
}

/// Ids of the child processes of `parent`.
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
