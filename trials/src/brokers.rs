//! `trials brokers`: compares the producer with NATS core, NATS JetStream and Redis pub/sub.
//!
//! Each row is a run of a new server on loopback with its state in a temporary directory. The producer is measured by
//! [`bench::subscribe`]: it receives each cookie as an HTTP request and builds chunks itself. The other servers receive finished
//! messages over several connections. All subscribers decode every cookie, in this process. CPU time and memory are
//! those of the server.

mod messages;
mod nats;
mod redis;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bench::{
    report::{
        Measurement, Report, ReportArgs, Row, micros_per,
        unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
    },
    subscribe::{self, Call, SubscribeArgs},
    values::parse_rate,
};
use clap::Args;
use runtime::connect::credentials::SecurityArgs;
use tempfile::TempDir;
use testkit::{
    cpu,
    memory::Memory,
    nats as nats_server,
    numbers::per_second,
    programs::{ServerProcess, installed},
    redis as redis_server,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::messages::{LANES, Lane, Received, Total};

/// Missing cookies count as lost after this time without a delivery. No server delays messages for this long.
const QUIET: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The measurements of each row, named and ordered as those of `bench subscribe --fan-out`.
const MEASURED: [&str; 7] = [
    "accepted",
    "deliveries",
    "lost",
    "CPU per delivery",
    "memory",
    "delivery p50",
    "delivery p99",
];

const NOTE: &str = "Cookies per second, over all subscribers. CPU time and memory are those of the server, and include HTTP for the \
    producer. Lost: over all subscribers. Delivery: latency from the acceptance of the first \
    cookie of a chunk or, for other servers, from the publication of a finished message, to the subscriber.";

/// Compare the producer with NATS core, NATS JetStream and Redis pub/sub.
///
/// Starts nats-server (installed or downloaded) and redis-server (skipped if it is not in the PATH). The exit code is 1 if the
/// producer lost a cookie without counting it, or if a run failed.
#[derive(Debug, Clone, Args)]
pub struct BrokersArgs {
    /// Numbers of subscribers; each number is one step.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    pub subscribers: Vec<NonZeroUsize>,
    /// Duration of publishing per step.
    #[arg(short, long, default_value = "5s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Cookies per second [default: as fast as each server accepts them].
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// A server that distributes messages to subscribers.
#[derive(Debug, Clone, Copy)]
enum Broker {
    Nats,
    Jetstream,
    Redis,
}

/// Runs all steps until `stop`. Failed runs are failures of the report.
///
/// # Errors
/// The producer cannot be measured.
pub async fn run(args: &BrokersArgs, stop: &CancellationToken) -> Result<Report> {
    let mut report = Report::new("brokers", "Producer, NATS and Redis");
    let (began, mut rows) = (Instant::now(), Vec::new());
    for subscribers in &args.subscribers {
        let name = |system: &str| format!("{subscribers} × {system}");
        let own = subscribe::run_fan_out(&fan_out(args, *subscribers), stop).await?;
        report.failures.extend(own.failures.iter().cloned());
        let measured = of_producer(&own);
        if !measured.is_empty() {
            rows.push(Row::new(name("producer"), measured));
        }
        for (broker, system) in [
            (Broker::Nats, "nats"),
            (Broker::Jetstream, "jetstream"),
            (Broker::Redis, "redis"),
        ] {
            if matches!(broker, Broker::Redis) && installed("redis-server").is_none() {
                eprintln!("skipped redis: no redis-server in the PATH");
                continue;
            }
            eprintln!("{}", name(system));
            let measured = broker.measure(args, subscribers.get());
            match stop.run_until_cancelled(measured).await {
                Some(Ok(row)) => rows.push(Row::new(name(system), row)),
                Some(Err(error)) => report.failures.push(format!("{}: {error:#}", name(system))),
                None => report.findings = vec!["The run was interrupted.".to_owned()],
            }
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    report.add("Systems", NOTE, rows);
    Ok(report)
}

fn fan_out(args: &BrokersArgs, subscribers: NonZeroUsize) -> SubscribeArgs {
    SubscribeArgs {
        producer: String::new(),
        streams: subscribers,
        duration: Some(args.duration),
        requests: None,
        call: Call::Subscribe,
        security: SecurityArgs::default(),
        fan_out: vec![subscribers],
        rate: args.rate,
        report: ReportArgs::default(),
    }
}

/// The [`MEASURED`] of the only step of `bench subscribe --fan-out`; empty if it failed.
fn of_producer(report: &Report) -> Vec<Measurement> {
    let measured = report.measurements().map(|(_, it)| it);
    let measured = measured.filter(|it| MEASURED.contains(&it.name.as_str()));
    measured.cloned().collect()
}

impl Broker {
    async fn start(self, dir: &TempDir) -> Result<ServerProcess> {
        match self {
            Self::Redis => {
                let program = installed("redis-server").context("redis-server was removed")?;
                redis_server::start(&program, dir.path()).await
            }
            Self::Nats | Self::Jetstream => nats_server::start(dir.path()).await,
        }
    }

    /// Publishes the messages of a lane until its end.
    async fn publish(self, url: String, lane: Lane) -> Result<u64> {
        match self {
            Self::Nats => nats::publish(&url, lane).await,
            Self::Jetstream => nats::publish_acknowledged(&url, lane).await,
            Self::Redis => redis::publish(&url, lane).await,
        }
    }

    /// Receives messages until the task is aborted. Sends to `opened` when messages published later will be received.
    async fn subscribe(
        self,
        url: String,
        received: Received,
        opened: mpsc::Sender<()>,
    ) -> Result<()> {
        match self {
            Self::Nats => nats::subscribe(&url, received, opened).await,
            Self::Jetstream => nats::subscribe_stream(&url, received, opened).await,
            Self::Redis => redis::subscribe(&url, received, opened).await,
        }
    }

    async fn measure(self, args: &BrokersArgs, subscribers: usize) -> Result<Vec<Measurement>> {
        let dir = TempDir::with_prefix("brokers-")?;
        let server = self.start(&dir).await?;
        let (url, id) = (server.uri(), server.process.id());
        if let Self::Jetstream = self {
            nats::create_stream(&url).await?;
        }
        let received: Arc<Total> = Arc::default();
        let (opened_tx, mut opened) = mpsc::channel(subscribers);
        let mut readers = JoinSet::new();
        for _ in 0..subscribers {
            let counter = Received::new(Arc::clone(&received));
            readers.spawn(self.subscribe(url.clone(), counter, opened_tx.clone()));
        }
        for _ in 0..subscribers {
            tokio::select! {
                _ = opened.recv() => {}
                ended = readers.join_next() => ended_early(ended)?,
            }
        }
        let (began, cpu_before) = (Instant::now(), cpu::of(id));
        let mut lanes = JoinSet::new();
        for number in 0..LANES as u64 {
            let lane = Lane::new(number, args.rate, args.duration);
            lanes.spawn(self.publish(url.clone(), lane));
        }
        let mut published = 0;
        while let Some(ended) = lanes.join_next().await {
            published += ended??;
        }
        let publish_seconds = began.elapsed().as_secs_f64();
        let expected = published * subscribers as u64;
        let (mut delivered, mut at) = (0, Instant::now());
        while delivered < expected && at.elapsed() < QUIET {
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                ended = readers.join_next() => ended_early(ended)?,
            }
            let now = received.cookies();
            if now != delivered {
                (delivered, at) = (now, Instant::now());
            }
        }
        let seconds = (at - began).as_secs_f64().max(publish_seconds);
        let used = cpu::of(id).zip(cpu_before).context("the server exited")?;
        let used = used.0.saturating_sub(used.1).as_secs_f64();
        let measured = [
            RATE.of(MEASURED[0], per_second(published, publish_seconds)),
            RATE.of(MEASURED[1], per_second(delivered, seconds)),
            COUNT.of(MEASURED[2], expected.saturating_sub(delivered)),
            CPU.of(MEASURED[3], micros_per(used, delivered)),
            MEBIBYTES.of(MEASURED[4], Memory::of(id).map(|it| it.peak_bytes)),
        ];
        let delivery = MILLIS.percentiles("delivery ", received.delivery(), &["p50", "p99"]);
        Ok(measured.into_iter().chain(delivery).collect())
    }
}

/// Fails with the error of a subscriber.
fn ended_early(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    ended.context("no subscriber")???;
    bail!("a subscriber ended early")
}
