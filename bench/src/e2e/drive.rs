//! The one place that knows the load: how it is asked for, and what it says of itself afterwards.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use http::Uri;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    load::{self, Fate, History, Limit, Plan, parse_share},
    report::Percentiles,
    traffic::Traffic,
    verify::{Requests, Sending, Source},
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

/// One constant load.
#[derive(Debug, Clone)]
pub struct Drive {
    /// Where requests go: the edges of the producers.
    pub urls: Vec<String>,
    /// Connections, spread over the producers.
    pub connections: NonZeroUsize,
    /// What is sent.
    pub traffic: Traffic,
    /// Requests a second.
    pub rate: NonZeroU64,
    /// How long they are sent.
    pub lasts: Duration,
    /// Of the connections, in the traffic: each load of a run has its own.
    pub first_connection: u64,
}

/// What a load saw.
#[derive(Default)]
pub struct Driven {
    /// How long it lasted.
    pub seconds: f64,
    /// Requests that left.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Answered otherwise, or with what is not an answer.
    pub refused: u64,
    /// Without an answer: what became of them is unknown.
    pub unanswered: u64,
    /// What should have left and did not.
    pub unsent: u64,
    /// From the intended time to the answer, in microseconds.
    pub latency: Option<Percentiles>,
    /// Why the generator was the limit, if it was.
    pub limit: Option<String>,
    /// What was sent on each connection, for the verification.
    pub sources: Vec<Source>,
}

impl Drive {
    /// A load of what `args` and `seed` say on all producers of `cluster`; the caller sets its rate and how long it lasts.
    #[must_use]
    pub fn new(args: &DriveArgs, seed: u64, cluster: &Cluster) -> Self {
        let producers = cluster.producers.iter();
        Self {
            urls: producers
                .map(|producer| format!("http://{}/", producer.http))
                .collect(),
            // Fewer would leave out a producer.
            connections: args
                .connections
                .max(NonZeroUsize::new(cluster.producers.len()).unwrap_or(NonZeroUsize::MIN)),
            traffic: Traffic::new(seed, Some(args.users)).with_repeats_changed(args.repeat_changed),
            rate: NonZeroU64::MIN,
            lasts: Duration::ZERO,
            first_connection: 0,
        }
    }

    /// Drives to the end, or until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<Driven> {
        let mut plan = Plan::new(Uri::default(), self.traffic.clone());
        let urls = self.urls.iter().map(|url| url.parse());
        plan.urls = urls
            .collect::<Result<_, _>>()
            .context("an address of ours is not a URL")?;
        plan.connections = self.connections;
        plan.duration = Some(self.lasts);
        plan.rate = Some(self.rate);
        plan.first_connection = self.first_connection;
        let outcome = load::run(&plan, &stop).await?;
        let first = self.first_connection;
        let source = |history: History| {
            let index = usize::try_from(history.connection() - first).unwrap_or(0);
            Source {
                traffic: self.traffic.clone(),
                connection: history.connection(),
                producer: index % self.urls.len(),
                requests: Box::new(history),
            }
        };
        Ok(Driven {
            seconds: outcome.seconds,
            sent: outcome.sent,
            accepted: outcome.accepted,
            refused: outcome.errors.total - outcome.errors.unanswered,
            unanswered: outcome.errors.unanswered,
            unsent: outcome.unsent,
            latency: outcome.latency_micros,
            limit: (outcome.generator.limited_by == Limit::Generator)
                .then_some(outcome.generator.why),
            sources: outcome.histories.into_iter().map(source).collect(),
        })
    }
}

impl Requests for History {
    fn sent(&self) -> u64 {
        self.sent()
    }
    fn fate(&self, number: u64) -> Sending {
        match self.fate(number) {
            Fate::Accepted => Sending::Accepted,
            Fate::Unknown => Sending::Unknown,
            Fate::Refused | Fate::NotSent => Sending::Not,
        }
    }
    fn sent_after(&self, number: u64) -> Instant {
        self.sent_after(number)
    }
    fn answered_before(&self, number: u64) -> Instant {
        self.answered_before(number)
    }
}
