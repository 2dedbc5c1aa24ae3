//! `trials store`: writes cookies into a store as the consumer does, without a network before it, beside bare commands of the driver.
//!
//! Chunks go into the consumer's own buffer, through its collector and writer. The run goes in slices: one is made, which counts for
//! nothing, and then each way in turn writes it: the consumer, and for MongoDB bare commands with the same documents. So all
//! collections grow alike and are compared at equal size. Who goes first changes from slice to slice.

mod baseline;
mod consumer_sink;
mod lookups;
mod server;
mod workload;

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use bench::{
    cpu,
    report::{grouped, rate},
};
use clap::Args;
use consumer::{Config, config::StoreConfig};
use runtime::unix_micros;
use serde::Serialize;
use tokio::{runtime::Runtime, time::sleep_until};
use tokio_util::sync::CancellationToken;

use self::{
    baseline::{Baseline, BaselineKind},
    consumer_sink::{BatchStats, ConsumerSink},
    lookups::{Bidder, LookupStats},
    server::{PREFIX, Server},
    workload::{Pairs, Slice, Workload},
};

/// Batches that are written before the clock runs.
const WARM_UP_BATCHES: u64 = 2;

/// Pairs whose stored value is verified.
const VERIFIED_PAIRS: u64 = 2_000;

/// Writes cookies into a store as the consumer does, and measures.
///
/// Beside the consumer, the same documents go into databases of their own: by bare unordered inserts of what is new
/// (the ceiling), and where there are repeats by bare upserts guarded by time. MongoDB databases that begin with `trials-store-` are
/// dropped at the start and the end. Ctrl-C ends it after the slice that is being written, with its report. The exit code is 1 when
/// the store has not what it should have in the end.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Where cookies go: mongodb://…, embedded:DIR for a directory that does not exist, or none.
    #[arg(long)]
    pub store: String,
    /// Cookies to write.
    #[arg(long, default_value = "2000000")]
    pub cookies: NonZeroU64,
    /// Number of DSPs, each as likely as any other.
    #[arg(long, default_value = "20")]
    pub dsps: NonZeroU32,
    /// Share of cookies, 0 to 1, that repeat a user and DSP; each of those sent before is as likely as any other.
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    pub repeat: f64,
    /// Share of the repeats, 0 to 1, that change the buyer uid.
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    pub repeat_changed: f64,
    /// Cookies of a batch.
    #[arg(long, default_value = "10000")]
    pub batch: NonZeroUsize,
    /// Cookies a second, each way by itself [default: as fast as it goes]. The bare commands then have those of 200 ms.
    #[arg(short = 'l', long)]
    pub rate: Option<NonZeroU32>,
    /// Cookies of a slice.
    #[arg(long, default_value = "250000")]
    pub slice: NonZeroU64,
    /// A further flag of the consumer, as `--consumer-arg=--expiry=index`.
    #[arg(long = "consumer-arg", value_name = "FLAG", allow_hyphen_values = true)]
    pub consumer_args: Vec<String>,
    /// Measure the consumer alone, without the baselines.
    #[arg(long)]
    pub no_baseline: bool,
    /// Look up pairs in MongoDB by `_id` at so many a second meanwhile, and measure how long that takes.
    #[arg(long, value_name = "RATE")]
    pub lookups: Option<NonZeroU32>,
    /// Continue with the MongoDB databases that a run with the same seed and DSPs and with --keep left behind.
    #[arg(long, requires = "seed")]
    pub resume: bool,
    /// Leave the databases, or the directory, behind.
    #[arg(long)]
    pub keep: bool,
    /// Seed of the cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct StoreOutcome {
    /// The store, without secrets.
    pub store: String,
    /// Makes the same cookies again.
    pub seed: u64,
    /// Cookies written under the clock.
    pub cookies: u64,
    /// Distinct pairs of user and DSP, those of the warm-up and of earlier runs included.
    pub pairs: u64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The ways that were compared: the consumer's first.
    pub variants: Vec<VariantOutcome>,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
}

