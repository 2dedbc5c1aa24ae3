//! Command-line options of `trials store`.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use bench::values::parse_fraction;
use clap::Args;

/// Measure how fast the consumer's code writes cookies into a store.
///
/// With MongoDB, plain commands write the same documents to other databases, for comparison: unordered inserts of new pairs
/// (the ceiling) and, with --repeat, upserts that replace only older cookies. The run drops MongoDB databases whose names
/// start with `trials-store-` at the start and at the end. Ctrl-C ends the run after the current slice; the summary is still printed.
/// The exit code is 1 if the store has wrong contents at the end.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Store to write to: mongodb://…, embedded:DIR for a new directory, or none.
    #[arg(long)]
    pub store: String,
    /// Number of cookies to write.
    #[arg(long, default_value = "2000000")]
    pub cookies: NonZeroU64,
    /// Number of DSPs, uniformly distributed.
    #[arg(long, default_value = "20")]
    pub dsps: NonZeroU32,
    /// Fraction (0 to 1) of cookies that repeat a uniformly drawn earlier pair of user and DSP.
    #[arg(long, default_value_t = 0.0, value_parser = parse_fraction)]
    pub repeat: f64,
    /// Fraction (0 to 1) of repeats with a new buyer uid.
    #[arg(long, default_value_t = 0.0, value_parser = parse_fraction)]
    pub repeat_changed: f64,
    /// Cookies per batch.
    #[arg(long, default_value = "10000")]
    pub batch: NonZeroUsize,
    /// Cookies per second of each variant [default: as fast as possible]. With a rate, a plain command contains the cookies of 200 ms.
    #[arg(short = 'l', long)]
    pub rate: Option<NonZeroU32>,
    /// Cookies per slice: each variant writes and measures one slice at a time.
    #[arg(long, default_value = "250000")]
    pub slice: NonZeroU64,
    /// Additional argument of the consumer; repeatable: --consumer-arg=--expiry=index.
    #[arg(long = "consumer-arg", value_name = "FLAG", allow_hyphen_values = true)]
    pub consumer_args: Vec<String>,
    /// Measure only the consumer, without plain commands.
    #[arg(long)]
    pub no_baseline: bool,
    /// Lookups per second by `_id` in MongoDB during the writes. The summary shows their latency.
    #[arg(long, value_name = "RATE")]
    pub lookups: Option<NonZeroU32>,
    /// Read pages of cookies during every second slice, without a pause between pages. The lookups of these slices are reported
    /// separately.
    #[arg(long, requires = "lookups")]
    pub pages: bool,
    /// Continue with the MongoDB databases of a previous run with --keep and the same --seed and --dsps.
    #[arg(long, requires = "seed")]
    pub resume: bool,
    /// Keep the databases or the directory.
    #[arg(long)]
    pub keep: bool,
    /// Seed of the cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
}
