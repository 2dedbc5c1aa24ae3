//! What is to be started, as on the command line.

use std::{convert::Infallible, num::NonZeroUsize, str::FromStr};

use clap::Args;

/// What is started.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Number of consumers, each with a store of its own: the exchange nodes.
    #[arg(long, default_value = "1")]
    pub consumers: NonZeroUsize,
    /// Number of producers; the load is spread over them, and every consumer reads from all.
    #[arg(long, default_value = "1")]
    pub producers: NonZeroUsize,
    /// Where consumers store: mongodb (a mongod for each, found or fetched), embedded, none, or the mongodb://… of one that
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
    /// Keep the folder with the stores and the logs of all processes; TMPDIR says where it is made.
    #[arg(long)]
    pub keep: bool,
}

/// Where consumers store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A mongod for each.
    Mongodb,
    /// An embedded store for each.
    Embedded,
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
            "none" => Self::Nothing,
            uri => Self::Existing(uri.to_owned()),
        })
    }
}

impl StoreChoice {
    /// Without secrets.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mongodb => "mongodb",
            Self::Embedded => "embedded",
            Self::Nothing => "none",
            Self::Existing(_) => "an existing MongoDB",
        }
    }
}