/// What one way took.
#[derive(Debug, Clone, Serialize)]
pub struct VariantOutcome {
    /// `consumer`, `ceiling` (baseline inserts of new pairs) or `upserts` (bare upserts of all).
    pub name: &'static str,
    /// Cookies written under the clock; of the ceiling, only those that are new.
    pub cookies: u64,
    /// While they were written.
    pub seconds: f64,
    /// `cookies` a second.
    pub per_second: f64,
    /// CPU time of the consumer, or of the baseline's client, for each cookie.
    pub client_cpu_micros: f64,
    /// CPU time of `mongod` for each cookie; `null` when it does not run on this machine.
    pub mongod_cpu_micros: Option<f64>,
    /// The consumer's batches, the warm-up's included.
    pub batches: Option<BatchStats>,
    /// Lookups meanwhile.
    pub lookups: Option<LookupStats>,
    /// Documents at the end; `null` where it is not known.
    pub documents: Option<u64>,
}

impl StoreOutcome {
    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let (cookies, pairs) = (grouped(self.cookies), grouped(self.pairs));
        let mut lines = vec![format!(
            "{cookies} cookies into {}, {pairs} pairs, seed {}",
            self.store, self.seed
        )];
        for variant in &self.variants {
            let mut line = format!(
                "{}: {}, CPU {:.2} µs a cookie",
                variant.name,
                rate(variant.per_second),
                variant.client_cpu_micros
            );
            if let Some(micros) = variant.mongod_cpu_micros {
                line += &format!(", of mongod {micros:.1} µs");
            }
            if let Some(batches) = &variant.batches {
                line += &format!("; {batches}");
            }
            if let Some(lookups) = &variant.lookups {
                line += &format!("; {lookups}");
            }
            lines.push(line);
        }
        lines.extend(
            self.failures
                .iter()
                .map(|failure| format!("FAULT: {failure}")),
        );
        lines.join("\n")
    }
}

/// One way to write, and what it has taken so far.
struct Variant {
    name: &'static str,
    writer: Writer,
    bidder: Option<Bidder>,
    cost: WriteCost,
}

enum Writer {
    ConsumerSink(Box<ConsumerSink>),
    Baseline(Baseline),
}

/// What writing has taken.
#[derive(Debug, Clone, Copy, Default)]
struct WriteCost {
    cookies: u64,
    time: Duration,
    client: Duration,
    mongod: Option<Duration>,
}

impl WriteCost {
    fn add(&mut self, other: &Self) {
        self.cookies += other.cookies;
        self.time += other.time;
        self.client += other.client;
        if let Some(more) = other.mongod {
            self.mongod = Some(self.mongod.unwrap_or_default() + more);
        }
    }

    fn per_second(&self) -> f64 {
        self.cookies as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn micros_per(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.cookies.max(1) as f64
    }
}

/// Writes until all is written or `stop`; `progress` gets a line a slice.
///
/// # Errors
/// When the arguments are not valid, the directory exists, or the store cannot be written to.
pub async fn run(
    args: &StoreArgs,
    stop: &CancellationToken,
    progress: impl FnMut(&str),
) -> Result<StoreOutcome> {
    let config = args.config()?;
    let server = match &config.storage.store {
        StoreConfig::Mongodb(uri) => Some(Server::connect(uri).await?),
        StoreConfig::Embedded(dir) => {
            let place = dir.display();
            ensure!(!dir.exists(), "{place} exists: name a new directory");
            None
        }
        StoreConfig::Discard => None,
    };
    ensure!(
        server.is_some() || !(args.resume || args.lookups.is_some()),
        "--resume and --lookups are for --store mongodb://…"
    );
    if let Some(server) = server.as_ref().filter(|_| !args.resume) {
        server.drop_databases().await?;
    }
    let outcome = measure(args, &config, server.as_ref(), stop, progress).await;
    if !args.keep {
        if let Some(server) = &server {
            server.drop_databases().await?;
        }
        if let StoreConfig::Embedded(dir) = &config.storage.store {
            let removed = std::fs::remove_dir_all(dir);
            removed.with_context(|| format!("cannot remove {}", dir.display()))?;
        }
    }
    outcome
}

async fn measure(
    args: &StoreArgs,
    config: &Config,
    server: Option<&Server>,
    stop: &CancellationToken,
    mut progress: impl FnMut(&str),
) -> Result<StoreOutcome> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut variants = args.variants(config, server).await?;
    let pairs_before = match server.filter(|_| args.resume) {
        Some(server) => args.pairs_before(&variants, server).await?,
        None => 0,
    };
    // Later than that of any earlier run, as a producer's.
    let epoch = unix_micros();
    let mut workload = Workload::new(args, seed, pairs_before, epoch);
    let warm_up = WARM_UP_BATCHES * args.batch.get() as u64;
    let slice = workload.slice(warm_up, unix_micros())?;
    for variant in &mut variants {
        variant.write(&slice, None, server).await?;
        variant.cost = WriteCost::default();
    }

