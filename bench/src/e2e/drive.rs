//! The load on a cluster: command-line options and results.

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Context, Result};
use clap::Args;
use http::Uri;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    load::{self, History, Plan, RequestCounts},
    report::Percentiles,
    traffic::Traffic,
    values::parse_fraction,
    verify::Source,
};

/// Default number of users: 20 million pairs with 20 DSPs.
const USERS_DEFAULT: &str = "1000000";

/// Options of the load.
#[derive(Debug, Clone, Args)]
pub struct DriveArgs {
    /// Number of connections, spread over all producers.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Number of distinct users.
    #[arg(long, default_value = USERS_DEFAULT)]
    pub users: NonZeroU64,
    /// Fraction (0 to 1) of repeated pairs of user and DSP whose buyer uid differs from the previous one.
    #[arg(long, default_value_t = 0.1, value_parser = parse_fraction, value_name = "FRACTION")]
    pub repeat_changed: f64,
    /// Seed of all random values [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Result of a load.
#[derive(Debug, Clone, Default)]
pub struct LoadResult {
    /// Duration of the load.
    pub seconds: f64,
    /// Outcomes of the requests.
    pub counts: RequestCounts,
    /// Latency from the intended send time, in microseconds.
    pub latency: Option<Percentiles>,
    /// Why the generator was the bottleneck, if it was.
    pub generator_limit: Option<String>,
}

impl DriveArgs {
    /// A load with this seed on all producers of `cluster`. The caller sets rate and duration.
    ///
    /// # Errors
    /// An address of the cluster is not a URL.
    pub fn plan(&self, seed: u64, cluster: &Cluster) -> Result<Plan> {
        let traffic = Traffic::new(seed, Some(self.users));
        let producers = cluster.producers.iter();
        let urls = producers.map(|producer| format!("http://{}/", producer.http).parse());
        let urls: Result<Vec<Uri>, _> = urls.collect();
        // At least one connection per producer.
        let connections_min = NonZeroUsize::new(cluster.producers.len());
        Ok(Plan {
            urls: urls.context("invalid producer address")?,
            connections: self
                .connections
                .max(connections_min.unwrap_or(NonZeroUsize::MIN)),
            ..Plan::new(
                Uri::default(),
                traffic.with_repeats_changed(self.repeat_changed),
            )
        })
    }
}

/// Runs a load to its end, or until `stop`; also returns the requests of each connection, for verification.
pub(super) async fn drive(
    plan: Plan,
    stop: CancellationToken,
) -> Result<(LoadResult, Vec<Source>)> {
    let outcome = load::run(&plan, &stop).await?;
    let generator_limit = outcome.generator_limit();
    let source = |history: History| {
        let index = history.connection() - plan.first_connection;
        Source {
            traffic: plan.traffic.clone(),
            connection: history.connection(),
            producer: usize::try_from(index).unwrap_or(0) % plan.urls.len(),
            requests: Box::new(history),
        }
    };
    let sources = outcome.histories.into_iter().map(source).collect();
    let result = LoadResult {
        seconds: outcome.seconds,
        counts: outcome.counts,
        latency: outcome.latency_micros,
        generator_limit,
    };
    Ok((result, sources))
}
