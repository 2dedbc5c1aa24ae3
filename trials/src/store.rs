//! `trials store`: writes cookies into a store with the consumer's code, without a network, and compares the speed with that of
//! plain driver commands.
//!
//! A run consists of slices of cookies. After the warm-up, each variant writes each slice: the consumer's sink and, for MongoDB,
//! plain commands with the same documents. All collections therefore have equal sizes. The order of the variants alternates.

mod args;
mod baseline;
mod consumer_sink;
mod lookups;
mod outcome;
mod server;
mod threads;
mod variant;
mod workload;

use anyhow::{Context, Result, anyhow, ensure};
use bench::report::{grouped, rate};
use consumer::{Config, config::StoreConfig};
use runtime::unix_micros;
use tokio_util::sync::CancellationToken;

pub use self::{args::StoreArgs, outcome::StoreOutcome};
use self::{
    baseline::{Baseline, BaselineKind},
    consumer_sink::ConsumerSink,
    lookups::Bidder,
    server::{PREFIX, Server},
    variant::{Variant, WriteCost, Writer},
    workload::Workload,
};

/// Batches of the warm-up.
const WARM_UP_BATCHES: u64 = 2;

/// Writes until all cookies are written, or until `stop`; calls `progress` with one line per slice.
///
/// # Errors
/// The arguments are invalid, the directory exists, or the store cannot be used.
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
            ensure!(!dir.exists(), "{place} exists; choose a new directory");
            None
        }
        StoreConfig::Discard => None,
    };
    ensure!(
        server.is_some() || !(args.resume || args.lookups.is_some()),
        "--resume and --lookups require --store mongodb://…"
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
            removed.with_context(|| format!("failed to remove {}", dir.display()))?;
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
    // Later than the epochs of previous runs.
    let epoch = unix_micros();
    let mut workload = Workload::new(args, seed, pairs_before, epoch);
    let warm_up = WARM_UP_BATCHES * args.batch.get() as u64;
    let slice = workload.slice(warm_up, unix_micros())?;
    for variant in &mut variants {
        variant.write(&slice, None, server, None).await?;
        variant.cost = WriteCost::default();
    }

    let mut round = 0;
    let mut remaining = args.cookies.get();
    while remaining > 0 && !stop.is_cancelled() {
        let before = workload.pairs().clone();
        let slice = workload.slice(remaining.min(args.slice.get()), unix_micros())?;
        remaining -= slice.cookies();
        let paged = (args.pages && round % 2 == 1).then_some(args.dsps);
        let mut line = format!("{:>12} documents", grouped(before.count()));
        for at in 0..variants.len() {
            let count = variants.len();
            let variant = &mut variants[(round + at) % count];
            let cost = variant.write(&slice, Some(&before), server, paged).await?;
            line += &format!(" | {} {:>10}", variant.name, rate(cost.per_second()));
            if let Some(cpu) = cost.mongod_cpu {
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
    /// Configuration of the consumer.
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
            // Avoids a wait at the end of each slice.
            arguments.push("--flush-interval=5ms".to_owned());
        }
        arguments.extend(self.consumer_args.iter().cloned());
        let config = Config::load(arguments.into_iter().map(Into::into));
        config
            .map_err(|error| anyhow!("{}", error.to_string().trim_start_matches("error: ").trim()))
    }

    /// All variants; the first one is the consumer.
    async fn variants(&self, config: &Config, server: Option<&Server>) -> Result<Vec<Variant>> {
        let sink = ConsumerSink::start(config.clone(), self.rate).await?;
        let mut writers = vec![(consumer_sink::NAME, Writer::Sink(Box::new(sink)))];
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

    /// Number of pairs of the previous run.
    async fn pairs_before(&self, variants: &[Variant], server: &Server) -> Result<u64> {
        let mut counts = Vec::new();
        for variant in variants {
            counts.push(server.count(variant.name, self.dsps).await?);
        }
        ensure!(
            counts[0] > 0 && counts.iter().all(|count| *count == counts[0]),
            "--resume requires the databases of a previous run with --keep and the same flags; the databases have {counts:?} documents"
        );
        Ok(counts[0])
    }
}
