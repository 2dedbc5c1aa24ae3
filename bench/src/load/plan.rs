//! What a load consists of, and what each connection is to do in it.

use std::{
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::Uri;
use tokio::net::lookup_host;

use super::{
    recorder::nanos,
    request::Template,
    schedule::{self, Schedule},
};
use crate::traffic::Traffic;

/// Requests without an answer over all connections with a rate, and at least on each, unless told otherwise. So the sender
/// goes on beside a server that stands still for 5 s at 200,000 requests a second, and needs at most 32 MiB for it,
/// or 128 KiB for each of more than 256 connections.
const OPEN_LOOP_OUTSTANDING: usize = 1 << 20;
const OPEN_LOOP_PIPELINE_MIN: usize = 4_096;

/// What a load consists of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where to send the requests: `http://`. Connection i goes to the i-th of them, and over again.
    pub urls: Vec<Uri>,
    /// Number of connections.
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection. Without it: 1 without a rate; with one,
    /// 1,048,576 over all connections or 4,096 on each, whichever is more, so that the rate is kept beside a server that
    /// stands still.
    pub pipeline: Option<NonZeroUsize>,
    /// How long to send; without it and without `requests`, until it is stopped.
    pub duration: Option<Duration>,
    /// How many requests to send, over all connections.
    pub requests: Option<u64>,
    /// Requests a second, over all connections, that leave on time; without it, as fast as answers come.
    pub rate: Option<NonZeroU64>,
    /// Threads to send from.
    pub threads: NonZeroUsize,
    /// Makes the cookies: connection `i` sends numbers 0, 1, … of connection `first_connection + i`.
    pub traffic: Traffic,
    /// The traffic's stream of the first connection: another for each load, and two loads of one seed send other cookies
    /// of the same users.
    pub first_connection: u64,
    /// Keep the fate and the time of each request in [`LoadOutcome::histories`](super::Outcome::histories): 32 bytes for each 10 ms
    /// on each connection. Without it, they tell only how many were sent.
    pub keeps_history: bool,
}

/// What one connection is to do.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// Its stream among all of the traffic.
    pub(super) connection: u64,
    pub(super) address: SocketAddr,
    pub(super) template: Arc<Template>,
    pub(super) traffic: Traffic,
    /// Most requests without an answer.
    pub(super) pipeline: u64,
    /// When requests leave; without one, as soon as the pipeline allows.
    pub(super) schedule: Option<Schedule>,
    /// How many requests to send; `u64::MAX` for no end.
    pub(super) requests: u64,
    /// Only their number ends it, and no time.
    pub(super) is_counted: bool,
    /// The fate of each request is kept, not only their number.
    pub(super) keeps_history: bool,
}

impl Task {
    /// Appends request `number`.
    #[inline]
    pub(super) fn put(&self, buffer: &mut Vec<u8>, number: u64) {
        let cookie = self.traffic.cookie(self.connection, number);
        self.template.put(buffer, &cookie);
    }
}

impl Plan {
    /// Two threads, or one on a single core: enough to outrun a producer on the same machine.
    #[must_use]
    pub fn default_threads() -> NonZeroUsize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new(cores.min(2)).unwrap_or(NonZeroUsize::MIN)
    }

    /// A plan with one connection, no pipelining, no rate and no end.
    #[must_use]
    pub fn new(url: Uri, traffic: Traffic) -> Self {
        Self {
            urls: vec![url],
            connections: NonZeroUsize::MIN,
            pipeline: None,
            duration: None,
            requests: None,
            rate: None,
            threads: Self::default_threads(),
            traffic,
            first_connection: 0,
            keeps_history: true,
        }
    }

    /// The same at a constant rate, over all connections.
    #[must_use]
    pub fn rate(self, requests_per_second: NonZeroU64) -> Self {
        Self {
            rate: Some(requests_per_second),
            ..self
        }
    }

    /// Threads that have a connection.
    pub(super) fn threads_used(&self) -> usize {
        self.threads.min(self.connections).get()
    }

    /// The most requests without an answer on each connection.
    #[must_use]
    pub fn pipeline_max(&self) -> usize {
        match self.pipeline {
            Some(pipeline) => pipeline.get(),
            None if self.rate.is_some() => {
                (OPEN_LOOP_OUTSTANDING / self.connections).max(OPEN_LOOP_PIPELINE_MIN)
            }
            None => 1,
        }
    }

    /// When the last request is due, at the latest; `None` when nobody knows, as without a rate.
    pub(super) fn last_due(&self) -> Option<Duration> {
        let due = self.rate.zip(self.total().checked_sub(1));
        let due = due.map(|(rate, last)| schedule::intended_nanos(rate, last));
        let due = due.filter(|nanos| *nanos < u64::MAX);
        let due = due.map(Duration::from_nanos);
        [due, self.duration].into_iter().flatten().min()
    }

    /// True when a number of requests ends it, and no time.
    pub(super) fn ends_by_count(&self) -> bool {
        self.duration.is_none() && self.requests.is_some()
    }

    /// How many requests to send over all connections; `u64::MAX` for no end.
    fn total(&self) -> u64 {
        let scheduled = self.rate.zip(self.duration);
        let scheduled = scheduled.map(|(rate, end)| schedule::requests_before(rate, nanos(end)));
        let bounds = [self.requests, scheduled];
        bounds.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// How many requests should leave in a second, over all connections; `None` without a rate.
    pub(super) fn intended_within(&self, second: u64) -> Option<u64> {
        let rate = self.rate?;
        let before = |second: u64| {
            schedule::requests_before(rate, second.saturating_mul(1_000_000_000)).min(self.total())
        };
        Some(before(second + 1) - before(second))
    }

    /// The task of each connection.
    pub(super) async fn tasks(&self) -> Result<Vec<Task>> {
        ensure!(
            !self.urls.is_empty(),
            "there is nowhere to send requests to"
        );
        let mut targets = Vec::with_capacity(self.urls.len());
        for url in &self.urls {
            let template = Template::new(url)?;
            targets.push((resolve(&template).await?, Arc::new(template)));
        }
        let connections = self.connections.get() as u64;
        let total = self.total();
        let task = |(index, (address, template)): (u64, &(SocketAddr, Arc<Template>))| Task {
            connection: self.first_connection + index,
            address: *address,
            template: Arc::clone(template),
            traffic: self.traffic.clone(),
            pipeline: self.pipeline_max() as u64,
            schedule: self.rate.map(|rate| Schedule {
                rate,
                connections,
                connection: index,
            }),
            requests: match total {
                u64::MAX => u64::MAX,
                total => total / connections + u64::from(index < total % connections),
            },
            is_counted: self.ends_by_count(),
            keeps_history: self.keeps_history,
        };
        let tasks = (0..connections).zip(targets.iter().cycle());
        Ok(tasks.map(task).collect())
    }
}

async fn resolve(template: &Template) -> Result<SocketAddr> {
    let (host, port) = template.host_and_port();
    lookup_host((host, port))
        .await
        .with_context(|| format!("cannot resolve {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))
}
