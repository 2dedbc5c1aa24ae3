//! Command-line options of the load on a cluster.

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Context, Result};
use clap::Args;
use http::Uri;
use testkit::cluster::Cluster;

use crate::{
    load::Plan,
    traffic::{REPEATS_CHANGED, Traffic},
};

/// Default number of users: 20 million pairs with 20 DSPs.
const USERS_DEFAULT: &str = "1000000";

/// Number of connections, spread over all producers; at least one for each.
const CONNECTIONS: NonZeroUsize = NonZeroUsize::new(32).expect("not 0");

/// Options of the load.
#[derive(Debug, Clone, Args)]
pub struct DriveArgs {
    /// Number of distinct users. One in ten repeated pairs of user and DSP has a new buyer uid.
    #[arg(long, default_value = USERS_DEFAULT)]
    pub users: NonZeroU64,
    /// Seed of all random values [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
}

impl DriveArgs {
    /// A load with this seed on all producers of `cluster`. The caller sets rate and duration.
    ///
    /// # Errors
    /// An address of the cluster is not a URL.
    pub fn plan(&self, seed: u64, cluster: &Cluster) -> Result<Plan> {
        let producers = cluster.producers.iter();
        let urls = producers.map(|producer| format!("http://{}/", producer.http).parse());
        let urls: Result<Vec<Uri>, _> = urls.collect();
        let traffic = Traffic::new(seed, Some(self.users)).with_repeats_changed(REPEATS_CHANGED);
        let connections_min = NonZeroUsize::new(cluster.producers.len());
        Ok(Plan {
            urls: urls.context("invalid producer address")?,
            connections: connections_min.map_or(CONNECTIONS, |min| min.max(CONNECTIONS)),
            ..Plan::new(Uri::default(), traffic)
        })
    }

    /// The seed, or a random one.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)))
    }
}
