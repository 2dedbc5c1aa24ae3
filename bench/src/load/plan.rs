//! The plan of a load, and the task of each connection.

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
    hostile::HostileMix,
    lookups::Lookups,
    recorder::nanos,
    request::{Parts, Template},
    response::{self, MalformedResponse, Response},
    schedule::{self, Schedule},
};
use crate::traffic::Traffic;

/// Default limits of outstanding requests with a rate: over all connections, and the minimum per connection. The sender can
/// keep 200,000 requests per second while the server stalls for 5 s. This takes up to 32 MiB, or 128 KiB per connection with
/// more than 256 connections.
const OPEN_LOOP_OUTSTANDING: usize = 1 << 20;
const OPEN_LOOP_PIPELINE_MIN: usize = 4_096;

/// Plan of a load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `http://` URLs. Connections are assigned to them round-robin.
    pub urls: Vec<Uri>,
    /// Number of connections.
    pub connections: NonZeroUsize,
    /// Maximum outstanding requests per connection. Default: 1 without a rate; with a rate, 1,048,576 over all connections
    /// or 4,096 per connection, whichever is more. A stalled server then does not stop the sender.
    pub pipeline: Option<NonZeroUsize>,
    /// Duration; without it and without `requests`, the load runs until it is stopped.
    pub duration: Option<Duration>,
    /// Number of requests over all connections.
    pub requests: Option<u64>,
    /// Requests per second over all connections, as an open loop; `None` sends when responses arrive.
    pub rate: Option<NonZeroU64>,
    /// Number of sending threads.
    pub threads: NonZeroUsize,
    /// Generator of the cookies: connection `i` sends numbers 0, 1, … of connection `first_connection + i`.
    pub traffic: Traffic,
    /// Connection number of the first connection in `traffic`. Loads with one seed but different numbers send different
    /// cookies of the same users.
    pub first_connection: u64,
    /// Send hostile requests instead of the cookies.
    pub hostile: bool,
    /// Send requests for sync plans instead of the cookies.
    pub plans: bool,
    /// Send lookups instead of the cookies. Requires a pipeline of 1.
    pub lookups: Option<Lookups>,
    /// Keep outcome and times of each request in [`LoadOutcome::histories`](super::LoadOutcome::histories), at 32 bytes per
    /// 10 ms and connection. Otherwise they only count sent requests.
    pub keeps_history: bool,
}

/// Task of one connection.
#[derive(Debug, Clone)]
pub(super) struct Task {
    /// Connection number in `traffic`.
    pub(super) connection: u64,
    pub(super) address: SocketAddr,
    pub(super) template: Arc<Template>,
    pub(super) traffic: Traffic,
    /// Maximum outstanding requests.
    pub(super) pipeline: u64,
    /// Intended send times; `None` sends when responses arrive.
    pub(super) schedule: Option<Schedule>,
    /// Number of requests; `u64::MAX` if unlimited.
    pub(super) requests: u64,
    /// Requests in place of the cookies.
    pub(super) hostile: Option<Arc<HostileMix>>,
    /// Requests for sync plans in place of the cookies.
    pub(super) plans: bool,
    /// Lookups in place of the cookies.
    pub(super) lookups: Option<Lookups>,
    /// Whether outcome and times of each request are kept.
    pub(super) keeps_history: bool,
}

impl Task {
    /// Appends request `number`.
    #[inline]
    pub(super) fn put(&mut self, buffer: &mut Vec<u8>, number: u64) {
        if let Some(lookups) = &mut self.lookups {
            return lookups.put(buffer, self.connection, number);
        }
        let cookie = self.traffic.cookie(self.connection, number);
        if self.plans {
            return self.template.put_plan(buffer, cookie.user_id_bytes());
        }
        let parts = match &self.hostile {
            None => Parts::from(&cookie),
            Some(mix) => mix.parts(self.connection, number, &cookie),
        };
        self.template.put(buffer, &parts);
    }

    /// Parses the response at the start of `bytes`; `None` if it is incomplete.
    pub(super) fn parse(&mut self, bytes: &[u8]) -> Result<Option<Response>, MalformedResponse> {
        match &mut self.lookups {
            None => response::parse(bytes),
            Some(lookups) => lookups.parse(bytes),
        }
    }

    /// Status of the correct response to request `number`.
    pub(super) fn expected_status(&self, number: u64) -> u16 {
        let hostile = self.hostile.as_ref();
        hostile.map_or(200, |mix| mix.status(self.connection, number))
    }
}

impl Plan {
    /// Two threads, or one on a single core: enough to saturate a producer on the same machine.
    pub fn default_threads() -> NonZeroUsize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NonZeroUsize::new(cores.min(2)).unwrap_or(NonZeroUsize::MIN)
    }

    /// A plan with one connection, without pipelining, rate or end.
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
            hostile: false,
            plans: false,
            lookups: None,
            keeps_history: true,
        }
    }

    /// Sets a constant rate over all connections.
    pub fn rate(self, requests_per_second: NonZeroU64) -> Self {
        Self {
            rate: Some(requests_per_second),
            ..self
        }
    }

    /// Maximum outstanding requests per connection.
    pub fn pipeline_max(&self) -> usize {
        match self.pipeline {
            Some(pipeline) => pipeline.get(),
            None if self.rate.is_some() => {
                (OPEN_LOOP_OUTSTANDING / self.connections).max(OPEN_LOOP_PIPELINE_MIN)
            }
            None => 1,
        }
    }

    /// Upper bound of the due time of the last request; `None` if unknown, as without a rate.
    pub(super) fn last_due(&self) -> Option<Duration> {
        let due = self.rate.zip(self.total().checked_sub(1));
        let due = due.map(|(rate, last)| schedule::intended_nanos(rate, last));
        let due = due.filter(|nanos| *nanos < u64::MAX);
        let due = due.map(Duration::from_nanos);
        [due, self.duration].into_iter().flatten().min()
    }

    /// Number of requests over all connections; `u64::MAX` if unlimited.
    fn total(&self) -> u64 {
        let scheduled = self.rate.zip(self.duration);
        let scheduled = scheduled.map(|(rate, end)| schedule::requests_before(rate, nanos(end)));
        let bounds = [self.requests, scheduled];
        bounds.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Tasks of all connections.
    pub(super) async fn tasks(&self) -> Result<Vec<Task>> {
        ensure!(!self.urls.is_empty(), "no URL to send requests to");
        let mut targets = Vec::with_capacity(self.urls.len());
        for url in &self.urls {
            let template = Template::new(url)?;
            targets.push((resolve(&template).await?, Arc::new(template)));
        }
        let connections = self.connections.get() as u64;
        let total = self.total();
        let hostile = self.hostile.then(|| Arc::new(HostileMix::new()));
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
            hostile: hostile.clone(),
            plans: self.plans,
            lookups: self.lookups.clone(),
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
        .with_context(|| format!("failed to resolve {host}"))?
        .next()
        .with_context(|| format!("{host} does not resolve to an address"))
}
