//! What the status page of a consumer shows: one sample a second of its producers, its ledger and its store.
//!
//! All types here are the JSON of `/status.json`: names stay, times are in seconds, sizes in bytes, rates a second and
//! over the last second, quantiles over the last ten.
//!
//! What it costs is said at the producer's, which has more to show.

mod cookies;
mod night;

use std::{net::SocketAddr, sync::Arc};

use runtime::{
    ready::{self, Part},
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
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, StoreConfig},
    health::Health,
    maintenance::Schedule,
    metrics::Metrics,
    producers::Snapshot,
};
pub use cookies::{Ledger, Restarts};
pub use night::{Night, NightWindow, Sweep};

/// The page.
pub const PAGE: Content = Content {
    name: "consumer",
    style: include_str!("status/page.css"),
    body: include_str!("status/page.html"),
    script: include_str!("status/page.js"),
};

/// Most addresses of producers shown.
pub const PRODUCERS_MAX: usize = 200;

/// One moment of a consumer.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// What every process says of itself.
    #[serde(flatten)]
    pub head: Head,
    /// How many addresses of producers are subscribed to.
    pub producers_total: usize,
    /// How many of them have a stream.
    pub producers_connected: usize,
    /// These, by address.
    pub producers: Vec<Producer>,
    /// Cookies received, of the last second.
    pub received_per_second: f64,
    /// Cookies written, of the last second.
    pub written_per_second: f64,
    /// From accepted at the edge to received here.
    pub received_seconds: Option<Quantiles>,
    /// From accepted at the edge to durable in the store.
    pub stored_seconds: Option<Quantiles>,
    /// Bytes received and not yet part of a batch.
    pub buffer_bytes: u64,
    /// Where reading stops.
    pub buffer_bytes_max: u64,
    /// What is written at once.
    pub batches: Batches,
    /// Where it is written.
    pub store: Store,
    /// What became of every cookie received.
    pub ledger: Ledger,
    /// Cookies a producer had and this consumer will not get, by reason, those that happened.
    pub lost: Vec<Count>,
    /// What is known of the ends of producers' epochs.
    pub lives: Restarts,
    /// When what is expired is deleted, and space given back.
    pub night: Night,
}

/// One address of a producer.
#[derive(Debug, Clone, Serialize)]
pub struct Producer {
    /// The address.
    pub address: SocketAddr,
    /// The setting that stands for it.
    pub origin: String,
    /// The id of the producer that has or had a stream here.
    pub producer: Option<String>,
    /// Whether a stream is open.
    pub connected: bool,
    /// Why not, if an attempt failed.
    pub why: Option<String>,
    /// The epoch of the producer that its sequences are of.
    pub epoch: u64,
    /// The newest sequence of its producer that was received, from whichever address, or declared lost.
    pub received_sequence: u64,
    /// The newest sequence of this epoch that is durable: the cursor. None before the first.
    pub stored_sequence: Option<u64>,
    /// Cookies that the producer is known to have and that are not durable here: `consumer_producer_lag_cookies`.
    pub lag_cookies: u64,
    /// How old the newest cookies were when they came.
    pub newest_age_seconds: Option<f64>,
    /// How long ago anything came; heartbeats count.
    pub silent_seconds: Option<f64>,
}

/// What is written at once.
#[derive(Debug, Clone, Serialize)]
pub struct Batches {
    /// Batches made durable since the start.
    pub count: u64,
    /// The same, of the last second.
    pub per_second: f64,
    /// Cookies of one, of the last ten seconds.
    pub cookies: Option<Quantiles>,
}

/// The store.
#[derive(Debug, Clone, Serialize)]
pub struct Store {
    /// `embedded`, `mongodb` or `none`.
    pub kind: &'static str,
    /// Which, without secrets.
    pub target: String,
    /// Whether it works.
    pub up: bool,
    /// Why not.
    pub why: Option<String>,
    /// Seconds until it has made a batch durable.
    pub write_seconds: Option<Quantiles>,
    /// Failed attempts to use it.
    pub errors: u64,
}

/// The last five minutes, one value for each sample, the oldest first.
#[derive(Debug, Clone, Serialize)]
struct History<'a> {
    /// Seconds from one value to the next.
    interval_seconds: f64,
    /// Cookies received a second.
    received_per_second: &'a Series,
    /// Cookies written a second.
    written_per_second: &'a Series,
}

/// Where the figures come from.
#[derive(Debug)]
pub struct Sources {
    name: String,
    store: StoreConfig,
    schedule: watch::Receiver<Schedule>,
    health: Arc<Health>,
    metrics: Metrics,
    draining: CancellationToken,
}

impl Sources {
    /// Those of a consumer with these settings, and the hours that hold now.
    #[must_use]
    pub fn of(
        config: &Config,
        schedule: watch::Receiver<Schedule>,
        metrics: &Metrics,
        health: &Arc<Health>,
        draining: &CancellationToken,
    ) -> Self {
        Self {
            name: config.reading.name.clone(),
            store: config.storing.store.clone(),
            schedule,
            health: Arc::clone(health),
            metrics: metrics.clone(),
            draining: draining.clone(),
        }
    }
}

