//! Tests of a limit that four producers share through a real Redis server. The server is paused, killed, and restarted without its
//! data.
//!
//! The tests are skipped without `redis-server`. `REDIS_SERVER` names another binary.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{
    admin,
    http::HttpClient,
    programs::{Process, free_address},
    scrape::{Samples, names},
    tools::redis_server_or_skip,
};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{BackgroundReader, load_time, write};
use crate::harness::{Producer, TIMEOUT, reserve_machine, sync_request, wait_until};

const LIMIT: &str = "shared";
const DSP: u32 = 17;

/// Rate and burst of the limit and the offered rate, in cookies per second.
const RATE: u64 = 300;
const BURST: u64 = 30;
const OFFERED: u64 = 400;

/// Percentage of the load that each producer receives.
const SKEWED: [u64; 4] = [70, 20, 7, 3];

/// Share of the total limit, in millionths.
const FULL_SHARE: u64 = 1_000_000;

/// Maximum delay for which a late sender catches up.
const LATE_MAX: Duration = Duration::from_millis(100);

/// A Redis server without persistence.
struct Redis {
    process: Process,
    address: SocketAddr,
}

impl Redis {
    /// `None` (a skipped test) without the program.
    async fn start(dir: &TempDir) -> Result<Option<Self>> {
        let Some(program) = redis_server_or_skip() else {
            return Ok(None);
        };
        let address = free_address()?;
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let args = [
            "--bind",
            &ip,
            "--port",
            &port,
            "--save",
            "",
            "--appendonly",
            "no",
        ];
        let args = args.map(str::to_owned);
        let log = dir.path().join("redis.log");
        let process = Process::start("redis-server", &program, &args, &log)?;
        let redis = Self { process, address };
        redis.wait().await?;
        Ok(Some(redis))
    }

    async fn wait(&self) -> Result<()> {
        wait_until(TIMEOUT, "redis-server listens", async || {
            Ok(TcpStream::connect(self.address).await.is_ok())
        })
        .await
    }

    async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait().await
    }
}

/// A sent cookie. The producer decided on it between `sent` and `answered`.
struct SentCookie {
    user: String,
    sent: Duration,
    answered: Duration,
}

/// Percentage of the load for each producer.
type Percents = Arc<[AtomicU64; 4]>;

/// Four producers that share a limit, with their load and readers.
struct Cluster {
    producers: Vec<Producer>,
    readers: Vec<BackgroundReader>,
    redis: Redis,
    began: Instant,
    percents: Percents,
    stop: CancellationToken,
    senders: JoinSet<Result<Vec<SentCookie>>>,
    watcher: JoinSet<Result<u64>>,
    _dir: TempDir,
}

/// Result of a run.
struct RunResult {
    /// The cookies that passed the limit.
    passed: Vec<SentCookie>,
    offered: usize,
    /// Number of consistent samples of all shares.
    samples: u64,
}

impl Cluster {
    async fn start(refresh: &str) -> Result<Option<Self>> {
        let dir = TempDir::new()?;
        let Some(redis) = Redis::start(&dir).await? else {
            return Ok(None);
        };
        let limits = format!(
            "unknown = \"unlimited\"\n\
             [sharing]\nmode = \"lease\"\nredis = \"redis://{}\"\ngroup = \"it\"\nrefresh = \"{refresh}\"\n\
             [limits.{LIMIT}]\nkeys = [{DSP}]\nmode = \"police\"\n\
             rules = [ {{ id = \"peak\", rate = \"{RATE}/s\", burst = {BURST} }} ]\n",
            redis.address
        );
        write(&dir, &limits)?;
        let file = dir.path().join("limits.toml");
        let file = file.to_str().context("a path in UTF-8")?;
        let (mut producers, mut readers) = (Vec::new(), Vec::new());
        for number in 0..SKEWED.len() {
            let id = format!("producer-{number}");
            let producer = Producer::start(&dir, &["--contracts", file, "--id", &id]).await?;
            readers.push(BackgroundReader::start(&producer).await?);
            producers.push(producer);
        }
        let (began, stop) = (Instant::now(), CancellationToken::new());
        let percents: Percents = Arc::new(SKEWED.map(AtomicU64::new));
        let mut senders = JoinSet::new();
        for (number, producer) in producers.iter().enumerate() {
            let (http, percents) = (producer.http.clone(), Arc::clone(&percents));
            senders.spawn(send(number, http, percents, began, stop.clone()));
        }
        let admins = producers.iter().map(|it| it.admin.clone()).collect();
        let mut watcher = JoinSet::new();
        watcher.spawn(watch(admins, stop.clone()));
        Ok(Some(Self {
            producers,
            readers,
            redis,
            began,
            percents,
            stop,
            senders,
            watcher,
            _dir: dir,
        }))
    }

