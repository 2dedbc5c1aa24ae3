//! A producer process, and what is sent to it.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use bench::{
    admin,
    http::HttpClient,
    load,
    producer::{self, Addresses, Launch},
    programs::{Process, flag_value},
    scrape::{Samples, names},
    traffic::Traffic,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{TIMEOUT, ledger::LastLedger, numbered, owned, programs, request};

/// Makes of a program and its arguments those that start it. The process id must stay the same.
pub(crate) type Wrap<'a> = &'a dyn Fn(&Path, &[String]) -> (PathBuf, Vec<String>);

/// A producer process on free ports.
pub(crate) struct Producer {
    /// Dropped before the process.
    _ledger: LastLedger,
    pub(crate) process: Process,
    pub(crate) http: String,
    /// As a URL.
    pub(crate) grpc: String,
    pub(crate) admin: String,
    _state: TempDir,
}

impl Producer {
    /// Starts it with `flags` besides its addresses, its log in `dir`, and waits until it is ready.
    pub(crate) async fn start(dir: &TempDir, flags: &[&str]) -> Result<Self> {
        Self::start_at(dir, &Addresses::free()?, flags).await
    }

    /// Like [`start`](Self::start), at known addresses.
    pub(crate) async fn start_at(
        dir: &TempDir,
        addresses: &Addresses,
        flags: &[&str],
    ) -> Result<Self> {
        let program = &programs().await?.producer;
        let state = TempDir::new_in("/dev/shm")?;
        let launch = launch(program, dir, addresses, flags, &state);
        let mut producer = Self::of(launch.start()?, state);
        producer.wait_ready().await?;
        Ok(producer)
    }

    /// Like [`start_at`](Self::start_at), as `wrap` says of the program and its flags.
    pub(crate) async fn start_wrapped(
        dir: &TempDir,
        addresses: &Addresses,
        flags: &[&str],
        wrap: Wrap<'_>,
    ) -> Result<Self> {
        let program = &programs().await?.producer;
        let state = TempDir::new_in("/dev/shm")?;
        let launch = launch(program, dir, addresses, flags, &state);
        let mut producer = Self::of(launch.start_wrapped(wrap)?, state);
        producer.wait_ready().await?;
        Ok(producer)
    }

    fn of(started: producer::Producer, state: TempDir) -> Self {
        Self {
            _ledger: LastLedger {
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

    /// Waits until it is ready, after its process was started again.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, TIMEOUT).await
    }

    /// Sends one sync, which must be accepted.
    pub(crate) async fn accept(&self, user_id: &str, dsp_id: u32, buyer_uid: &str) -> Result<()> {
        let answer = admin::sync(&self.http, user_id, dsp_id, buyer_uid).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    }

    /// Sends the cookies `numbers` (see [`numbered`]) in one write over one connection; all must be accepted.
    pub(crate) async fn accept_numbers(
        &self,
        numbers: std::ops::RangeInclusive<u64>,
    ) -> Result<()> {
        let mut requests = String::new();
        for number in numbers.clone() {
            let (user, dsp, buyer) = numbered(number);
            requests.push_str(&request(&user, dsp, &buyer));
        }
        let mut connection = HttpClient::connect(&self.http).await?;
        connection.send(requests.as_bytes()).await?;
        for _ in numbers {
            let answer = connection.response().await?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        Ok(())
    }

    /// A load on its edge, without a limit; the caller sets one.
    pub(crate) fn load(&self, seed: u64) -> Result<load::Plan> {
        let url = format!("http://{}/", self.http).parse()?;
        Ok(load::Plan::new(url, Traffic::new(seed, None)))
    }

    /// A load of `requests` cookies over one connection, so that their order is known.
    pub(crate) fn ordered_load(&self, seed: u64, rate: u64, requests: u64) -> Result<load::Plan> {
        Ok(load::Plan {
            rate: NonZeroU64::new(rate),
            requests: Some(requests),
            pipeline: NonZeroUsize::new(128),
            ..self.load(seed)?
        })
    }

    /// Sends `requests` cookies as fast as they are taken; all must be accepted.
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

    /// Cookies in its log since its start.
    pub(crate) async fn appended(&self) -> Result<u64> {
        Ok(self.metrics().await?.count(names::APPENDED, &[]))
    }
}

/// A producer with its log in `dir`, and its state in `state` unless a flag names another place.
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

/// Runs a load with a number of requests to its end; all must be accepted.
///
/// # Errors
/// When one is not.
pub(crate) async fn accept_all(plan: &load::Plan) -> Result<load::Outcome> {
    let outcome = load::run(plan, &CancellationToken::new()).await?;
    ensure!(
        outcome.is_faultless() && Some(outcome.counts.accepted) == plan.requests,
        "{}",
        outcome.summary()
    );
    Ok(outcome)
}
