//! Metrics of the log and of the subscribers, read from them when somebody asks.
//!
//! Nothing is updated per cookie for these: the log counts under the lock it holds anyway, a stream counts per
//! chunk, and a subscriber that is forgotten takes its series with it.
//!
//! Of each subscriber the counts of one scrape add up exactly: appended = delivered - undelivered + lost - recovered +
//! queued. For that the queues are read first, and then the log, once.

use std::collections::HashMap;

use cookiesync::process;
use prometheus::{
    IntGauge, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::{self, MetricFamily, MetricType},
};

use crate::{
    log::{Log, Stats},
    streams::subscribers::{Snapshot, Subscribers},
};

/// Registers everything that is not counted by the part it belongs to.
///
/// # Errors
/// When a name is taken.
pub fn register(
    registry: &Registry,
    log: &Log,
    subscribers: &Subscribers,
) -> prometheus::Result<()> {
    registry.register(Box::new(Figures {
        log: log.clone(),
        subscribers: subscribers.clone(),
        desc: Desc::new(
            "producer_cookies_appended_total".to_owned(),
            "The first of the figures read on demand; a collector must name one.".to_owned(),
            Vec::new(),
            HashMap::new(),
        )?,
    }))?;
    let build = IntGaugeVec::new(
        Opts::new("producer_build_info", "Always 1; the labels say what runs."),
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(build))?;
    let started = IntGauge::new(
        "producer_start_unix_seconds",
        "When this process started, in seconds since the Unix epoch.",
    )?;
    started.set(i64::try_from(process::unix_micros() / 1_000_000).unwrap_or(i64::MAX));
    registry.register(Box::new(started))
}

/// Reads the figures when they are collected.
struct Figures {
    log: Log,
    subscribers: Subscribers,
    desc: Desc,
}

impl Collector for Figures {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let queues = self.subscribers.snapshot();
        let stats = self.log.stats();
        let mut families = of_log(&stats);
        families.extend(of_subscribers(&queues, &stats));
        families
    }
}

fn of_log(stats: &Stats) -> Vec<MetricFamily> {
    let counter = |name: &str, help: &str, value: u64| {
        family(name, help, MetricType::COUNTER, vec![sample(&[], value)])
    };
    let gauge = |name: &str, help: &str, value: u64| {
        family(name, help, MetricType::GAUGE, vec![sample(&[], value)])
    };
    vec![
        counter(
            "producer_cookies_appended_total",
            "Cookies in the log since start, which is what clients were told was accepted.",
            stats.appended,
        ),
        counter(
            "producer_log_sealed_bytes_total",
            "Bytes of sealed chunks since start, each counted once.",
            stats.sealed_bytes,
        ),
        family(
            "producer_log_chunks_sealed_total",
            "Chunks sealed since start, because they were full or old.",
            MetricType::COUNTER,
            vec![
                sample(&[("reason", "size")], stats.sealed_by_size),
                sample(&[("reason", "age")], stats.sealed_by_age),
            ],
        ),
        gauge(
            "producer_log_bytes",
            "Bytes the log holds.",
            stats.bytes as u64,
        ),
        gauge(
            "producer_log_chunks",
            "Chunks the log holds.",
            stats.chunks as u64,
        ),
        gauge(
            "producer_log_cookies",
            "Sealed cookies the log holds.",
            stats.span.next - stats.span.oldest,
        ),
        family(
            "producer_log_reach_seconds",
            "Age of the oldest chunk held: how long a subscriber may be away and miss nothing.",
            MetricType::GAUGE,
            vec![Sample {
                labels: Vec::new(),
                value: stats.reach.as_secs_f64(),
            }],
        ),
    ]
}

