//! What the status page of a producer shows: one sample a second of its log, its edge and its subscribers.
//!
//! All types here are the JSON of `/status.json`: names stay, times are in seconds, sizes in bytes, rates a second and
//! over the last second. Of lists that outsiders can make long only the first are shown.
//!
//! Cost: a sample with 100 subscribers takes less than 0.7 ms of one core's second; who watches gets 26 KB a second, and 211 KB
//! at first. A test that is ignored, `cost_of_a_sample_with_a_hundred_subscribers`, measures it in the dist profile.

mod limits;
mod subscribers;

use std::{cmp::Reverse, sync::Arc};

use runtime::{
    listen,
    status::{
        INTERVAL, StatusSource,
        counted::{Buckets, Count, by_label, whole},
        page::Content,
        quantiles::{Quantiles, Window},
        sample::{self, Head},
        series::{Rate, Series, short},
    },
};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    edge,
    log::{Log, Stats},
    readiness::Readiness,
    shaping::Shaping,
    streams::{in_flight::StreamBudget, subscribers::Subscribers},
};
use limits::Limits;
use subscribers::{Rows, Subscriber, SubscriberHistory};

/// The page.
pub const PAGE: Content = Content {
    name: "producer",
    style: include_str!("status/page.css"),
    body: include_str!("status/page.html"),
    script: include_str!("status/page.js"),
};

/// Most subscribers shown.
pub const SUBSCRIBERS_MAX: usize = 200;

/// Most DSPs shown.
pub const DSPS_MAX: usize = 20;

/// Most limits shown.
pub const LIMITS_MAX: usize = 50;

/// One moment of a producer.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// What every process says of itself.
    #[serde(flatten)]
    pub head: Head,
    /// Sync requests.
    pub edge: Edge,
    /// Connections of each port.
    pub connections: Vec<Connections>,
    /// The log.
    pub log: LogFigures,
    /// Bytes in flight to slow subscribers, beside the log.
    pub pinned_bytes: u64,
    /// Where the worst of them are cut off.
    pub pinned_bytes_max: u64,
    /// How many subscribers there are, those that are remembered included.
    pub subscribers_total: usize,
    /// How many of them have a stream.
    pub subscribers_connected: usize,
    /// The subscribers, by call and name; when there are more than [`SUBSCRIBERS_MAX`], those furthest behind.
    pub subscribers: Vec<Subscriber>,
    /// The DSPs with most cookies.
    pub dsps: Vec<Dsp>,
    /// The limits of DSPs; only when there are any (`--limits`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Sync requests since the start.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Edge {
    /// Cookies accepted.
    pub accepted: u64,
    /// The same, of the last second.
    pub accepted_per_second: f64,
    /// Requests that left nothing in the log.
    pub refused: u64,
    /// The same, of the last second.
    pub refused_per_second: f64,
    /// Requests by outcome, those that happened.
    pub outcomes: Vec<Count>,
    /// Seconds a request takes, of the last ten seconds, if there was one.
    pub latency_seconds: Option<Quantiles>,
}

/// Connections of one port.
#[derive(Debug, Clone, Serialize)]
pub struct Connections {
    /// `http`, `grpc` or `admin`.
    pub port: &'static str,
    /// Open now.
    pub open: u64,
    /// Accepted since the start.
    pub accepted: u64,
    /// Cut off since the start, by reason, those that happened.
    pub cut: Vec<Count>,
}

/// What the log holds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogFigures {
    /// Bytes held.
    pub bytes: u64,
    /// Most bytes held.
    pub bytes_max: u64,
    /// Sealed cookies held.
    pub cookies: u64,
    /// Cookies appended since the start.
    pub appended: u64,
    /// Seconds since its oldest chunk was opened: how long a subscriber may be away and miss nothing.
    pub reach_seconds: f64,
    /// Which epoch of the producer its sequences are of.
    pub epoch: u64,
    /// The sequence of the newest sealed cookie.
    pub newest_sequence: u64,
}

/// What one DSP sent since the start.
#[derive(Debug, Clone, Serialize)]
pub struct Dsp {
    /// Its number, or what stands for the rest.
    pub dsp: String,
    /// Cookies accepted.
    pub accepted: u64,
    /// Everything else.
    pub refused: u64,
}

/// The last five minutes, one value for each sample, the oldest first.
#[derive(Debug, Clone, Serialize)]
struct History<'a> {
    /// Seconds from one value to the next.
    interval_seconds: f64,
    /// Cookies accepted a second.
    accepted_per_second: &'a Series,
    /// How far behind subscribers were; of those shown.
    subscribers: Vec<SubscriberHistory<'a>>,
}

