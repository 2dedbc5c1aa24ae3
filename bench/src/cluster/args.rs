//! Command-line options of the cluster that a scenario starts.

use std::{convert::Infallible, num::NonZeroUsize, str::FromStr, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::programs::flag_value;

/// Default flush interval of the consumer.
const FLUSH_INTERVAL: &str = "200ms";

/// Maximum chunk age with which verification can order cookies of different producers; small chunks may be three times as old
/// (see [`crate::verify::PRODUCER_CLOCK_MARGIN`]).
const CHUNK_AGE_MAX: Duration = Duration::from_millis(50);

/// Options of a cluster.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Number of consumers (exchange nodes), each with its own store.
    #[arg(long, default_value = "1")]
    pub consumers: NonZeroUsize,
    /// Number of producers. The load is spread over them, and each consumer reads from all.
    #[arg(long, default_value = "1")]
    pub producers: NonZeroUsize,
    /// Store of the consumers: mongodb (one mongod each, installed or downloaded), embedded, mixed (alternating between the two),
    /// none, or the mongodb:// URL of an existing MongoDB for all of them.
    #[arg(long, default_value = "mongodb")]
    pub store: StoreChoice,
    /// Additional argument of every producer; repeatable: --producer-arg=--log-bytes=4GiB.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub producer_arg: Vec<String>,
    /// Additional argument of every consumer; repeatable: --consumer-arg=--flush-interval=50ms.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub consumer_arg: Vec<String>,
    /// Run each consumer in its own network namespace (requires root, ip and nft).
    #[arg(skip)]
    pub own_network: bool,
    /// Keep the directory with all stores and logs. It is created in TMPDIR.
    #[arg(long)]
    pub keep: bool,
}

impl ClusterArgs {
    /// Checks the options.
    ///
    /// # Errors
    /// An option would invalidate the verification or the report.
    pub fn check(&self) -> Result<()> {
        if flag_value(&self.consumer_arg, "--mongodb-prefix").is_some() {
            bail!("--consumer-arg=--mongodb-prefix is not allowed");
        }
        if self.own_network && matches!(self.store, StoreChoice::Existing(_)) {
            bail!(
                "nodes in network namespaces cannot reach an existing MongoDB; to start one for each node, use `--store mongodb`"
            );
        }
        if let Some(text) = flag_value(&self.producer_arg, "--chunk-age")
            && self.producers.get() > 1
            && humantime::parse_duration(text).is_ok_and(|age| age > CHUNK_AGE_MAX)
        {
            bail!(
                "--producer-arg=--chunk-age={text}: the maximum with several producers is {}",
                humantime::format_duration(CHUNK_AGE_MAX)
            );
        }
        self.flush_interval().map(drop)
    }

    /// Flush interval of the consumers.
    ///
    /// # Errors
    /// The value is not a duration.
    pub fn flush_interval(&self) -> Result<Duration> {
        let text = self.flush_interval_text();
        humantime::parse_duration(text)
            .with_context(|| format!("--consumer-arg=--flush-interval={text}"))
    }

    /// Expiry mode of the consumers, if set.
    pub fn expiry(&self) -> Option<&str> {
        flag_value(&self.consumer_arg, "--expiry")
    }

    pub(super) fn flush_interval_text(&self) -> &str {
        flag_value(&self.consumer_arg, "--flush-interval").unwrap_or(FLUSH_INTERVAL)
    }
}

/// Store of the consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A mongod per node.
    Mongodb,
    /// An embedded store per node.
    Embedded,
    /// A mongod for odd nodes, an embedded store for even ones.
    Mixed,
    /// No store: cookies are counted and discarded.
    Nothing,
    /// An existing MongoDB. Any other text counts as its connection string, so that the consumer reports errors in it.
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
    /// Store of the node with this number, counted from 1.
    pub fn of_node(&self, number: usize) -> Self {
        match self {
            Self::Mixed if number % 2 == 1 => Self::Mongodb,
            Self::Mixed => Self::Embedded,
            all => all.clone(),
        }
    }

    /// Name without secrets.
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
    fn flush_interval_is_that_of_the_consumers() {
        let interval = |flags| parse(flags).flush_interval().ok();
        assert_eq!(interval(""), Some(Duration::from_millis(200)));
        let own = "--consumer-arg=--flush-interval=50ms";
        assert_eq!(interval(own), Some(Duration::from_millis(50)));
        assert_eq!(interval("--consumer-arg=--flush-interval=soon"), None);
    }

    #[test]
    fn options_that_prevent_verification_are_rejected() {
        for (flags, is_valid) in [
            ("--consumer-arg=--mongodb-prefix=x-", false),
            ("--producer-arg=--chunk-age=1s", true),
            ("--producers 2 --producer-arg=--chunk-age=20ms", true),
            ("--producers 2 --producer-arg=--chunk-age=1s", false),
        ] {
            assert_eq!(parse(flags).check().is_ok(), is_valid, "{flags}");
        }
        for (flags, is_valid) in [("", true), ("--store mongodb://127.0.0.1", false)] {
            let isolated = ClusterArgs {
                own_network: true,
                ..parse(flags)
            };
            assert_eq!(isolated.check().is_ok(), is_valid, "{flags}");
        }
    }
}
