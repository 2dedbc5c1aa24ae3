//! How each way to decide is asked, with what runs for it, and what it takes.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use limits_sharing::{
    Address,
    exact::{Config as ExactConfig, Exact, Rule},
    lease::{Config as LeaseConfig, Lease},
    terms::Terms,
};
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Call, LimitsArgs, Mix, Pace, Way, WayOutcome,
    calls::{BURST, LIMIT, RATE},
    generator::{self, Plan},
    in_process::{InProcess, Leased, Shop, whole},
    remote::{self, ByScript, ByWindow},
    tally::Tally,
};
use crate::{cpu::CpuTime, limiter::Limiter, programs::Process, redis::Redis};

/// The longest that a way decides before it is measured.
const WARM_UP_MAX: Duration = Duration::from_secs(1);

/// For a share from a server that first learns who else has one, which takes some 5 s, and for a connection.
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// Longer than any server here needs to end.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where somebody else decides, it may take as long as it takes: how long is what is measured.
const BUDGET: Duration = Duration::from_secs(10);

/// Counters that a limiter has by default.
const COUNTERS_DEFAULT: u64 = 400_000;

/// What a run has.
pub(super) struct Bench<'a> {
    pub(super) args: &'a LimitsArgs,
    pub(super) limiter: Option<&'a Path>,
    pub(super) redis: Option<&'a Path>,
    pub(super) folder: &'a Path,
    pub(super) stop: &'a CancellationToken,
}

impl Bench<'_> {
    /// A fresh limiter, as it ships but for the room for counters.
    pub(super) async fn start_limiter(&self, name: &str) -> Result<Limiter> {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).context("cannot make a folder for the limiter")?;
        let limits = format!(
            "[limits.{LIMIT}]\nrules = [{{ id = \"all\", rate = \"{RATE}/s\", burst = {BURST} }}]\n"
        );
        // Half of the room is for all limits alike.
        let counters = 2 * self.args.counters;
        let flags: Vec<String> = if counters > COUNTERS_DEFAULT {
            vec![format!("--counters={counters}")]
        } else {
            Vec::new()
        };
        let program = self.limiter.context("the limiter was not looked for")?;
        Limiter::start(program, &folder, &limits, &flags).await
    }

    async fn start_redis(&self, name: &str) -> Result<Redis> {
        let folder = self.folder.join(name);
        std::fs::create_dir(&folder).context("cannot make a folder for Redis")?;
        let program = self.redis.context("Redis was not looked for")?;
        Redis::start(program, &folder).await
    }

    /// How many decisions others are asked for at once.
    fn at_once(&self) -> usize {
        self.args.connections.get() * self.args.pipeline.get()
    }
}

/// Ends a limiter in an orderly way.
///
/// # Errors
/// When it does not end so.
pub(super) async fn stop_limiter(process: &mut Process) -> Result<()> {
    let status = process.stop(STOP_PATIENCE).await?;
    ensure!(
        status.success(),
        "the limiter did not drain ({status}): {}",
        process.last_lines(5)
    );
    Ok(())
}

/// Starts what a way needs, measures, and ends what it started; nothing when the run was stopped meanwhile.
pub(super) async fn measure(way: Way, bench: &Bench<'_>) -> Result<Option<WayOutcome>> {
    let asked = tokio::select! {
        asked = Asked::start(way, bench) => asked?,
        () = bench.stop.cancelled() => return Ok(None),
    };
    let length = bench.args.duration;
    asked.ask(bench, (length / 5).min(WARM_UP_MAX)).await?;
    let cpu = [CpuTime::of_this_process(), asked.server_cpu()];
    let began = Instant::now();
    let tally = asked.ask(bench, length).await?;
    let seconds = began.elapsed();
    let cpu = [
        CpuTime::of_this_process().since(&cpu[0]),
        asked.server_cpu().since(&cpu[1]),
    ];
    asked.end().await?;
    let measured = || WayOutcome::new(way, &tally, seconds, cpu.map(|it| it.total()));
    Ok((!bench.stop.is_cancelled()).then(measured))
}

/// Who decides.
enum Decider {
    InProcess(Arc<InProcess>),
    Script(Arc<Exact>, Rule),
    Window(MultiplexedConnection),
    Http(SocketAddr),
}

/// A way that can be asked, and what runs for it.
struct Asked {
    decider: Decider,
    redis: Option<Redis>,
    limiter: Option<Limiter>,
    background: JoinSet<()>,
    stop: CancellationToken,
}