/// Where the figures come from.
pub struct Sources {
    /// Its name.
    pub name: String,
    /// The log.
    pub log: Log,
    /// Most bytes that holds.
    pub log_bytes_max: usize,
    /// Who subscribes.
    pub subscribers: Subscribers,
    /// What the edge counts.
    pub edge: edge::Metrics,
    /// What is counted of each port's connections, by the port's name.
    pub connections: [(&'static str, listen::Metrics); 3],
    /// What streams have in flight.
    pub in_flight: StreamBudget,
    /// The limits of DSPs, if there are any.
    pub shaping: Option<Shaping>,
    /// Whether it works.
    pub readiness: Arc<Readiness>,
}

/// Takes the samples of one producer.
pub struct ProducerStatus {
    sources: Sources,
    started: Instant,
    accepted: Rate,
    refused: Rate,
    latency: Window,
    rows: Rows,
    limits: limits::Rows,
    accepted_per_second: Series,
    newest: Option<Status>,
}

impl ProducerStatus {
    /// Nothing sampled yet; the uptime counts from now.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            started: Instant::now(),
            accepted: Rate::default(),
            refused: Rate::default(),
            latency: Window::default(),
            rows: Rows::default(),
            limits: limits::Rows::default(),
            accepted_per_second: Series::default(),
            newest: None,
        }
    }

    fn edge(&mut self, now: Instant) -> Edge {
        let metrics = &self.sources.edge;
        let outcomes = by_frequency(by_label(&metrics.requests));
        let accepted = outcomes.iter().find(|it| it.what == edge::ACCEPTED);
        let accepted = accepted.map_or(0, |it| it.count);
        let all: u64 = outcomes.iter().map(|it| it.count).sum();
        let refused = all - accepted;
        Edge {
            accepted,
            accepted_per_second: self.accepted.look(accepted, now),
            refused,
            refused_per_second: self.refused.look(refused, now),
            outcomes,
            latency_seconds: self.latency.look(Buckets::of(&metrics.seconds)),
        }
    }

    fn connections(&self) -> Vec<Connections> {
        let ports = self.sources.connections.iter();
        let ports = ports.map(|(port, metrics)| Connections {
            port,
            open: whole(metrics.open()),
            accepted: metrics.accepted().get(),
            cut: by_frequency(by_label(metrics.cut_off())),
        });
        ports.collect()
    }

    fn log(&self, stats: &Stats) -> LogFigures {
        LogFigures {
            bytes: stats.bytes as u64,
            bytes_max: self.sources.log_bytes_max as u64,
            cookies: stats.span.next - stats.span.oldest,
            appended: stats.appended,
            reach_seconds: short(stats.retained.as_secs_f64()),
            epoch: self.sources.log.epoch(),
            newest_sequence: stats.span.next - 1,
        }
    }
}

impl StatusSource for ProducerStatus {
    fn sample(&mut self, now: Instant) {
        let queues = self.sources.subscribers.snapshot();
        let stats = self.sources.log.stats();
        let positions = queues.iter().map(|queue| queue.position);
        let ages = self.sources.log.ages(positions);
        let readiness = &self.sources.readiness;
        let head = Head::now(
            "producer",
            &self.sources.name,
            now - self.started,
            &readiness.parts(),
            readiness.is_draining(),
        );
        let subscribers_total = queues.len();
        let connected = queues.iter().filter(|queue| queue.connected).count();
        let subscribers = self.rows.sample(queues, &ages, &stats, now);
        let edge = self.edge(now);
        self.accepted_per_second.push(edge.accepted_per_second);
        let shaping = self.sources.shaping.as_ref();
        let limits = shaping.map(|shaping| self.limits.sample(shaping, now));
        self.newest = Some(Status {
            head,
            edge,
            connections: self.connections(),
            log: self.log(&stats),
            pinned_bytes: self.sources.in_flight.bytes(),
            pinned_bytes_max: self.sources.in_flight.bytes_max(),
            subscribers_total,
            subscribers_connected: connected,
            subscribers,
            dsps: dsps(self.sources.edge.dsps.requests()),
            limits,
        });
    }

    fn json(&self, with_history: bool) -> serde_json::Result<Vec<u8>> {
        let status = self.newest.as_ref();
        let history = with_history.then(|| History {
            interval_seconds: INTERVAL.as_secs_f64(),
            accepted_per_second: &self.accepted_per_second,
            subscribers: status
                .map_or_else(Vec::new, |status| self.rows.history(&status.subscribers)),
        });
        sample::json(status, history)
    }
}

/// What is counted by DSP, most cookies first.
fn dsps(mut requests: Vec<(String, u64, u64)>) -> Vec<Dsp> {
    requests.sort_by(
        |(a, accepted, refused), (b, other_accepted, other_refused)| {
            let most = (other_accepted + other_refused).cmp(&(accepted + refused));
            most.then_with(|| a.cmp(b))
        },
    );
    requests.truncate(DSPS_MAX);
    let dsps = requests.into_iter().map(|(dsp, accepted, refused)| Dsp {
        dsp,
        accepted,
        refused,
    });
    dsps.collect()
}

/// Most frequent first; those of the same count stay in their order.
fn by_frequency(mut counts: Vec<Count>) -> Vec<Count> {
    counts.sort_by_key(|it| Reverse(it.count));
    counts
}

#[cfg(test)]
mod tests;
