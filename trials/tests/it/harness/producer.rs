//! A producer process for tests, and the load on it.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use bench::{load, traffic::Traffic};
use tempfile::TempDir;
use testkit::{
    admin,
    http::HttpClient,
    producer::{self, Addresses, Launch},
    programs::{Process, flag_value},
    scrape::{Samples, names},
};
use tokio_util::sync::CancellationToken;

use super::{TIMEOUT, ledger::FinalLedgerCheck, numbered_cookie, owned, programs, sync_request};

/// Maps a program and its arguments to the command that starts it. The command must keep its process id (`exec`).
pub(crate) type Wrapper<'a> = &'a dyn Fn(&Path, &[String]) -> (PathBuf, Vec<String>);

/// A producer process on free ports.
pub(crate) struct Producer {
    /// Dropped before the process.
    _ledger: FinalLedgerCheck,
    pub(crate) process: Process,
    pub(crate) http: String,
    /// URL of the gRPC port.
    pub(crate) grpc: String,
    pub(crate) admin: String,
    _state: TempDir,
}

impl Producer {
    /// Starts a producer with `flags`, on free ports and with its log in `dir`, and waits until it is ready.
    pub(crate) async fn start(dir: &TempDir, flags: &[&str]) -> Result<Self> {
        Self::start_at(dir, &Addresses::free()?, flags).await
    }

    /// Like [`start`](Self::start), at the given addresses.
    pub(crate) async fn start_at(
        dir: &TempDir,
        addresses: &Addresses,
        flags: &[&str],
    ) -> Result<Self> {
        let program = &programs().await?.producer;
        let state = TempDir::new_in("/dev/shm")?;
        let launch = launch(program, dir, addresses, flags, &state);
        let mut producer = Self::from_launched(launch.start()?, state);
        producer.wait_ready().await?;
        Ok(producer)
    }

    /// Like [`start_at`](Self::start_at), through a wrapper command.
    pub(crate) async fn start_wrapped(
        dir: &TempDir,
        addresses: &Addresses,
        flags: &[&str],
        wrap: Wrapper<'_>,
    ) -> Result<Self> {
        let program = &programs().await?.producer;
        let state = TempDir::new_in("/dev/shm")?;
        let launch = launch(program, dir, addresses, flags, &state);
        let mut producer = Self::from_launched(launch.start_wrapped(wrap)?, state);
        producer.wait_ready().await?;
        Ok(producer)
    }

    fn from_launched(started: producer::Producer, state: TempDir) -> Self {
        Self {
            _ledger: FinalLedgerCheck {
                admin: started.admin.clone(),
                log: started.process.log().to_owned(),
            },
            process: started.process,
            http: started.http,
            grpc: format!("http://{}", started.grpc),
            admin: started.admin,
            _state: state,
        }
    }

    /// Waits until the producer is ready after a restart of its process.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, TIMEOUT).await
    }

    /// Sends one sync request, which must be accepted.
    pub(crate) async fn accept(&self, user_id: &str, dsp_id: u32, buyer_uid: &str) -> Result<()> {
        let answer = admin::sync(&self.http, user_id, dsp_id, buyer_uid).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    }

    /// Sends the cookies `numbers` (see [`numbered_cookie`]) in one write on one connection. All must be accepted.
    pub(crate) async fn accept_numbers(
        &self,
        numbers: std::ops::RangeInclusive<u64>,
    ) -> Result<()> {
        let mut requests = String::new();
        for number in numbers.clone() {
            let (user, dsp, buyer) = numbered_cookie(number);
            requests.push_str(&sync_request(&user, dsp, &buyer));
        }
        let mut connection = HttpClient::connect(&self.http).await?;
        connection.send(requests.as_bytes()).await?;
        for _ in numbers {
            let answer = connection.response().await?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        Ok(())
    }

    /// A load on the edge without an end, which the caller must set.
    pub(crate) fn load(&self, seed: u64) -> Result<load::Plan> {
        let url = format!("http://{}/", self.http).parse()?;
        Ok(load::Plan::new(url, Traffic::new(seed, None)))
    }

    /// A load of `requests` cookies on one connection, in a fixed order.
    pub(crate) fn ordered_load(&self, seed: u64, rate: u64, requests: u64) -> Result<load::Plan> {
        Ok(load::Plan {
            rate: NonZeroU64::new(rate),
            requests: Some(requests),
            pipeline: NonZeroUsize::new(128),
            ..self.load(seed)?
        })
    }

    /// Sends `requests` cookies without a rate limit. All must be accepted.
    pub(crate) async fn accept_load(&self, seed: u64, requests: u64) -> Result<Traffic> {
        let plan = load::Plan {
            rate: None,
            ..self.ordered_load(seed, 1, requests)?
        };
        accept_all(&plan).await?;
        Ok(plan.traffic)
    }

    pub(crate) async fn metrics(&self) -> Result<Samples> {
        admin::metrics(&self.admin).await
    }

    /// Number of cookies appended to the log since the start of the producer.
    pub(crate) async fn appended(&self) -> Result<u64> {
        Ok(self.metrics().await?.count(names::APPENDED, &[]))
    }
}

/// Launch options of a producer with its log in `dir`. Its state is in `state` unless `flags` set `--state`.
fn launch<'a>(
    program: &'a Path,
    dir: &'a TempDir,
    addresses: &Addresses,
    flags: &[&str],
    state: &TempDir,
) -> Launch<'a> {
    let mut args = owned(flags);
    if flag_value(flags, "--state").is_none() {
        args.extend(owned(&["--state", &state.path().display().to_string()]));
    }
    Launch {
        program,
        name: format!("producer-{}", addresses.http),
        addresses: addresses.clone(),
        dir: dir.path(),
        flags: args,
    }
}

/// Runs a load with a fixed number of requests.
///
/// # Errors
/// If a request is not accepted.
pub(crate) async fn accept_all(plan: &load::Plan) -> Result<load::LoadOutcome> {
    let outcome = load::run(plan, &CancellationToken::new()).await?;
    ensure!(
        outcome.report().failures.is_empty() && Some(outcome.counts.accepted) == plan.requests,
        "{}",
        outcome.report().summary()
    );
    Ok(outcome)
}
