//! A contract that four producers share: real processes, and a real server that is paused, killed, and comes back empty
//! in the end. Without `redis-server`, or what `REDIS_SERVER` names, nothing is tested.

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
use bench::{
    admin,
    http::HttpClient,
    programs::{Process, free_address},
    scrape::{Samples, names},
    tools::redis_server_or_skip,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Reading, sending, write};
use crate::harness::{Producer, TIMEOUT, request, reserve_machine, wait_until};

const LIMIT: &str = "contract";
const DSP: u32 = 17;

/// The contract, in cookies a second, and what is offered.
const RATE: u64 = 300;
const BURST: u64 = 30;
const OFFERED: u64 = 400;

/// How much of what is offered comes to which producer, in percent.
const SKEWED: [u64; 4] = [70, 20, 7, 3];

/// All of a limit, in millionths.
const WHOLE: u64 = 1_000_000;

/// What a sender makes up for at most when it is late.
const LATE_MAX: Duration = Duration::from_millis(100);

/// A server that keeps nothing on disk.
struct Redis {
    process: Process,
    address: SocketAddr,
}

impl Redis {
    /// None when there is no program, which skips the test.
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

/// A cookie that was sent: whose, and between which moments the producer decided on it.
struct Sent {
    user: String,
    asked: Duration,
    answered: Duration,
}

/// Who is asked how much, in percent.
type Percents = Arc<[AtomicU64; 4]>;

/// Four producers under one contract, and what comes to them.
struct World {
    producers: Vec<Producer>,
    readings: Vec<Reading>,
    redis: Redis,
    began: Instant,
    percents: Percents,
    stop: CancellationToken,
    senders: JoinSet<Result<Vec<Sent>>>,
    watcher: JoinSet<Result<u64>>,
    _dir: TempDir,
}

/// What was released, and how often the shares were added up.
struct Ended {
    passed: Vec<Sent>,
    offered: usize,
    instants: u64,
}

impl World {
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
        let (mut producers, mut readings) = (Vec::new(), Vec::new());
        for number in 0..SKEWED.len() {
            let id = format!("producer-{number}");
            let producer = Producer::start(&dir, &["--limits", file, "--id", &id]).await?;
            readings.push(Reading::begin(&producer).await?);
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
            readings,
            redis,
            began,
            percents,
            stop,
            senders,
            watcher,
            _dir: dir,
        }))
    }

    /// Waits until this holds of what each producer tells.
    async fn until(&self, what: &str, holds: impl Fn(&Samples) -> bool) -> Result<()> {
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

    async fn until_shared(&self) -> Result<()> {
        wait_until(TIMEOUT, "all four are known", async || {
            for producer in &self.producers {
                let words = admin::get(&producer.admin, "/readyz").await?.body;
                if !words.contains("4 members") || words.contains("discovering") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await?;
        self.until("shares are given out", |samples| {
            let sum = samples.sum(names::SHARING_SUM, &[]);
            is_in(samples, "ok") && sum.is_some_and(|sum| sum > 0.5)
        })
        .await
    }

    /// Waits until this producer has most of the contract.
    async fn until_most_is_of(&self, producer: usize) -> Result<()> {
        wait_until(TIMEOUT, "the shares follow the load", async || {
            let samples = self.producers[producer].metrics().await?;
            Ok(share(&samples) > WHOLE / 2)
        })
        .await
    }

    fn reverse(&self) {
        for (percent, skewed) in self.percents.iter().rev().zip(SKEWED) {
            percent.store(skewed, Ordering::Relaxed);
        }
    }

    /// Stops the server until all leases have run out.
    async fn pause(&mut self) -> Result<()> {
        self.redis.process.signal(Signal::STOP)?;
        self.until("leases run out", |samples| !is_in(samples, "ok"))
            .await?;
        self.redis.process.signal(Signal::CONT)
    }

    /// Kills the server, and waits until all go by their safe shares.
    async fn kill(&mut self) -> Result<()> {
        self.redis.process.kill()?;
        self.until("all go by their safe shares", |samples| {
            is_in(samples, "fallback") && share(samples) == WHOLE / 4
        })
        .await
    }

    /// Lets so much time pass while cookies come; when it began and ended.
    async fn wait(&self, time: Duration) -> (Duration, Duration) {
        let from = self.began.elapsed();
        sleep(time).await;
        (from, self.began.elapsed())
    }

    /// Ends all, and checks that no window had more than the contract, and no instant more shares than there are.
    async fn end(mut self) -> Result<Ended> {
        self.stop.cancel();
        let mut sent = Vec::new();
        while let Some(ended) = self.senders.join_next().await {
            sent.extend(ended??);
        }
        let watched = self.watcher.join_next().await;
        let instants = watched.context("there is a task")???;
        for producer in &mut self.producers {
            producer.process.stop(TIMEOUT).await?;
        }
        let mut users = HashSet::new();
        for reading in self.readings {
            let read = reading.end().await?.cookies;
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
            "{count} were released, of which {known} were sent"
        );
        let excess = worst_excess(&passed, RATE as f64);
        // Each has at least one of a burst.
        let most = (BURST + SKEWED.len() as u64) as f64;
        ensure!(
            excess <= most,
            "a window has {excess:.1} more than {RATE}/s let go, of a burst of {BURST}"
        );
        println!(
            "{} of {offered} passed; the fullest window has {excess:.1} more than {RATE}/s let go, of a burst of \
             {BURST}; the shares of {instants} instants were never above the whole",
            passed.len()
        );
        Ok(Ended {
            passed,
            offered,
            instants,
        })
    }
}

impl Ended {
    /// How much of the contract was used between these moments, in percent.
    fn used(&self, (from, to): (Duration, Duration)) -> f64 {
        let within = |sent: &&Sent| (from..to).contains(&sent.answered);
        let passed = self.passed.iter().filter(within).count();
        100.0 * passed as f64 / ((to - from).as_secs_f64() * RATE as f64)
    }
}

/// Whether a producer's lease is in this state.
fn is_in(samples: &Samples, state: &str) -> bool {
    samples.count(names::SHARING_STATE, &[("state", state)]) == 1
}

/// The share that a producer may use, in millionths.
#[expect(clippy::cast_possible_truncation, reason = "a part of one")]
fn share(samples: &Samples) -> u64 {
    let share = samples.sum(names::SHARING_SHARE, &[]).unwrap_or(0.0);
    (share * WHOLE as f64).round() as u64
}

/// Sends one cookie after the other at this producer's part of what is offered.
async fn send(
    number: usize,
    http: String,
    percents: Percents,
    began: Instant,
    stop: CancellationToken,
) -> Result<Vec<Sent>> {
    let mut client = HttpClient::connect(&http).await?;
    let (mut all, mut due) = (Vec::new(), Instant::now());
    while !stop.is_cancelled() {
        let percent = percents[number].load(Ordering::Relaxed);
        due += Duration::from_secs(100) / u32::try_from(OFFERED * percent)?;
        let late = due.elapsed().saturating_sub(LATE_MAX);
        due += late;
        sleep_until(due).await;
        let user = format!("user-{number}-{}", all.len());
        let asked = began.elapsed();
        client.send(request(&user, DSP, "buyer").as_bytes()).await?;
        let answer = client.response().await?;
        ensure!(answer.status == 200, "{answer:?}");
        let answered = began.elapsed();
        all.push(Sent {
            user,
            asked,
            answered,
        });
    }
    Ok(all)
}

/// Adds up the shares again and again; returns how often. Each producer is asked at another moment: what all of them
/// tell twice in a row, held for all of them at once in between.
async fn watch(admins: Vec<String>, stop: CancellationToken) -> Result<u64> {
    let (mut before, mut instants) = (Vec::new(), 0);
    while !stop.is_cancelled() {
        let mut shares = Vec::new();
        for admin in &admins {
            let samples = admin::metrics(admin).await?;
            let told = samples.sum(names::SHARING_SUM, &[]).unwrap_or(0.0);
            ensure!(told <= 1.0, "the server says that {told} are given out");
            shares.push(share(&samples));
        }
        if shares == before {
            let sum: u64 = shares.iter().sum();
            ensure!(sum <= WHOLE, "{shares:?} are {sum} together");
            instants += 1;
        }
        before = shares;
        sleep(Duration::from_millis(10)).await;
    }
    Ok(instants)
}

/// By how much the fullest of all windows is above what the rate lets go in its time. Counted are those that were
/// decided on within a window for certain, less those that were under way when it began.
fn worst_excess(passed: &[Sent], rate: f64) -> f64 {
    let sorted = |moment: fn(&Sent) -> Duration| {
        let mut moments: Vec<_> = passed.iter().map(|it| moment(it).as_secs_f64()).collect();
        moments.sort_unstable_by(f64::total_cmp);
        moments
    };
    let asked = sorted(|sent| sent.asked);
    let (mut before, mut least, mut worst) = (0, f64::INFINITY, 0.0_f64);
    for (count, end) in (1_u32..).zip(sorted(|sent| sent.answered)) {
        while let Some(start) = asked.get(before).filter(|start| **start <= end) {
            least = least.min(before as f64 - rate * start);
            before += 1;
        }
        worst = worst.max(f64::from(count) - rate * end - least);
    }
    worst
}

#[test]
fn worst_excess_counts_only_decisions_within_the_window() {
    let sent = |asked: f64, answered: f64| Sent {
        user: String::new(),
        asked: Duration::from_secs_f64(asked),
        answered: Duration::from_secs_f64(answered),
    };
    let excess = |passed: &[Sent]| worst_excess(passed, 2.0);
    let three = [0.0, 0.25, 0.25].map(|at| sent(1.0 + at, 1.0 + at));
    assert!((excess(&three) - 2.5).abs() < 1e-9);
    // Of one that was answered late nobody knows when it was decided.
    let late = [sent(1.0, 1.0), sent(1.0, 3.0), sent(3.0, 3.0)];
    assert!((excess(&late) - 1.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_that_share_a_limit_never_exceed_it() -> Result<()> {
    let Some(mut world) = World::start("200ms").await? else {
        return Ok(());
    };
    world.until_shared().await?;
    world.until_most_is_of(0).await?;
    world.reverse();
    world.until_most_is_of(3).await?;
    world.pause().await?;
    world.until_shared().await?;
    world.kill().await?;
    world.redis.restart().await?;
    world.until_shared().await?;
    world.until_most_is_of(3).await?;
    let ended = world.end().await?;
    ensure!(ended.instants > 10, "{} instants", ended.instants);
    ensure!(ended.passed.len() < ended.offered, "nothing was over it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes"]
async fn producers_that_share_a_limit_use_it_under_skewed_load() -> Result<()> {
    let _machine = reserve_machine().await;
    let half_a_minute = sending(30);
    let Some(mut world) = World::start("1s").await? else {
        return Ok(());
    };
    world.until_shared().await?;
    world.until_most_is_of(0).await?;
    world.wait(half_a_minute / 6).await;
    let before = world.wait(half_a_minute).await;
    world.reverse();
    let soon = world.wait(half_a_minute / 6).await;
    let after = (soon.0, world.wait(half_a_minute * 5 / 6).await.1);
    world.pause().await?;
    world.until_shared().await?;
    let paused = world.wait(half_a_minute / 3).await;
    world.kill().await?;
    let lost = world.wait(half_a_minute * 2 / 3).await;
    world.redis.restart().await?;
    world.until_shared().await?;
    world.until_most_is_of(3).await?;
    let back = world.wait(half_a_minute / 3).await;
    let ended = world.end().await?;
    let [before, soon, after, paused, lost, back] =
        [before, soon, after, paused, lost, back].map(|it| ended.used(it));
    println!(
        "used before the reversal {before:.1} %, after it {after:.1} % (at first {soon:.1} %), after a pause of the \
         server {paused:.1} %, without it {lost:.1} %, and when it is back and empty {back:.1} %"
    );
    ensure!(before >= 90.0 && after >= 85.0);
    Ok(())
}
