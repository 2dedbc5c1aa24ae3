//! A producer process, and what is sent to it.

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Result, ensure};
use bench::{
    admin, load,
    programs::{Process, free_address, given},
    scrape::{Samples, names},
    traffic::Traffic,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, books::LastBooks, numbered, owned, programs, request};
use crate::http_client::HttpConnection;

/// Where a producer listens.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) admin: String,
}

impl Addresses {
    /// Three free loopback addresses.
    pub(crate) fn free() -> Result<Self> {
        Ok(Self {
            http: free_address()?.to_string(),
            grpc: free_address()?.to_string(),
            admin: free_address()?.to_string(),
        })
    }
}

/// A producer process on free ports.
pub(crate) struct Producer {
    /// Dropped before the process.
    _books: LastBooks,
    pub(crate) process: Process,
    pub(crate) http: String,
    /// As a URL.
    pub(crate) grpc: String,
    pub(crate) admin: String,
}

impl Producer {
    /// Starts it with `flags` besides its addresses, its log in `folder`, and waits until it is ready.
    pub(crate) async fn start(folder: &TempDir, flags: &[&str]) -> Result<Self> {
        Self::start_at(folder, &Addresses::free()?, flags).await
    }

    /// Like [`start`](Self::start), at known addresses.
    pub(crate) async fn start_at(
        folder: &TempDir,
        addresses: &Addresses,
        flags: &[&str],
    ) -> Result<Self> {
        let Addresses { http, grpc, admin } = addresses.clone();
        let mut args = owned(&["--http", &http, "--grpc", &grpc, "--admin", &admin]);
        args.extend(owned(flags));
        if given(flags, "--state").is_none() {
            args.extend(owned(&["--state", &folder.path().display().to_string()]));
        }
        let program = &programs().await?.producer;
        let log = folder.path().join(format!("producer-{http}.log"));
        let process = Process::start("the producer", program, &args, &log)?;
        let mut producer = Self::of(process, addresses);
        producer.wait_ready().await?;
        Ok(producer)
    }

    /// The producer that runs as `process`.
    pub(crate) fn of(process: Process, addresses: &Addresses) -> Self {
        let Addresses { http, grpc, admin } = addresses.clone();
        Self {
            _books: LastBooks {
                admin: admin.clone(),
                log: process.log().to_owned(),
            },
            process,
            http,
            grpc: format!("http://{grpc}"),
            admin,
        }
    }

    /// Waits until it is ready, after its process was started again.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, PATIENCE).await
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
        let mut connection = HttpConnection::open(&self.http).await?;
        connection.send(requests.as_bytes()).await?;
        for _ in numbers {
            let answer = connection.answer().await?;
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
            schedule: NonZeroU64::new(rate).map(load::Profile::constant),
            requests: Some(requests),
            pipeline: NonZeroUsize::new(128),
            ..self.load(seed)?
        })
    }

    /// Sends `requests` cookies as fast as they are taken; all must be accepted.
    pub(crate) async fn accept_load(&self, seed: u64, requests: u64) -> Result<Traffic> {
        let plan = load::Plan {
            schedule: None,
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

/// Runs a load with a number of requests to its end; all must be accepted.
///
/// # Errors
/// When one is not.
pub(crate) async fn accept_all(plan: &load::Plan) -> Result<load::Outcome> {
    let outcome = load::run(plan, &CancellationToken::new()).await?;
    ensure!(
        outcome.is_faultless() && Some(outcome.accepted) == plan.requests,
        "{}",
        outcome.summary()
    );
    Ok(outcome)
}
