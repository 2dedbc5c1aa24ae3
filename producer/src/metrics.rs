//! Metrics of the log and of the subscribers, read from them when somebody asks.
//!
//! Nothing is updated per cookie for these: the log counts under the lock it holds anyway, a stream counts per
//! chunk, and a subscriber that is forgotten takes its series with it.
//!
//! Of each subscriber the counts of one scrape add up exactly: appended = delivered - undelivered + lost - recovered +
//! queued. For that the queues are read first, and then the log, once.

mod log;
mod subscribers;

use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use runtime::metrics::{Registry, register_process};

use crate::{log::Log, streams::subscribers::Subscribers};

/// Registers everything that is not counted by the part it belongs to; a subscriber may be `queue_cookies_max` behind.
///
/// # Errors
/// When a name is taken.
pub fn register(
    registry: &Registry,
    log: &Log,
    subscribers: &Subscribers,
    queue_cookies_max: u64,
) -> prometheus::Result<()> {
    let limit = IntGauge::new(
        "producer_subscriber_limit_cookies",
        "How far a subscriber may be behind before its oldest cookies are lost, though the log may hold more.",
    )?;
    limit.set(i64::try_from(queue_cookies_max).unwrap_or(i64::MAX));
    registry.register(Box::new(limit))?;
    let families = log::families().chain(subscribers::families());
    let (queues, at_scrapes) = (subscribers.clone(), log.clone());
    registry.at_scrapes(move || queues.end_interval(at_scrapes.span().next));
    registry.register(Box::new(Figures {
        log: log.clone(),
        subscribers: subscribers.clone(),
        descs: families
            .map(|family| family.desc())
            .collect::<prometheus::Result<_>>()?,
    }))?;
    register_process(registry, "producer", env!("CARGO_PKG_VERSION"))
}

/// Reads the figures when they are collected.
struct Figures {
    log: Log,
    subscribers: Subscribers,
    descs: Vec<Desc>,
}

impl Collector for Figures {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let queues = self.subscribers.snapshot();
        let stats = self.log.stats();
        let ages = self.log.ages(queues.iter().map(|queue| queue.position));
        let mut families = log::read(&stats);
        families.extend(subscribers::read(&queues, &ages, &stats));
        families
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}
