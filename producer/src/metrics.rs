//! Metrics of the log and of the subscribers, read from them when somebody asks.
//!
//! Nothing is updated per cookie for these: the log counts under the lock it holds anyway, a stream counts per
//! chunk, and a subscriber that is forgotten takes its series with it.
//!
//! Of each subscriber the counts of one scrape add up exactly, as [`metric_defs::equations::ACCOUNT`] says. For that the queues are
//! read first, and then the log, once.

mod log;
mod subscribers;

use metric_defs::producer;
use prometheus::IntGauge;
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
    let limit: IntGauge = registry.add(producer::SUBSCRIBER_LIMIT)?;
    limit.set(i64::try_from(queue_cookies_max).unwrap_or(i64::MAX));
    let (queues, on_scrape) = (subscribers.clone(), log.clone());
    registry.on_scrape(move || queues.end_interval(on_scrape.span().next));
    let (log, subscribers) = (log.clone(), subscribers.clone());
    registry.read(log::figures().chain(subscribers::figures()), move || {
        let queues = subscribers.snapshot();
        let stats = log.stats();
        let ages = log.ages(queues.iter().map(|queue| queue.position));
        let mut families = log::read(&stats);
        families.extend(subscribers::read(&queues, &ages, &stats));
        families
    })?;
    register_process(registry, "producer", env!("CARGO_PKG_VERSION"))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}