    let mut round = 0;
    let mut remaining = args.cookies.get();
    while remaining > 0 && !stop.is_cancelled() {
        let before = workload.pairs().clone();
        let slice = workload.slice(remaining.min(args.slice.get()), unix_micros())?;
        remaining -= slice.cookies();
        let mut line = format!("{:>12} documents", grouped(before.count()));
        for at in 0..variants.len() {
            let count = variants.len();
            let variant = &mut variants[(round + at) % count];
            let cost = variant.write(&slice, Some(&before), server).await?;
            line += &format!(" | {} {:>10}", variant.name, rate(cost.per_second()));
            if let Some(cpu) = cost.mongod {
                line += &format!(", mongod {:.1} µs", cost.micros_per(cpu));
            }
        }
        round += 1;
        progress(&line);
    }

    let mut outcome = StoreOutcome {
        store: config.storage.store.to_string(),
        seed,
        cookies: args.cookies.get() - remaining,
        pairs: workload.pairs().count(),
        interrupted: remaining > 0,
        variants: Vec::new(),
        failures: Vec::new(),
    };
    for variant in variants {
        variant.finish(&workload, server, &mut outcome).await?;
    }
    Ok(outcome)
}

impl StoreArgs {
    /// The consumer's settings: what it would run with, given these.
    fn config(&self) -> Result<Config> {
        let dead_letters = std::env::temp_dir().join("trials-store-dead-letters.jsonl");
        let mut arguments = vec![
            "consumer".to_owned(),
            "--name=trials".to_owned(),
            format!("--store={}", self.store),
            format!("--batch-cookies={}", self.batch),
            format!("--mongodb-prefix={PREFIX}{}-", consumer_sink::NAME),
            format!("--dead-letters={}", dead_letters.display()),
        ];
        if self.rate.is_none() {
            // Nothing waits for the end of a slice.
            arguments.push("--flush-interval=5ms".to_owned());
        }
        arguments.extend(self.consumer_args.iter().cloned());
        let config = Config::load(arguments.into_iter().map(Into::into));
        config
            .map_err(|error| anyhow!("{}", error.to_string().trim_start_matches("error: ").trim()))
    }

    /// All ways, the consumer's first.
    async fn variants(&self, config: &Config, server: Option<&Server>) -> Result<Vec<Variant>> {
        let consumer_sink = ConsumerSink::start(config.clone(), self.rate).await?;
        let mut writers = vec![(
            consumer_sink::NAME,
            Writer::ConsumerSink(Box::new(consumer_sink)),
        )];
        if let Some(server) = server.filter(|_| !self.no_baseline) {
            let ceiling = Baseline::start(BaselineKind::Insert, self, config, server).await?;
            writers.push((ceiling.name(), Writer::Baseline(ceiling)));
            if self.repeat > 0.0 {
                let upserts = Baseline::start(BaselineKind::Upsert, self, config, server).await?;
                writers.push((upserts.name(), Writer::Baseline(upserts)));
            }
        }
        let variant = |(name, writer)| Variant {
            name,
            writer,
            bidder: self
                .lookups
                .zip(server)
                .map(|(rate, server)| Bidder::new(server, name, rate)),
            cost: WriteCost::default(),
        };
        Ok(writers.into_iter().map(variant).collect())
    }

    /// The pairs that an earlier run left behind.
    async fn pairs_before(&self, variants: &[Variant], server: &Server) -> Result<u64> {
        let mut counts = Vec::new();
        for variant in variants {
            counts.push(server.count(variant.name, self.dsps).await?);
        }
        ensure!(
            counts[0] > 0 && counts.iter().all(|count| *count == counts[0]),
            "--resume needs databases that a run with the same flags and --keep left behind, but they have {counts:?} documents"
        );
        Ok(counts[0])
    }
}

