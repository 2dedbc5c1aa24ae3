//! `bench store`: writes cookies into a store as the consumer does, without a network before it.
//!
//! Wire chunks go into the consumer's own buffer, through its own collector and writer. The run goes in slices: one
//! is made, which counts for nothing, and then each way in turn writes it: the consumer, and for MongoDB the same
//! documents in bare, pre-encoded commands (see [`StoreArgs`]). So all collections grow alike and are compared at
//! equal size, and whatever else the machine does meets all of them. Who goes first changes from slice to slice.

mod bare;
mod consumed;
mod folder;
mod lookups;
mod outcome;
mod pace;
mod report;
mod server;
mod threads;
mod timed;
mod workload;
mod write_path;

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use consumer::{Config, config::StoreConfig};
use runtime::unix_micros;
use tokio_util::sync::CancellationToken;

use self::{
    bare::{Bare, Kind, Plan},
    consumed::Consumed,
    folder::OwnFolder,
    lookups::Bidder,
    server::Server,
    workload::{Shares, Workload},
    write_path::WritePath,
};
pub use self::{
    outcome::{Outcome, Ratio, SliceFigures, WritePathOutcome},
    server::Cache,
};
use crate::report::{ReportArgs, grouped, rate};

const ONE: &str = "one";
const CEILING: &str = "ceiling";
const UPSERTS: &str = "upserts";
const EMBEDDED: &str = "embedded";
const DISCARD: &str = "none";

/// All that have databases of their own.
const IN_MONGODB: [&str; 3] = [ONE, CEILING, UPSERTS];

const COOKIES_DEFAULT: u64 = 2_000_000;

/// Batches that are written before the clock runs.
const WARM_UP_BATCHES: u64 = 2;

/// Writes cookies into a store as the consumer does, and measures.
///
/// Beside the consumer, the same documents go into databases of their own: by bare unordered inserts of what is new,
/// pre-encoded (the ceiling), and where there are repeats by bare upserts guarded by time. Databases begin with
/// the prefix and are dropped at the start and the end. Ctrl-C ends it after the slice that is being written, with its
/// report. The exit code is 1 when the store has not what it should have in the end.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Where cookies go: mongodb://…, embedded:DIR for a folder that is new or empty, or none.
    #[arg(long)]
    pub store: String,
    /// Cookies to write [default: 2000000, or without end when there is a duration].
    #[arg(long)]
    pub cookies: Option<NonZeroU64>,
    /// End after this long.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
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
    /// MongoDB collections written at once [default: the consumer's].
    #[arg(long)]
    pub writers: Option<NonZeroUsize>,
    /// How long a repeated cookie is not written again [default: the consumer's].
    #[arg(long, value_name = "TIME")]
    pub refresh_interval: Option<String>,
    /// How long a batch is collected [default: 5ms, so that the end of a slice is not waited for; the consumer's at a rate].
    #[arg(long, value_name = "TIME")]
    pub flush_interval: Option<String>,
    /// Cookies a second, each way by itself [default: as fast as it goes]. The bare commands then have those of 200 ms.
    #[arg(short = 'l', long)]
    pub rate: Option<NonZeroU32>,
    /// How the consumer expires cookies: index or sweep [default: the consumer's]. The others have the TTL index, and pages of MongoDB's own sizes.
    #[arg(long, value_name = "MODE")]
    pub expiry: Option<String>,
    /// Cookies of a slice.
    #[arg(long, default_value = "250000")]
    pub slice: NonZeroU64,
    /// Figure the consumer alone, without the baselines.
    #[arg(long)]
    pub alone: bool,
    /// Look up pairs in MongoDB by `_id` at so many a second meanwhile, and measure how long that takes. Its CPU is in that of mongod.
    #[arg(long, value_name = "RATE")]
    pub lookups: Option<NonZeroU32>,
    /// Go on with the MongoDB databases that a run with the same seed and DSPs and with --keep left behind.
    #[arg(long, requires = "seed")]
    pub resume: bool,
    /// What the names of MongoDB databases begin with.
    #[arg(long, default_value = "bench-store-")]
    pub prefix: String,
    /// Leave the databases, or the folder, behind.
    #[arg(long)]
    pub keep: bool,
    /// Seed of the cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

/// What is made for a run and removed after it.
#[derive(Default)]
struct Scratch {
    server: Option<Server>,
    folder: Option<OwnFolder>,
}

