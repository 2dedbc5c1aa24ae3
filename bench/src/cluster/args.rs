//! What is to be started, as on the command line.

use std::{convert::Infallible, num::NonZeroUsize, str::FromStr, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::programs::flag_value;

/// The consumer's own default.
const FLUSH_INTERVAL: &str = "200ms";

/// With chunks of this age, three times as old when they are small, the verification still tells which of two cookies on
/// different producers is the newer ([`crate::verify::PRODUCERS_APART`]).
const CHUNK_AGE_MAX: Duration = Duration::from_millis(50);

/// What is started.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Number of consumers, each with a store of its own: the exchange nodes.
    #[arg(long, default_value = "1")]
    pub consumers: NonZeroUsize,
    /// Number of producers; the load is spread over them, and every consumer reads from all.
    #[arg(long, default_value = "1")]
    pub producers: NonZeroUsize,
    /// Where consumers store: mongodb (a mongod for each, found or fetched), embedded, mixed (these two by turns), none, or the mongodb://… of one that
    /// runs, for all of them.
    #[arg(long, default_value = "mongodb")]
    pub store: StoreChoice,
    /// Start mongod without the settings that docs/mongodb.md recommends, but for the size of its cache.
    #[arg(long)]
    pub mongod_default: bool,
    /// Further argument for mongod; repeatable: --mongod-arg=--syncdelay --mongod-arg=60.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub mongod_arg: Vec<String>,
    /// With a mongodb:// of its own: what the names of the databases begin with, before something random; they are dropped at
    /// the end.
    #[arg(long, value_name = "PREFIX", default_value = "bench-e2e-")]
    pub mongodb_prefix: String,
    /// Further argument for every producer; repeatable: --producer-arg=--log-bytes=4GiB.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub producer_arg: Vec<String>,
    /// Further argument for every consumer; repeatable: --consumer-arg=--flush-interval=50ms.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub consumer_arg: Vec<String>,
    /// Run each consumer in a network namespace of its own (needs root, ip and nft).
    #[arg(skip)]
    pub own_network: bool,
    /// Keep the directory with the stores and the logs of all processes; TMPDIR says where it is made.
    #[arg(long)]
    pub keep: bool,
}

impl ClusterArgs {
    /// Refuses what would make the verification or the report wrong.
    ///
    /// # Errors
    /// See above.
    pub fn check(&self) -> Result<()> {
        if flag_value(&self.consumer_arg, "--mongodb-prefix").is_some() {
            bail!(
                "--consumer-arg=--mongodb-prefix is the bench's own: with --store mongodb://… there is --mongodb-prefix"
            );
        }
        if self.own_network && matches!(self.store, StoreChoice::Existing(_)) {
            bail!("--own-network: a MongoDB that runs already cannot be reached from there");
        }
        if let Some(text) = flag_value(&self.producer_arg, "--chunk-age")
            && self.producers.get() > 1
            && humantime::parse_duration(text).is_ok_and(|age| age > CHUNK_AGE_MAX)
        {
            bail!(
                "--producer-arg=--chunk-age={text}: with several producers at most {} can be verified",
                humantime::format_duration(CHUNK_AGE_MAX)
            );
        }
        self.flush_interval().map(drop)
    }

    /// What consumers are told.
    ///
    /// # Errors
    /// When it is not a time.
    pub fn flush_interval(&self) -> Result<Duration> {
        let text = self.flush_interval_text();
        humantime::parse_duration(text)
            .with_context(|| format!("--consumer-arg=--flush-interval={text}"))
    }

    /// How consumers expire cookies, if they are told.
    #[must_use]
    pub fn expiry(&self) -> Option<&str> {
        flag_value(&self.consumer_arg, "--expiry")
    }

    pub(super) fn flush_interval_text(&self) -> &str {
        flag_value(&self.consumer_arg, "--flush-interval").unwrap_or(FLUSH_INTERVAL)
    }
}

/// Where consumers store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A mongod for each.
    Mongodb,
    /// An embedded store for each.
    Embedded,
    /// A mongod for the first and every other, a directory for those between.
    Mixed,
    /// Counted and discarded.
    Nothing,
    /// Databases of their own in a MongoDB that runs already; any other text is taken for its connection string, so
    /// that the consumer says what is wrong with it.
    Existing(String),
}

impl FromStr for StoreChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "mongodb" => Self::Mongodb,
            "embedded" => Self::Embedded,
            "mixed" => Self::Mixed,
            "none" => Self::Nothing,
            uri => Self::Existing(uri.to_owned()),
        })
    }
}

impl StoreChoice {
    /// What the node with this number, from 1 on, stores in.
    #[must_use]
    pub fn of_node(&self, number: usize) -> Self {
        match self {
            Self::Mixed if number % 2 == 1 => Self::Mongodb,
            Self::Mixed => Self::Embedded,
            all => all.clone(),
        }
    }

    /// Without secrets.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mongodb => "mongodb",
            Self::Embedded => "embedded",
            Self::Mixed => "mongodb and embedded",
            Self::Nothing => "none",
            Self::Existing(_) => "an existing MongoDB",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn parse(flags: &str) -> ClusterArgs {
        let flags = std::iter::once("program").chain(flags.split_ascii_whitespace());
        Program::try_parse_from(flags).unwrap().args
    }

    #[test]
    fn flush_interval_in_force_is_known() {
        let interval = |flags| parse(flags).flush_interval().ok();
        assert_eq!(interval(""), Some(Duration::from_millis(200)));
        let own = "--consumer-arg=--flush-interval=50ms";
        assert_eq!(interval(own), Some(Duration::from_millis(50)));
        assert_eq!(interval("--consumer-arg=--flush-interval=soon"), None);
    }

    #[test]
    fn what_cannot_be_verified_is_refused() {
        for (flags, is_good) in [
            ("--consumer-arg=--mongodb-prefix=x-", false),
            ("--producer-arg=--chunk-age=1s", true),
            ("--producers 2 --producer-arg=--chunk-age=20ms", true),
            ("--producers 2 --producer-arg=--chunk-age=1s", false),
        ] {
            assert_eq!(parse(flags).check().is_ok(), is_good, "{flags}");
        }
        for (flags, is_good) in [("", true), ("--store mongodb://127.0.0.1", false)] {
            let apart = ClusterArgs {
                own_network: true,
                ..parse(flags)
            };
            assert_eq!(apart.check().is_ok(), is_good, "{flags}");
        }
    }
}