/// How each part of a consumer is.
#[must_use]
pub fn parts(health: &Health, draining: &CancellationToken) -> Vec<Part> {
    let mut parts = vec![ready::drain(draining.is_cancelled())];
    parts.extend(health.parts());
    parts
}

/// Takes the samples of one consumer.
#[derive(Debug)]
pub struct ConsumerStatus {
    sources: Sources,
    started: Instant,
    received: Rate,
    written: Rate,
    batches: Rate,
    received_seconds: Window,
    stored_seconds: Window,
    write_seconds: Window,
    batch_cookies: Window,
    received_per_second: Series,
    written_per_second: Series,
    newest: Option<Status>,
}

impl ConsumerStatus {
    /// Nothing sampled yet; the uptime counts from now.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            started: Instant::now(),
            received: Rate::default(),
            written: Rate::default(),
            batches: Rate::default(),
            received_seconds: Window::default(),
            stored_seconds: Window::default(),
            write_seconds: Window::default(),
            batch_cookies: Window::default(),
            received_per_second: Series::default(),
            written_per_second: Series::default(),
            newest: None,
        }
    }

    fn producers(snapshot: &Snapshot) -> Vec<Producer> {
        let seconds = |time: std::time::Duration| short(time.as_secs_f64());
        let shown = snapshot.addresses.iter().take(PRODUCERS_MAX);
        let rows = shown.map(|it| {
            let id = it.producer.as_deref();
            let producer = id.and_then(|id| snapshot.producer(id));
            let received = producer.and_then(|producer| producer.received.as_ref());
            let (epoch, received_sequence) = received.map_or((0, 0), |c| (c.epoch, c.sequence));
            Producer {
                address: it.address,
                origin: it.origin.to_string(),
                producer: id.map(str::to_owned),
                connected: it.is_connected,
                why: it.why_not.as_deref().map(str::to_owned),
                epoch,
                received_sequence,
                stored_sequence: producer.and_then(|producer| producer.durable_in(epoch)),
                lag_cookies: producer.and_then(|it| it.lag_cookies).unwrap_or(0),
                newest_age_seconds: it.age.map(seconds),
                silent_seconds: it.silent.map(seconds),
            }
        });
        rows.collect()
    }

    fn batches(&mut self, now: Instant) -> Batches {
        let sink = &self.sources.metrics.sink;
        let count = sink.batches.get();
        Batches {
            count,
            per_second: self.batches.look(count, now),
            cookies: self.batch_cookies.look(Buckets::of(&sink.batch_cookies)),
        }
    }

    fn store(&mut self) -> Store {
        let sink = &self.sources.metrics.sink;
        let why = self.sources.health.store_down();
        Store {
            kind: match self.sources.store {
                StoreConfig::Embedded(_) => "embedded",
                StoreConfig::Mongodb(_) => "mongodb",
                StoreConfig::Discard => "none",
            },
            target: self.sources.store.to_string(),
            up: why.is_none(),
            why,
            write_seconds: self.write_seconds.look(Buckets::of(&sink.flush_seconds)),
            errors: sink.store_errors.get(),
        }
    }
}

impl StatusSource for ConsumerStatus {
    fn sample(&mut self, now: Instant) {
        let Metrics {
            subscription,
            sink,
            maintenance,
            ..
        } = self.sources.metrics.clone();
        let head = Head::now(
            "consumer",
            &self.sources.name,
            now - self.started,
            &parts(&self.sources.health, &self.sources.draining),
            self.sources.draining.is_cancelled(),
        );
        let snapshot = self.sources.health.producers().snapshot();
        let addresses = &snapshot.addresses;
        let figures = sink.ledger.figures();
        let received_per_second = self.received.look(figures.received, now);
        let written_per_second = self.written.look(figures.written, now);
        self.received_per_second.push(received_per_second);
        self.written_per_second.push(written_per_second);
        self.newest = Some(Status {
            head,
            producers_total: addresses.len(),
            producers_connected: addresses.iter().filter(|it| it.is_connected).count(),
            producers: Self::producers(&snapshot),
            received_per_second,
            written_per_second,
            received_seconds: self
                .received_seconds
                .look(Buckets::of(&subscription.received_seconds)),
            stored_seconds: self.stored_seconds.look(Buckets::of(&sink.stored_seconds)),
            buffer_bytes: whole(&subscription.buffer_bytes),
            buffer_bytes_max: whole(&subscription.buffer_bytes_max),
            batches: self.batches(now),
            store: self.store(),
            ledger: figures.into(),
            lost: by_label(&subscription.lost),
            lives: Restarts::of(&subscription),
            night: Night::now(&self.sources.schedule.borrow(), &maintenance),
        });
    }

    fn json(&self, with_history: bool) -> serde_json::Result<Vec<u8>> {
        let history = with_history.then(|| History {
            interval_seconds: INTERVAL.as_secs_f64(),
            received_per_second: &self.received_per_second,
            written_per_second: &self.written_per_second,
        });
        sample::json(self.newest.as_ref(), history)
    }
}

#[cfg(test)]
mod tests;