fn of_subscribers(queues: &[Snapshot], stats: &Stats) -> Vec<MetricFamily> {
    if queues.is_empty() {
        return Vec::new();
    }
    let each = |name: &str, help: &str, kind, value: &dyn Fn(&Snapshot) -> u64| {
        let samples = queues
            .iter()
            .map(|queue| sample(&labels(queue), value(queue)));
        family(name, help, kind, samples.collect())
    };
    let counter = MetricType::COUNTER;
    let gauge = MetricType::GAUGE;
    let lost = queues.iter().flat_map(|queue| {
        let [name, call] = labels(queue);
        [
            sample(
                &[name, call, ("reason", "queue_bound")],
                queue.totals.lost_queue_bound,
            ),
            sample(
                &[name, call, ("reason", "log_moved_on")],
                queue.totals.lost_log_moved_on,
            ),
        ]
    });
    vec![
        each(
            "producer_subscriber_appended_cookies_total",
            "Cookies in the log since the subscriber joined: delivered - undelivered + lost - recovered + queued.",
            counter,
            &|queue| queue.appended(stats.appended),
        ),
        each(
            "producer_subscriber_delivered_cookies_total",
            "Cookies handed to the subscriber's stream, each counted once.",
            counter,
            &|queue| queue.totals.delivered,
        ),
        each(
            "producer_subscriber_redelivered_cookies_total",
            "Cookies handed to the subscriber's stream again after it came back.",
            counter,
            &|queue| queue.totals.redelivered,
        ),
        family(
            "producer_subscriber_lost_cookies_total",
            "Cookies the subscriber will not get, by reason.",
            counter,
            lost.collect(),
        ),
        each(
            "producer_subscriber_undelivered_cookies_total",
            "Cookies counted as delivered that never arrived and are counted as lost since.",
            counter,
            &|queue| queue.totals.undelivered,
        ),
        each(
            "producer_subscriber_recovered_cookies_total",
            "Cookies counted as lost that were delivered after all, to an older cursor.",
            counter,
            &|queue| queue.totals.recovered,
        ),
        each(
            "producer_subscriber_queued_cookies",
            "Cookies in the log, sealed or not, that are neither delivered nor lost yet.",
            gauge,
            &|queue| queue.queued(stats.appended),
        ),
        each(
            "producer_subscriber_sent_bytes_total",
            "Bytes handed to the subscriber's stream.",
            counter,
            &|queue| queue.totals.bytes,
        ),
        each(
            "producer_subscriber_streams_total",
            "Streams the subscriber opened.",
            counter,
            &|queue| queue.totals.streams,
        ),
        each(
            "producer_subscriber_pinned_bytes",
            "Bytes handed to the subscriber's streams that their connections have not let go.",
            gauge,
            &|queue| queue.pinned_bytes,
        ),
        each(
            "producer_subscriber_cut_total",
            "Streams of the subscriber cut off because all streams together held too much.",
            counter,
            &|queue| queue.cuts,
        ),
        each(
            "producer_subscriber_lag_cookies",
            "Sealed cookies the subscriber's stream has not taken yet.",
            gauge,
            &|queue| stats.span.next.saturating_sub(queue.position),
        ),
        each(
            "producer_subscriber_connected",
            "1 while a stream of the subscriber is open.",
            gauge,
            &|queue| u64::from(queue.connected),
        ),
    ]
}

fn labels(queue: &Snapshot) -> [(&'static str, &str); 2] {
    [("subscriber", &queue.name), ("call", queue.call.label())]
}

fn family(name: &str, help: &str, kind: MetricType, samples: Vec<Sample>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(
        samples
            .into_iter()
            .map(|sample| sample.metric(kind))
            .collect(),
    );
    family
}

struct Sample {
    labels: Vec<proto::LabelPair>,
    value: f64,
}

impl Sample {
    fn metric(self, kind: MetricType) -> proto::Metric {
        let mut metric = proto::Metric::default();
        metric.set_label(self.labels);
        if kind == MetricType::GAUGE {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(self.value);
            metric.set_gauge(gauge);
        } else {
            let mut counter = proto::Counter::default();
            counter.set_value(self.value);
            metric.set_counter(counter);
        }
        metric
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
fn sample(labels: &[(&str, &str)], value: u64) -> Sample {
    let labels = labels.iter().map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    Sample {
        labels: labels.collect(),
        value: value as f64,
    }
}
