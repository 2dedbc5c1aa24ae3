//! Starts what a test needs, in a folder of its own, and ends it with the test.

use std::{
    collections::BTreeMap,
    future::Future,
    io::{Read as _, Write as _},
    num::{NonZeroU64, NonZeroUsize},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bench::{
    admin::{self, HttpClient},
    ledger, load,
    programs::{Process, Profile, Programs, free_address, given},
    scrape::{Samples, names},
    traffic::Traffic,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::http_client::HttpConnection;

/// How long a process may take to become ready, and a cookie to arrive, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a process may take to drain.
pub(crate) const DRAIN_PATIENCE: Duration = Duration::from_secs(12);

/// What stores know, or should: buyer uids by user and DSP.
pub(crate) type Known = BTreeMap<String, BTreeMap<u32, String>>;

/// The programs, found or built once for all tests of this process.
pub(crate) async fn programs() -> Result<&'static Programs> {
    static PROGRAMS: OnceLock<Result<Programs>> = OnceLock::new();
    tokio::task::spawn_blocking(|| {
        let found = PROGRAMS.get_or_init(|| Programs::find(Profile::of_this_program()));
        found.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))
    })
    .await?
}

/// Waits until `condition` is true.
///
/// # Errors
/// When it is not after `patience`, saying `what` did not happen; or when `condition` fails.
pub(crate) async fn wait_until<F>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let deadline = Instant::now() + patience;
    while !condition().await.with_context(|| what.to_owned())? {
        ensure!(Instant::now() < deadline, "{what}: not after {patience:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits for `future`, but not for ever.
///
/// # Errors
/// When it takes longer than [`PATIENCE`], saying `what` did not happen.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    match timeout(PATIENCE, future).await {
        Ok(value) => Ok(value),
        Err(_) => bail!("{what}: not after {PATIENCE:?}"),
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
/// When it runs longer than [`PATIENCE`].
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

/// Reads a process's books once more before it is killed, and fails the test when they do not balance. One that does not
/// answer any more has none.
struct LastBooks {
    admin: String,
}

impl Drop for LastBooks {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Ok(samples) = blocking_metrics(&self.admin)
            && let Err(error) = ledger::check(&samples)
        {
            panic!("http://{}/metrics: {error:#}", self.admin);
        }
    }
}

/// Like [`admin::metrics`], for where nothing can be awaited, and without looking at the books.
fn blocking_metrics(address: &str) -> Result<Samples> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut stream = std::net::TcpStream::connect_timeout(&address.parse()?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no whole head")?;
    let length = format!("content-length: {}", body.len());
    ensure!(
        head.starts_with("HTTP/1.1 200") && head.to_ascii_lowercase().contains(&length),
        "no whole answer: {head}"
    );
    Ok(Samples::parse(body))
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

/// A cookie that is easy to make again: user, DSP, buyer uid.
pub(crate) fn numbered(number: u64) -> (String, u32, String) {
    let dsp = 1 + u32::try_from(number % 20).unwrap_or(0);
    (format!("user-{number}"), dsp, format!("buyer-{number}"))
}

/// The sync request that carries a cookie whose ids need no encoding.
pub(crate) fn request(user_id: &str, dsp_id: u32, buyer_uid: &str) -> String {
    format!(
        "GET /?d={dsp_id}&b={buyer_uid} HTTP/1.1\r\nHost: test\r\nCookie: uid={user_id}\r\n\r\n"
    )
}

/// What a store knows after the first `count` cookies of one connection: the newest value of each user and DSP.
pub(crate) fn newest(traffic: &Traffic, count: u64) -> Known {
    let mut known = Known::new();
    for number in 0..count {
        let cookie = traffic.cookie(0, number);
        known
            .entry(cookie.user_id().to_owned())
            .or_default()
            .insert(cookie.dsp_id(), cookie.buyer_uid().to_owned());
    }
    known
}

/// A consumer process on a free port.
pub(crate) struct Consumer {
    /// Dropped before the process.
    _books: LastBooks,
    pub(crate) process: Process,
    pub(crate) admin: String,
}

impl Consumer {
    /// Starts it on `store` reading from `producers`, its log in `folder`, and waits until it is ready.
    pub(crate) async fn start(
        folder: &TempDir,
        name: &str,
        producers: &[&Producer],
        store: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let urls: Vec<_> = producers
            .iter()
            .map(|producer| producer.grpc.as_str())
            .collect();
        let mut consumer = Self::spawn(folder, name, &urls, store, flags).await?;
        consumer.wait_ready().await?;
        Ok(consumer)
    }

    /// Like [`start`](Self::start), but does not wait.
    pub(crate) async fn spawn(
        folder: &TempDir,
        name: &str,
        producers: &[&str],
        store: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let admin = free_address()?.to_string();
        let mut args = owned(&["--admin", &admin, "--name", name, "--store", store]);
        for producer in producers {
            args.extend(owned(&["--producer", producer]));
        }
        args.extend(owned(flags));
        let program = &programs().await?.consumer;
        let log = folder.path().join(format!("consumer-{name}.log"));
        let process = Process::start("the consumer", program, &args, &log)?;
        Ok(Self::of(process, admin))
    }

    /// The consumer that runs as `process`.
    pub(crate) fn of(process: Process, admin: String) -> Self {
        Self {
            _books: LastBooks {
                admin: admin.clone(),
            },
            process,
            admin,
        }
    }

    /// Waits until it is ready, after its process was started again.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(&self.admin, PATIENCE).await
    }

    /// Waits until it says that it is not ready, for a reason that contains `why`.
    pub(crate) async fn wait_not_ready(&self, why: &str) -> Result<()> {
        let what = format!("{} is not ready because of {why:?}", self.admin);
        wait_until(PATIENCE, &what, async || {
            // It may not listen yet.
            let answer = admin::get(&self.admin, "/readyz").await.ok();
            Ok(answer.is_some_and(|answer| answer.status == 503 && answer.body.contains(why)))
        })
        .await
    }

    /// Waits until the lookup of `user_id` gives exactly these buyer uids, by DSP.
    pub(crate) async fn wait_known(&self, user_id: &str, buyer_uids: Value) -> Result<()> {
        let expected = serde_json::json!({"user_id": user_id, "buyer_uids": buyer_uids});
        let path = format!("/v1/users/{user_id}");
        let what = format!("{} knows {expected}", self.admin);
        wait_until(PATIENCE, &what, || async {
            let answer = admin::get(&self.admin, &path).await?;
            Ok(answer.status == 200 && serde_json::from_str::<Value>(&answer.body)? == expected)
        })
        .await
    }

    /// Waits until it has written so many cookies.
    pub(crate) async fn wait_written(&self, cookies: u64) -> Result<()> {
        let what = format!("{} has written {cookies} cookies", self.admin);
        wait_until(PATIENCE, &what, async || {
            Ok(self.metrics().await?.count(names::WRITTEN, &[]) >= cookies)
        })
        .await
    }

    /// Waits until the fate of `accepted` cookies is known, all of them received by this process.
    pub(crate) async fn wait_settled(&self, accepted: u64) -> Result<()> {
        let what = format!("{} has settled {accepted} cookies", self.admin);
        wait_until(PATIENCE, &what, async || {
            let metrics = self.metrics().await?;
            let fates = [
                names::WRITTEN,
                names::SUPERSEDED,
                names::STALE,
                names::SUPPRESSED,
                names::FAILED,
            ];
            let settled: u64 = fates.iter().map(|name| metrics.count(name, &[])).sum();
            ensure!(settled <= accepted, "{settled} of {accepted} are settled");
            Ok(settled == accepted)
        })
        .await
    }

    /// Waits until the lookup of each of these users gives exactly what is known of it.
    pub(crate) async fn wait_knows(&self, known: &Known) -> Result<()> {
        let mut client = HttpClient::connect(&self.admin).await?;
        let deadline = Instant::now() + PATIENCE;
        for (user_id, buyer_uids) in known {
            let path = format!("/v1/users/{user_id}");
            let expected = serde_json::json!({"user_id": user_id, "buyer_uids": buyer_uids});
            loop {
                let answer = client.get(&path, &[]).await?;
                let found: Value = serde_json::from_str(&answer.body)?;
                if answer.status == 200 && found == expected {
                    break;
                }
                ensure!(Instant::now() < deadline, "{found} instead of {expected}");
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Fails when it knows any of these users.
    pub(crate) async fn knows_none(&self, users: impl Iterator<Item = String>) -> Result<()> {
        let mut client = HttpClient::connect(&self.admin).await?;
        for user in users {
            let answer = client.get(&format!("/v1/users/{user}"), &[]).await?;
            ensure!(answer.status == 404, "{user}: {answer:?}");
        }
        Ok(())
    }

    pub(crate) async fn metrics(&self) -> Result<Samples> {
        admin::metrics(&self.admin).await
    }

    /// Cookies it knows it will not get.
    pub(crate) async fn lost(&self) -> Result<u64> {
        Ok(self.metrics().await?.count(names::LOST, &[]))
    }
}

/// The `--store` argument for an embedded store in `folder`.
pub(crate) fn embedded(folder: &Path) -> String {
    format!("embedded:{}", folder.display())
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}
