//! The command line.

use std::{num::NonZeroU32, time::Duration};

use clap::{CommandFactory as _, Parser, Subcommand};
use runtime::{
    logging::Filter,
    settings::{TIME_MAX, info_commands::AboutArgs, time},
};
use serde::Deserialize;

const EXAMPLES: &str = "\
Examples:
  Show all processes, and what differs between them:
    cookiesync --producer http://producers.example:9090 --node http://nodes.example:9091 status

  Log more on one node for ten minutes:
    cookiesync --cluster cluster.toml log-filter node-7 info,consumer=debug

  Delete a user, and find out which nodes have done so:
    cookiesync --cluster cluster.toml delete 0123456789abcdef
    cookiesync --cluster cluster.toml receipt producer-1:1795645305211553:8-8";

/// Ask the producers and nodes of a cluster. The exit code is 0, 1 if there is a problem, or 2 if nothing could be asked.
#[derive(Debug, Parser)]
#[command(name = "cookiesync", version = runtime::VERSION, arg_required_else_help = true, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    about: AboutArgs,
}

/// What to ask, and how.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// TOML file with flags of this group: `producer`, `node`, `api`, `api_token_file`, `tls_ca` and `prometheus`; flags and environment
    /// variables have priority
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<String>,

    #[command(flatten)]
    pub(crate) hosts: Hosts,

    /// Maximum time for all responses; `delete` and `forget` wait longer, because a producer waits for others
    #[arg(long, value_name = "TIME", default_value = "800ms", value_parser = time(Duration::from_millis(10)..=TIME_MAX))]
    pub(crate) timeout: Duration,

    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// The settings that the file can contain.
#[derive(Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Hosts {
    /// Admin ports of the producers; all addresses of a host name are asked (comma-separated) [default without --node:
    /// http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) producer: Vec<String>,

    /// Admin ports of the nodes (consumers), likewise [default without --producer: http://127.0.0.1:9091]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) node: Vec<String>,

    /// API ports of all producers, likewise, for `delete`, `receipt`, `forget` and `check`
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) api: Vec<String>,

    /// File with the token for the API: a line without a name. If the file contains several tokens, only the first is used
    #[arg(long, value_name = "FILE", default_value = "")]
    pub(crate) api_token_file: String,

    /// PEM file with the CA certificates for verifying https:// ports, instead of those of the system
    #[arg(long, value_name = "FILE", default_value = "")]
    pub(crate) tls_ca: String,

    /// Prometheus server, for `check`
    #[arg(long, value_name = "URL")]
    pub(crate) prometheus: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show each process, and then what differs between them
    Status,
    /// Show each node as each producer knows it
    Nodes,
    /// Remove a node that will not return from all producers, so that receipts of deletions no longer wait for it
    ///
    /// The token needs the permission `nodes`. Erase the store of the node first: if it returns with its old store, it may have cookies
    /// that receipts report as deleted.
    Forget {
        /// Name of the node
        #[arg(value_name = "NODE")]
        name: String,
    },
    /// Show which nodes have carried out a deletion
    Receipt {
        /// The receipt that `delete` has printed
        receipt: String,
    },
    /// Delete the cookies of a user on all nodes
    Delete {
        /// User id
        user: String,
        /// Only the cookie of this DSP
        #[arg(long)]
        dsp: Option<NonZeroU32>,
    },
    /// Show the buyer uids of a user on all nodes
    Lookup {
        /// User id
        user: String,
    },
    /// Show why each node has a match of a user and a DSP, or not
    Why {
        /// User id
        user: String,
        /// DSP id
        dsp: NonZeroU32,
    },
    /// Show what becomes of the syncs of each DSP: offers in sync plans, completed ones, matches, and lookups
    ///
    /// All counts are those since the start of each process. `stored` is that of the node with the most; with an embedded store, an
    /// estimate. The dashboard has the rates of a day and a week ago.
    Partners,
    /// Change the log filter of a process for some time; the process restores it by itself
    LogFilter(LogFilterArgs),
    /// Try the production checklist of docs/operation.md against the running cluster
    Check {
        /// Outage of a node that the logs of the producers must cover
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time(Duration::ZERO..=TIME_MAX))]
        survive: Duration,
    },
}

impl Command {
    /// How long a producer may wait: for an archive that removes a report, or for nodes that confirm a deletion.
    pub(crate) fn more_time(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Forget { .. } => 6,
            Self::Delete { .. } => 3,
            _ => 0,
        })
    }
}

/// Which log filter to change.
#[derive(Debug, clap::Args)]
pub(crate) struct LogFilterArgs {
    /// Name of the process, or its address as shown by `status`
    pub(crate) process: String,
    /// Log level, or levels per module, such as info,consumer=debug
    pub(crate) filter: Filter,
    /// Time after which the previous filter returns, up to 24h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = time(Duration::from_secs(1)..=TIME_MAX))]
    pub(crate) time: Duration,
}

impl Cli {
    /// The command line, whose flags of the cluster are allowed everywhere, and have an environment variable each.
    pub fn definition() -> clap::Command {
        Self::command().mut_args(|argument| {
            let id = argument.get_id().to_string();
            let is_unset = argument.get_default_values() == [""];
            let variable = format!("COOKIESYNC_{}", id.to_uppercase());
            match &*id {
                "completions" | "man" => argument,
                _ => argument
                    .global(true)
                    .env(variable)
                    .hide_default_value(is_unset),
            }
        })
    }
}