/// Writes until all is written, the time is over, or `stop`; `progress` gets a line a slice.
///
/// # Errors
/// When the arguments are not valid, the folder is somebody else's, or the store cannot be written to.
pub async fn run(
    args: &StoreArgs,
    stop: &CancellationToken,
    progress: impl FnMut(&str),
) -> Result<Outcome> {
    ensure!(!args.prefix.is_empty(), "--prefix must not be empty");
    let config = args.config()?;
    let mut scratch = Scratch::default();
    match &config.storing.store {
        StoreConfig::Mongodb(uri) => {
            let server = Server::connect(uri, &args.prefix).await?;
            if !args.resume {
                server.drop_own(&IN_MONGODB).await?;
            }
            scratch.server = Some(server);
        }
        StoreConfig::Embedded(folder) => scratch.folder = Some(OwnFolder::take(folder)?),
        StoreConfig::Discard => {}
    }
    ensure!(
        scratch.server.is_some() || !(args.resume || args.lookups.is_some()),
        "--resume and --lookups are for --store mongodb://…"
    );
    let measured = measure(args, &config, &scratch, stop, progress).await;
    if !args.keep {
        scratch.remove().await?;
    }
    measured
}

async fn measure(
    args: &StoreArgs,
    config: &Config,
    scratch: &Scratch,
    stop: &CancellationToken,
    mut progress: impl FnMut(&str),
) -> Result<Outcome> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let shares = Shares {
        repeat: args.repeat,
        changed: args.repeat_changed,
    };
    let mut ways = args.ways(config, scratch).await?;
    let pairs_before = args.pairs_before(&ways, scratch.server.as_ref()).await?;
    // Later than that of any run before, as a producer's.
    let epoch = unix_micros();
    let mut workload = Workload::new(seed, args.dsps, shares, pairs_before, epoch);
    let warm_up_cookies = WARM_UP_BATCHES * args.batch.get() as u64;
    let slice = workload.slice(warm_up_cookies, unix_micros())?;
    for path in &mut ways {
        path.warm_up(&slice).await?;
    }

    let began = Instant::now();
    let server = scratch.server.as_ref();
    let (mut first, mut interrupted) = (0, false);
    while args.has_time(began) {
        let left = args.cookies_left(workload.cookies() - warm_up_cookies);
        if left == 0 {
            break;
        }
        interrupted = stop.is_cancelled();
        if interrupted {
            break;
        }
        let pairs = workload.all_pairs();
        let slice = workload.slice(left.min(args.slice.get()), unix_micros())?;
        let mut figures = vec![None; ways.len()];
        for at in 0..ways.len() {
            let at = (first + at) % ways.len();
            figures[at] = Some(ways[at].measure(&slice, &pairs, server).await?);
        }
        first += 1;
        let cache = cache(server).await;
        progress(&line(pairs.count(), &ways, &figures, cache));
    }
    let seconds = began.elapsed().as_secs_f64();

    let cache = cache(server).await;
    let expected = workload.expected();
    let mut outcomes = Vec::with_capacity(ways.len());
    for path in ways {
        let finished = path.finish(&expected, server, args.dsps.get());
        outcomes.push(finished.await?);
    }
    let mut outcome = Outcome {
        store: config.storing.store.to_string(),
        mongod_version: server.map(|server| server.version().to_owned()),
        seed,
        dsps: args.dsps.get(),
        repeat: args.repeat,
        repeat_changed: args.repeat_changed,
        batch_cookies: config.storing.batch_cookies,
        writers: config.mongodb.mongodb_writers,
        refresh_interval_seconds: config.keeping.refresh_interval.as_secs_f64(),
        rate: args.rate.map(NonZeroU32::get),
        expiry: config.night.expiry.to_string(),
        warm_up_cookies,
        cookies: workload.cookies() - warm_up_cookies,
        pairs: workload.pairs(),
        changes: workload.changes(),
        seconds,
        interrupted,
        ratios: Outcome::compare(&outcomes),
        ways: outcomes,
        verified_pairs: expected.len(),
        cache,
        faults: Vec::new(),
    };
    outcome.find_faults();
    Ok(outcome)
}

async fn cache(server: Option<&Server>) -> Option<Cache> {
    server?.cache().await
}

/// The line of a slice.
fn line(
    documents: u64,
    ways: &[WritePath],
    figures: &[Option<SliceFigures>],
    cache: Option<Cache>,
) -> String {
    let mut line = format!("{:>12} documents", grouped(documents));
    for (path, figures) in ways.iter().zip(figures) {
        let Some(figures) = figures else { continue };
        let rate = rate(figures.per_second);
        line.push_str(&format!(" | {} {rate:>10}", path.name));
        if let Some(cpu) = figures.mongod_cpu_micros_per_cookie {
            line.push_str(&format!(", mongod {cpu:.1} µs"));
        }
    }
    if let Some(Cache {
        used_bytes,
        bytes_max,
    }) = cache
    {
        let percent = 100.0 * used_bytes as f64 / bytes_max.max(1) as f64;
        line.push_str(&format!(" | cache {percent:.0} %"));
    }
    line
}