    /// Waits until `holds` returns true for the metrics of each producer.
    async fn wait_all(&self, what: &str, holds: impl Fn(&Samples) -> bool) -> Result<()> {
        wait_until(TIMEOUT, what, async || {
            for producer in &self.producers {
                if !holds(&producer.metrics().await?) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    async fn wait_shared(&self) -> Result<()> {
        wait_until(TIMEOUT, "all four members are known", async || {
            for producer in &self.producers {
                let state = admin::get(&producer.admin, "/readyz").await?.body;
                if !state.contains("4 members") || state.contains("discovering") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await?;
        self.wait_all("shares are assigned", |samples| {
            let sum = samples.sum(names::SHARING_SUM, &[]);
            has_state(samples, "ok") && sum.is_some_and(|sum| sum > 0.5)
        })
        .await
    }

    /// Waits until this producer has more than half of the limit.
    async fn wait_largest_share(&self, producer: usize) -> Result<()> {
        wait_until(TIMEOUT, "the shares follow the load", async || {
            let samples = self.producers[producer].metrics().await?;
            Ok(share(&samples) > FULL_SHARE / 2)
        })
        .await
    }

    fn reverse(&self) {
        for (percent, skewed) in self.percents.iter().rev().zip(SKEWED) {
            percent.store(skewed, Ordering::Relaxed);
        }
    }

    /// Pauses the server until all leases have expired.
    async fn pause(&mut self) -> Result<()> {
        self.redis.process.signal(Signal::STOP)?;
        self.wait_all("leases expire", |samples| !has_state(samples, "ok"))
            .await?;
        self.redis.process.signal(Signal::CONT)
    }

    /// Kills the server and waits until all producers use their fallback shares.
    async fn kill(&mut self) -> Result<()> {
        self.redis.process.kill()?;
        self.wait_all("all producers use their fallback shares", |samples| {
            has_state(samples, "fallback") && share(samples) == FULL_SHARE / 4
        })
        .await
    }

    /// Lets `time` pass under load and returns its start and end.
    async fn wait(&self, time: Duration) -> (Duration, Duration) {
        let from = self.began.elapsed();
        sleep(time).await;
        (from, self.began.elapsed())
    }

    /// Stops all processes. Checks that no window exceeded the limit, and that the sum of the shares never exceeded it.
    async fn finish(mut self) -> Result<RunResult> {
        self.stop.cancel();
        let mut sent = Vec::new();
        while let Some(ended) = self.senders.join_next().await {
            sent.extend(ended??);
        }
        let watched = self.watcher.join_next().await;
        let samples = watched.context("the watcher task is missing")???;
        for producer in &mut self.producers {
            producer.process.stop(TIMEOUT).await?;
        }
        let mut users = HashSet::new();
        for reader in self.readers {
            let read = reader.finish().await?.cookies;
            users.extend(read.into_iter().map(|cookie| cookie.user_id));
        }
        let offered = sent.len();
        let passed: Vec<_> = sent
            .into_iter()
            .filter(|sent| users.contains(&sent.user))
            .collect();
        let (count, known) = (users.len(), passed.len());
        ensure!(
            known == count,
            "{count} cookies were released, but only {known} of them were sent"
        );
        let excess = worst_excess(&passed, RATE as f64);
        // Each producer has a burst of at least one cookie.
        let excess_max = (BURST + SKEWED.len() as u64) as f64;
        ensure!(
            excess <= excess_max,
            "a window has {excess:.1} cookies above {RATE}/s, with a burst of {BURST}"
        );
        println!(
            "{} of {offered} passed; worst window: {excess:.1} above {RATE}/s, with a burst of {BURST}; the sum of \
             the shares never exceeded the limit in {samples} samples",
            passed.len()
        );
        Ok(RunResult {
            passed,
            offered,
            samples,
        })
    }
}

impl RunResult {
    /// Percentage of the limit that was used in this time.
    fn used(&self, (from, to): (Duration, Duration)) -> f64 {
        let within = |cookie: &&SentCookie| (from..to).contains(&cookie.answered);
        let passed = self.passed.iter().filter(within).count();
        100.0 * passed as f64 / ((to - from).as_secs_f64() * RATE as f64)
    }
}

/// Whether a producer's lease has this state.
fn has_state(samples: &Samples, state: &str) -> bool {
    samples.count(names::SHARING_STATE, &[("state", state)]) == 1
}

/// A producer's share of the limit, in millionths.
#[expect(clippy::cast_possible_truncation, reason = "a share is at most one")]
fn share(samples: &Samples) -> u64 {
    let share = samples.sum(names::SHARING_SHARE, &[]).unwrap_or(0.0);
    (share * FULL_SHARE as f64).round() as u64
}

/// Sends cookies one at a time, at this producer's percentage of the load.
async fn send(
    number: usize,
    http: String,
    percents: Percents,
    began: Instant,
    stop: CancellationToken,
) -> Result<Vec<SentCookie>> {
    let mut client = HttpClient::connect(&http).await?;
    let (mut all, mut due) = (Vec::new(), Instant::now());
    while !stop.is_cancelled() {
        let percent = percents[number].load(Ordering::Relaxed);
        due += Duration::from_secs(100) / u32::try_from(OFFERED * percent)?;
        let late = due.elapsed().saturating_sub(LATE_MAX);
        due += late;
        sleep_until(due).await;
        let user = format!("user-{number}-{}", all.len());
        let sent = began.elapsed();
        client
            .send(sync_request(&user, DSP, "buyer").as_bytes())
            .await?;
        let answer = client.response().await?;
        ensure!(answer.status == 200, "{answer:?}");
        let answered = began.elapsed();
        all.push(SentCookie {
            user,
            sent,
            answered,
        });
    }
    Ok(all)
}

/// Checks the sum of all shares until `stop` and returns the number of consistent samples.
///
/// Producers are scraped one after the other. If two rounds in a row return the same shares, all of them applied at the same time.
async fn watch(admins: Vec<String>, stop: CancellationToken) -> Result<u64> {
    let (mut before, mut consistent) = (Vec::new(), 0);
    while !stop.is_cancelled() {
        let mut shares = Vec::new();
        for admin in &admins {
            let samples = admin::metrics(admin).await?;
            let assigned = samples.sum(names::SHARING_SUM, &[]).unwrap_or(0.0);
            ensure!(assigned <= 1.0, "the server assigned {assigned}");
            shares.push(share(&samples));
        }
        if shares == before {
            let sum: u64 = shares.iter().sum();
            ensure!(sum <= FULL_SHARE, "the sum of {shares:?} is {sum}");
            consistent += 1;
        }
        before = shares;
        sleep(Duration::from_millis(10)).await;
    }
    Ok(consistent)
}

/// The maximum over all windows of the cookies above `rate` times the window length.
///
/// A window counts only cookies that were certainly decided in it: sent after its start and answered before its end.
fn worst_excess(passed: &[SentCookie], rate: f64) -> f64 {
    let sorted = |time: fn(&SentCookie) -> Duration| {
        let mut times: Vec<_> = passed.iter().map(|it| time(it).as_secs_f64()).collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    };
    let starts = sorted(|cookie| cookie.sent);
    let (mut before, mut least, mut worst) = (0, f64::INFINITY, 0.0_f64);
    for (count, end) in (1_u32..).zip(sorted(|cookie| cookie.answered)) {
        while let Some(start) = starts.get(before).filter(|start| **start <= end) {
            least = least.min(before as f64 - rate * start);
            before += 1;
        }
        worst = worst.max(f64::from(count) - rate * end - least);
    }
    worst
}

#[test]
fn worst_excess_counts_only_decisions_within_the_window() {
    let cookie = |sent: f64, answered: f64| SentCookie {
        user: String::new(),
        sent: Duration::from_secs_f64(sent),
        answered: Duration::from_secs_f64(answered),
    };
    let excess = |passed: &[SentCookie]| worst_excess(passed, 2.0);
    let three = [0.0, 0.25, 0.25].map(|at| cookie(1.0 + at, 1.0 + at));
    assert!((excess(&three) - 2.5).abs() < 1e-9);
    // The decision time of a cookie with a late response is uncertain.
    let late = [cookie(1.0, 1.0), cookie(1.0, 3.0), cookie(3.0, 3.0)];
    assert!((excess(&late) - 1.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_that_share_a_limit_never_exceed_it() -> Result<()> {
    let Some(mut cluster) = Cluster::start("200ms").await? else {
        return Ok(());
    };
    cluster.wait_shared().await?;
    cluster.wait_largest_share(0).await?;
    cluster.reverse();
    cluster.wait_largest_share(3).await?;
    cluster.pause().await?;
    cluster.wait_shared().await?;
    cluster.kill().await?;
    cluster.redis.restart().await?;
    cluster.wait_shared().await?;
    cluster.wait_largest_share(3).await?;
    let result = cluster.finish().await?;
    ensure!(result.samples > 10, "{} samples", result.samples);
    ensure!(
        result.passed.len() < result.offered,
        "nothing exceeded the limit"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes"]
async fn producers_that_share_a_limit_use_it_under_skewed_load() -> Result<()> {
    let _machine = reserve_machine().await;
    let half_a_minute = load_time(30);
    let Some(mut cluster) = Cluster::start("1s").await? else {
        return Ok(());
    };
    cluster.wait_shared().await?;
    cluster.wait_largest_share(0).await?;
    cluster.wait(half_a_minute / 6).await;
    let before = cluster.wait(half_a_minute).await;
    cluster.reverse();
    let soon = cluster.wait(half_a_minute / 6).await;
    let after = (soon.0, cluster.wait(half_a_minute * 5 / 6).await.1);
    cluster.pause().await?;
    cluster.wait_shared().await?;
    let paused = cluster.wait(half_a_minute / 3).await;
    cluster.kill().await?;
    let lost = cluster.wait(half_a_minute * 2 / 3).await;
    cluster.redis.restart().await?;
    cluster.wait_shared().await?;
    cluster.wait_largest_share(3).await?;
    let back = cluster.wait(half_a_minute / 3).await;
    let result = cluster.finish().await?;
    let [before, soon, after, paused, lost, back] =
        [before, soon, after, paused, lost, back].map(|it| result.used(it));
    println!(
        "used: {before:.1} % before the reversal, {after:.1} % after it ({soon:.1} % initially), {paused:.1} % after a pause of \
         the server, {lost:.1} % without it, {back:.1} % after its restart without data"
    );
    ensure!(before >= 90.0 && after >= 85.0);
    Ok(())
}
