//! A limiter that is started, asked and ended.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use launcher::{
    http::{HttpClient, Response},
    programs::{Process, free_address},
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// For whatever takes no time on a machine that is not busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A limiter, its directory, and where it is.
pub(crate) struct Limiter {
    pub(crate) process: Process,
    pub(crate) dir: TempDir,
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Limiter {
    /// Starts one with these limits, and more flags.
    pub(crate) async fn start(limits: &str, flags: &[&str]) -> Result<Self> {
        let dir = TempDir::new()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::write(path("limits.toml"), limits)?;
        let (address, admin) = (free_address()?.to_string(), free_address()?.to_string());
        let own = [
            "serve".to_owned(),
            format!("--limits={}", path("limits.toml")),
            format!("--state={}", path("state")),
            format!("--listen={address}"),
            format!("--admin={admin}"),
        ];
        let more = flags.iter().map(|flag| (*flag).to_owned());
        let is_given = |own: &String| {
            let name = own.split_once('=').map(|(name, _)| name);
            flags
                .iter()
                .any(|flag| flag.split_once('=').map(|(it, _)| it) == name)
        };
        let own = own
            .into_iter()
            .filter(|own| !own.contains('=') || !is_given(own));
        let args: Vec<String> = own.chain(more).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_limiter"));
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

    /// Starts it again after its end.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_ready().await
    }

    /// Ends it in an orderly way.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(TIMEOUT).await?;
        let words = self.process.last_lines(20);
        ensure!(status.success(), "{status}:\n{words}");
        Ok(())
    }

    pub(crate) async fn client(&self) -> Result<HttpClient> {
        HttpClient::connect(&self.address).await
    }

    /// A file of its directory.
    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Waits until `/metrics` has this value of a figure without labels.
    pub(crate) async fn wait_metric(&self, name: &str, value: u64) -> Result<()> {
        while self.metric(name).await? != value {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The value of a figure without labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<u64> {
        let samples = launcher::admin::metrics(&self.admin).await?;
        Ok(samples.count(name, &[]))
    }

    /// What `/readyz` says.
    pub(crate) async fn readiness(&self) -> Result<String> {
        Ok(launcher::admin::get(&self.admin, "/readyz").await?.body)
    }

    /// Waits until `/readyz` says so.
    pub(crate) async fn wait_said(&self, words: &str) -> Result<()> {
        while !self.readiness().await?.contains(words) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// How many requests may still go of a counter.
    pub(crate) async fn remaining(&self, limit: &str, counter: &str) -> Result<u64> {
        let path = format!("/v1/limits/{limit}/{counter}/delay");
        let answer = self.client().await?.get(&path, &[]).await?;
        let field = answer.head.split("x-ratelimit-remaining: ").nth(1);
        let field = field
            .and_then(|it| it.split('\r').next())
            .context("no field")?;
        Ok(field.parse()?)
    }
}

/// The JSON of an answer with this status.
#[track_caller]
pub(crate) fn body(answer: &Response, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

/// A moment of an answer, in nanoseconds since 1970.
pub(crate) fn nanos(moment: &Value) -> u64 {
    let moment: jiff::Timestamp = moment.as_str().expect("a text").parse().expect("a time");
    u64::try_from(moment.as_nanosecond()).expect("after 1970")
}