impl Asked {
    async fn start(way: Way, bench: &Bench<'_>) -> Result<Self> {
        let counters = bench.args.counters;
        let redis = match way.needs_redis() {
            true => Some(bench.start_redis(way.name()).await?),
            false => None,
        };
        let limiter = match way.needs_limiter() {
            true => Some(bench.start_limiter(way.name()).await?),
            false => None,
        };
        let url = redis.as_ref().map(|it| format!("redis://{}", it.address()));
        let url = url.unwrap_or_default();
        let address = limiter.as_ref().map(|it| it.address.clone());
        let address = address.unwrap_or_default();
        let mut background = JoinSet::new();
        let stop = CancellationToken::new();
        let decider = match way {
            Way::Local => Decider::InProcess(Arc::new(InProcess::local(counters)?)),
            Way::Governor => Decider::InProcess(Arc::new(InProcess::governor()?)),
            Way::Lease => {
                let leased = lease(&url, counters, &mut background, &stop).await?;
                Decider::InProcess(Arc::new(InProcess::Lease(leased)))
            }
            Way::Exact => {
                let exact = exact(&url, &mut background, &stop).await?;
                Decider::Script(exact, Rule::of(&whole()?.into())?)
            }
            Way::Window => Decider::Window(connect(&url).await?),
            Way::Http => Decider::Http(address.parse()?),
        };
        Ok(Self {
            decider,
            redis,
            limiter,
            background,
            stop,
        })
    }

    /// Has it decide for so long, or until the run is stopped.
    async fn ask(&self, bench: &Bench<'_>, length: Duration) -> Result<Tally> {
        let (counters, stop) = (bench.args.counters, bench.stop);
        let at_once = bench.at_once();
        match &self.decider {
            Decider::InProcess(way) => {
                let (way, stop) = (Arc::clone(way), stop.clone());
                let asking = move || way.ask(counters, length, &stop);
                Ok(tokio::task::spawn_blocking(asking).await?)
            }
            Decider::Script(exact, rule) => {
                let deciders = (0..at_once).map(|_| ByScript::new(Arc::clone(exact), *rule));
                remote::ask(deciders, counters, length, stop).await
            }
            Decider::Window(connection) => {
                let deciders = (0..at_once).map(|_| ByWindow(connection.clone()));
                remote::ask(deciders, counters, length, stop).await
            }
            Decider::Http(address) => {
                let plan = Plan {
                    address: *address,
                    connections: bench.args.connections.get(),
                    pipeline: bench.args.pipeline.get(),
                    pace: Pace::Max,
                    mix: Mix::of(Call::Reserve),
                    counters,
                    duration: length,
                };
                let stop = stop.clone();
                let sending = move || generator::run(&plan, &stop);
                Ok(tokio::task::spawn_blocking(sending).await??.all())
            }
        }
    }

    /// What the server has used, if there is one.
    fn server_cpu(&self) -> CpuTime {
        let redis = self.redis.as_ref().map(|it| it.process.id());
        let id = redis.or(self.limiter.as_ref().map(|it| it.process.id()));
        id.and_then(CpuTime::of).unwrap_or_default()
    }

    async fn end(mut self) -> Result<()> {
        self.stop.cancel();
        while self.background.join_next().await.is_some() {}
        drop(self.decider);
        if let Some(mut redis) = self.redis {
            redis.process.stop(STOP_PATIENCE).await?;
        }
        if let Some(mut limiter) = self.limiter {
            stop_limiter(&mut limiter.process).await?;
        }
        Ok(())
    }
}

/// The library with a share of the limit, as soon as it has one.
async fn lease(
    url: &str,
    counters: u64,
    background: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<Arc<Leased>> {
    let lease = Lease::new(LeaseConfig {
        server: server(url)?,
        group: LIMIT.to_owned(),
        member: "bench".to_owned(),
        terms: Terms::default(),
    });
    let leased = Arc::new(Leased::new(lease.clone(), counters)?);
    background.spawn(lease.run(Shop(Arc::clone(&leased)), stop.clone()));
    until("there is a share of the limit", || leased.has_share()).await?;
    Ok(leased)
}

/// Exact decisions, as soon as there is a connection.
async fn exact(
    url: &str,
    background: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<Arc<Exact>> {
    let config = ExactConfig {
        server: server(url)?,
        group: LIMIT.to_owned(),
        budget: BUDGET,
    };
    let exact = Arc::new(Exact::new(config));
    let (running, stop) = (Arc::clone(&exact), stop.clone());
    background.spawn(async move { running.run(stop).await });
    until("there is a connection to Redis", || exact.has_server()).await?;
    Ok(exact)
}

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(BUDGET));
    let client = Client::open(url)?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    Ok(connecting.await?)
}

fn server(url: &str) -> Result<Address> {
    Address::parse(url).map_err(anyhow::Error::msg)
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Result<()> {
    let began = Instant::now();
    while !holds() {
        ensure!(
            began.elapsed() < READY_PATIENCE,
            "{what}: not after {READY_PATIENCE:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
