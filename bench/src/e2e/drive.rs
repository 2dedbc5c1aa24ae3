//! The one place that knows the load: how it is asked for, and what it says of itself afterwards.

use std::num::{NonZeroU64, NonZeroUsize};

use anyhow::{Context, Result};
use clap::Args;
use http::Uri;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    load::{self, Bottleneck, History, Plan, RequestCounts},
    report::Percentiles,
    traffic::Traffic,
    values::parse_share,
    verify::Source,
};

/// Users among whom syncs are drawn: with 20 DSPs twenty million pairs.
const USERS_DEFAULT: &str = "1000000";

/// What is sent.
#[derive(Debug, Clone, Args)]
pub struct DriveArgs {
    /// Number of connections, spread over the producers.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Draw the users from this many distinct ids.
    #[arg(long, default_value = USERS_DEFAULT)]
    pub users: NonZeroU64,
    /// Share of the requests that repeat a user and DSP, 0 to 1, whose buyer uid differs from the one before.
    #[arg(long, default_value_t = 0.1, value_parser = parse_share, value_name = "SHARE")]
    pub repeat_changed: f64,
    /// Seed of the cookies and of everything else that is drawn [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
}

/// What a load saw.
#[derive(Default)]
pub struct LoadResult {
    /// How long it lasted.
    pub seconds: f64,
    /// What became of its requests.
    pub counts: RequestCounts,
    /// From the intended time to the answer, in microseconds.
    pub latency: Option<Percentiles>,
    /// Why the generator was the limit, if it was.
    pub limit: Option<String>,
    /// What was sent on each connection, for the verification.
    pub sources: Vec<Source>,
}

impl DriveArgs {
    /// A load with this seed on all producers of `cluster`; the caller sets its rate and how long it lasts.
    ///
    /// # Errors
    /// When an address of the cluster is not a URL.
    pub fn plan(&self, seed: u64, cluster: &Cluster) -> Result<Plan> {
        let traffic = Traffic::new(seed, Some(self.users));
        let producers = cluster.producers.iter();
        let urls = producers.map(|producer| format!("http://{}/", producer.http).parse());
        let urls: Result<Vec<Uri>, _> = urls.collect();
        // Fewer would leave out a producer.
        let connections_min = NonZeroUsize::new(cluster.producers.len());
        Ok(Plan {
            urls: urls.context("an address of ours is not a URL")?,
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

/// Drives to the end, or until `stop`.
pub(super) async fn drive(plan: Plan, stop: CancellationToken) -> Result<LoadResult> {
    let outcome = load::run(&plan, &stop).await?;
    let source = |history: History| {
        let index = history.connection() - plan.first_connection;
        Source {
            traffic: plan.traffic.clone(),
            connection: history.connection(),
            producer: usize::try_from(index).unwrap_or(0) % plan.urls.len(),
            requests: Box::new(history),
        }
    };
    Ok(LoadResult {
        seconds: outcome.seconds,
        counts: outcome.counts,
        latency: outcome.latency_micros,
        limit: (outcome.generator.limited_by == Bottleneck::Generator)
            .then_some(outcome.generator.why),
        sources: outcome.histories.into_iter().map(source).collect(),
    })
}