impl Variant {
    /// Writes a slice under the clock, while pairs of `before` are looked up if that is wanted.
    async fn write(
        &mut self,
        slice: &Slice,
        before: Option<&Pairs>,
        server: Option<&Server>,
    ) -> Result<WriteCost> {
        let running = self.bidder.as_ref().zip(before);
        let running = running.map(|(bidder, pairs)| bidder.look_up(pairs.clone()));
        let commands = match &self.writer {
            Writer::Baseline(baseline) => baseline.encode(slice)?,
            Writer::ConsumerSink(_) => Vec::new(),
        };
        let client_before = self.client_cpu();
        let mongod_before = server.and_then(Server::cpu);
        let began = Instant::now();
        let cookies = match &mut self.writer {
            Writer::ConsumerSink(consumer_sink) => consumer_sink.write(slice).await?,
            Writer::Baseline(baseline) => baseline.send(commands).await?,
        };
        let mongod = server.and_then(Server::cpu).zip(mongod_before);
        let cost = WriteCost {
            cookies,
            time: began.elapsed(),
            client: self.client_cpu().saturating_sub(client_before),
            mongod: mongod.map(|(now, before)| now.saturating_sub(before)),
        };
        self.cost.add(&cost);
        if let (Some(bidder), Some(running)) = (&mut self.bidder, running) {
            bidder.stop(running).await?;
        }
        Ok(cost)
    }

    fn client_cpu(&self) -> Duration {
        match &self.writer {
            Writer::ConsumerSink(_) => cpu::of_threads(&consumer_sink::THREADS),
            Writer::Baseline(baseline) => cpu::of_threads(&[baseline.name()]),
        }
    }

    /// Ends the way, checks what it left behind, and reports.
    async fn finish(
        self,
        workload: &Workload,
        server: Option<&Server>,
        outcome: &mut StoreOutcome,
    ) -> Result<()> {
        let Self { name, cost, .. } = self;
        let documents = match server {
            Some(server) => Some(server.count(name, workload.dsps()).await?),
            None => None,
        };
        let mut failures = Vec::new();
        let pairs = workload.pairs().count();
        if let Some(documents) = documents.filter(|count| *count != pairs) {
            failures.push(format!("{documents} documents instead of {pairs}"));
        }
        let batches = match self.writer {
            Writer::ConsumerSink(consumer_sink) => {
                let (batches, found) = consumer_sink.finish(workload).await?;
                failures.extend(found);
                Some(batches)
            }
            Writer::Baseline(_) => None,
        };
        let lookups = self.bidder.map(|bidder| bidder.stats());
        if let Some(lookups) = lookups.as_ref().filter(|it| it.failed > 0) {
            failures.push(format!(
                "{} lookups failed, or found nothing",
                lookups.failed
            ));
        }
        let named = failures
            .into_iter()
            .map(|failure| format!("{name}: {failure}"));
        outcome.failures.extend(named);
        outcome.variants.push(VariantOutcome {
            name,
            cookies: cost.cookies,
            seconds: cost.time.as_secs_f64(),
            per_second: cost.per_second(),
            client_cpu_micros: cost.micros_per(cost.client),
            mongod_cpu_micros: cost.mongod.map(|cpu| cost.micros_per(cpu)),
            batches,
            lookups,
            documents,
        });
        Ok(())
    }
}

/// A runtime whose threads all have one name, so that their CPU time can be told apart. It lives as long as the program, and so do its
/// threads: the CPU time of one that ended would be lost.
fn threads(name: &'static str) -> Result<&'static Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name(name)
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    Ok(Box::leak(Box::new(runtime)))
}

/// Waits until the cookie is due that comes after so many, if there is a rate.
async fn due(began: tokio::time::Instant, rate: Option<NonZeroU32>, cookies: u64) {
    if let Some(rate) = rate {
        let due = Duration::from_secs_f64(cookies as f64 / f64::from(rate.get()));
        sleep_until(began + due).await;
    }
}