impl StoreArgs {
    /// The consumer's settings: what it would run with, given these.
    fn config(&self) -> Result<Config> {
        let Self { prefix, .. } = self;
        let dead_letters = std::env::temp_dir().join("bench-store-dead-letters.jsonl");
        let mut arguments = vec![
            "consumer".to_owned(),
            "--name=bench".to_owned(),
            format!("--store={}", self.store),
            format!("--batch-cookies={}", self.batch),
            format!("--mongodb-prefix={prefix}{ONE}-"),
            format!("--dead-letters={}", dead_letters.display()),
        ];
        arguments.extend(
            self.writers
                .map(|writers| format!("--mongodb-writers={writers}")),
        );
        let unpaced = || self.rate.is_none().then(|| "5ms".to_owned());
        let flush_interval = self.flush_interval.clone().or_else(unpaced);
        for (flag, value) in [
            ("refresh-interval", &self.refresh_interval),
            ("flush-interval", &flush_interval),
            ("expiry", &self.expiry),
        ] {
            arguments.extend(value.as_ref().map(|value| format!("--{flag}={value}")));
        }
        let config = Config::load(arguments.into_iter().map(Into::into));
        config
            .map_err(|error| anyhow!("{}", error.to_string().trim_start_matches("error: ").trim()))
    }

    /// All ways, the consumer's first.
    async fn ways(&self, config: &Config, scratch: &Scratch) -> Result<Vec<WritePath>> {
        let StoreConfig::Mongodb(uri) = &config.storing.store else {
            let mut config = config.clone();
            let mut name = DISCARD;
            if let Some(folder) = &scratch.folder {
                config.storing.store = StoreConfig::Embedded(folder.data());
                name = EMBEDDED;
            }
            let consumed = Consumed::start("store-consumer", config, self.dsps, self.rate).await?;
            return Ok(vec![WritePath::consumed(name, consumed)]);
        };
        let consumed =
            Consumed::start("store-consumer", config.clone(), self.dsps, self.rate).await?;
        let mut ways = vec![WritePath::consumed(ONE, consumed)];
        if self.alone {
            return self.with_lookups(ways, uri).await;
        }
        let plan = |path| Plan {
            uri: uri.clone(),
            prefix: format!("{}{path}-", self.prefix),
            writers: config.mongodb.mongodb_writers,
            batch_cookies: match self.rate {
                None => config.storing.batch_cookies,
                Some(rate) => (rate.get() / 5).max(1) as usize,
            },
            rate: self.rate,
            dsps: self.dsps.get(),
        };
        let ceiling = Bare::start("store-ceiling", Kind::Insert, plan(CEILING)).await?;
        ways.push(WritePath::bare(CEILING, ceiling));
        if self.repeat > 0.0 {
            let upserts = Bare::start("store-upserts", Kind::Upsert, plan(UPSERTS)).await?;
            ways.push(WritePath::bare(UPSERTS, upserts));
        }
        self.with_lookups(ways, uri).await
    }

    /// The same with somebody who looks pairs up, if that is asked for.
    async fn with_lookups(&self, mut ways: Vec<WritePath>, uri: &str) -> Result<Vec<WritePath>> {
        if let Some(rate) = self.lookups {
            for path in &mut ways {
                let prefix = format!("{}{}-", self.prefix, path.name);
                path.bidder = Some(Bidder::start(uri, rate, prefix).await?);
            }
        }
        Ok(ways)
    }

    /// The pairs that a run before this one left behind.
    async fn pairs_before(&self, ways: &[WritePath], server: Option<&Server>) -> Result<u64> {
        let Some(server) = server.filter(|_| self.resume) else {
            return Ok(0);
        };
        let mut counts = Vec::with_capacity(ways.len());
        for path in ways {
            let count = server.count(path.name, self.dsps.get()).await?;
            counts.push((path.name, count));
        }
        let pairs = counts.first().map_or(0, |(_, count)| *count);
        ensure!(
            pairs > 0 && counts.iter().all(|(_, count)| *count == pairs),
            "--resume needs databases that a run with the same flags and --keep left behind, but there are documents as follows: {counts:?}"
        );
        Ok(pairs)
    }

    fn has_time(&self, began: Instant) -> bool {
        self.duration
            .is_none_or(|duration| began.elapsed() < duration)
    }

    /// How many cookies are still to be written after so many.
    fn cookies_left(&self, written: u64) -> u64 {
        let default = self.duration.map_or(COOKIES_DEFAULT, |_| u64::MAX);
        self.cookies
            .map_or(default, NonZeroU64::get)
            .saturating_sub(written)
    }
}

impl Scratch {
    /// Removes what was made.
    async fn remove(self) -> Result<()> {
        if let Some(server) = &self.server {
            let dropped = server.drop_own(&IN_MONGODB).await;
            dropped.context("cannot drop the databases of this run")?;
        }
        self.folder.map_or(Ok(()), OwnFolder::remove)
    }
}
