//! Test helper: a limiter process.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    http::{HttpClient, Response},
    programs::{Process, free_address},
};
use tokio::time::{Instant, sleep};

/// Timeout for everything that is immediate on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A running limiter with its own directory.
pub(crate) struct Limiter {
    pub(crate) process: Process,
    pub(crate) dir: TempDir,
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Limiter {
    /// Starts a limiter with these limits and additional flags, which override the default flags.
    pub(crate) async fn start(limits: &str, flags: &[&str]) -> Result<Self> {
        Self::start_as(
            Path::new(env!("CARGO_BIN_EXE_limiter")),
            Vec::new(),
            limits,
            flags,
        )
        .await
    }

    /// Like [`start`](Self::start), with this open-file limit.
    pub(crate) async fn start_with_files(
        files: usize,
        limits: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let program = env!("CARGO_BIN_EXE_limiter").to_owned();
        let shell = vec!["-c".to_owned(), script, program];
        Self::start_as(Path::new("/bin/sh"), shell, limits, flags).await
    }

    async fn start_as(
        program: &Path,
        first: Vec<String>,
        limits: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let dir = TempDir::new()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("limits.toml"), limits)?;
        let (address, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let defaults = [
            "serve".to_owned(),
            format!("--limits={}", path("limits.toml")),
            format!("--state={}", path("state")),
            format!("--listen={address}"),
            format!("--admin={admin}"),
        ];
        let more = flags.iter().map(|flag| (*flag).to_owned());
        let name = |flag: &str| flag.split_once('=').map(|(name, _)| name.to_owned());
        let is_overridden = |flag: &String| {
            let own = name(flag);
            own.is_some() && flags.iter().any(|flag| name(flag) == own)
        };
        let defaults = defaults.into_iter().filter(|flag| !is_overridden(flag));
        let args: Vec<String> = first.into_iter().chain(defaults).chain(more).collect();
        let log = dir.path().join("log");
        let process = Process::start("the limiter", program, &args, &log)?;
        let mut limiter = Self {
            process,
            dir,
            address,
            admin,
        };
        limiter.wait_ready().await?;
        Ok(limiter)
    }

    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, TIMEOUT).await
    }

    /// Starts the limiter again after it has ended.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_ready().await
    }

    /// Shuts the limiter down, and checks its exit code.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(TIMEOUT).await?;
        let log = self.process.last_lines(20);
        ensure!(status.success(), "{status}:\n{log}");
        Ok(())
    }

    pub(crate) async fn client(&self) -> Result<HttpClient> {
        HttpClient::connect(&self.address).await
    }

    /// Path of a file in its directory.
    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Waits until a metric without labels has this value.
    pub(crate) async fn wait_metric(&self, name: &str, value: u64) -> Result<()> {
        wait_until(name, async || Ok(self.metric(name).await? == value)).await
    }

    /// Value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<u64> {
        let samples = testkit::admin::metrics(&self.admin).await?;
        Ok(samples.count(name, &[]))
    }

    /// Body of `/readyz`.
    pub(crate) async fn readiness(&self) -> Result<String> {
        Ok(testkit::admin::get(&self.admin, "/readyz").await?.body)
    }

    /// Waits until `/readyz` contains this text.
    pub(crate) async fn wait_readiness(&self, text: &str) -> Result<()> {
        let is_there = async || Ok(self.readiness().await?.contains(text));
        let waited = wait_until(text, is_there).await;
        waited.with_context(|| self.process.last_lines(20))
    }

    /// Remaining requests of a counter.
    pub(crate) async fn remaining(&self, limit: &str, counter: &str) -> Result<u64> {
        let path = format!("/v1/limits/{limit}/{counter}/delay");
        let response = self.client().await?.get(&path, &[]).await?;
        let field = response.head.split("x-ratelimit-remaining: ").nth(1);
        let field = field
            .and_then(|it| it.split('\r').next())
            .context("no field")?;
        Ok(field.parse()?)
    }
}

/// Waits until a condition holds.
///
/// # Errors
/// If the condition does not hold within [`TIMEOUT`]. The error contains `what`.
pub(crate) async fn wait_until(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await? {
        ensure!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// The JSON body of a response with this status.
#[track_caller]
pub(crate) fn body(response: &Response, status: u16) -> Value {
    assert_eq!(response.status, status, "{}", response.body);
    serde_json::from_str(&response.body).expect("JSON")
}

/// A time in a response, in nanoseconds since 1970.
pub(crate) fn nanos(time: &Value) -> u64 {
    let time: jiff::Timestamp = time.as_str().expect("a string").parse().expect("a time");
    u64::try_from(time.as_nanosecond()).expect("after 1970")
}
