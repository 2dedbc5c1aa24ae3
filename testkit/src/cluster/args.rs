//! Command-line options of the cluster that a scenario starts.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};

/// Options of a cluster.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Number of consumers (exchange nodes), each with its own store.
    #[arg(long, default_value = "1")]
    pub consumers: NonZeroUsize,
    /// Number of producers. The load is spread over them, and each consumer reads from all.
    #[arg(long, default_value = "1")]
    pub producers: NonZeroUsize,
    /// Store of the consumers.
    #[arg(long, value_enum, default_value_t = StoreChoice::Mongodb)]
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
    /// Archive the cookies in a NATS stream.
    #[arg(skip)]
    pub archive: bool,
    /// Keep the directory with all stores and logs. It is created in TMPDIR.
    #[arg(long)]
    pub keep: bool,
}

/// Store of the consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreChoice {
    /// A mongod for each node, installed or downloaded.
    Mongodb,
    /// An embedded store for each node.
    Embedded,
    /// A mongod for odd nodes, an embedded store for even ones.
    Mixed,
}

impl StoreChoice {
    /// Store of the node with this number, counted from 1.
    pub fn of_node(self, number: usize) -> Self {
        match self {
            Self::Mixed if number % 2 == 1 => Self::Mongodb,
            Self::Mixed => Self::Embedded,
            all => all,
        }
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mongodb => "mongodb",
            Self::Embedded => "embedded",
            Self::Mixed => "mongodb and embedded",
        }
    }
}
