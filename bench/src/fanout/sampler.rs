//! The producer's counters and CPU time, over and over while it works.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::children::SLOW_READER;
use crate::{admin, cpu::CpuTime, producer::Producer, report::micros_each, scrape::names};

/// Long enough for the system's CPU accounting, whose resolution is 10 ms, to be off by little; short enough for a step of
/// five seconds to have samples to compare.
const INTERVAL: Duration = Duration::from_millis(500);

/// Of a sample in which the producer took fewer cookies than this, the figures are chance: it is the load's end.
const COOKIES_MIN: u64 = 100;

/// What the producer did in a part of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// End of this part, since the load began.
    pub at_seconds: f64,
    /// Cookies accepted a second.
    pub accepted_per_second: f64,
    /// Cookies handed to subscribers a second.
    pub deliveries_per_second: f64,
    /// CPU of the producer for each cookie accepted.
    pub cpu_micros_per_cookie: f64,
}

/// A look at the producer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) cpu: CpuTime,
    pub(super) appended: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) connected: u64,
}

impl Look {
    /// Looks at all subscribers but the slow readers.
    pub(super) async fn at(producer: &Producer) -> Result<Self> {
        let metrics = admin::metrics(&producer.admin).await?;
        let count = |figure| -> u64 {
            let each = metrics.by_label(figure, "subscriber").into_iter();
            each.filter(|(subscriber, _)| !is_slow_reader(subscriber))
                .map(|(_, count)| count)
                .sum()
        };
        Ok(Self {
            at: Instant::now(),
            cpu: CpuTime::of(producer.process.id()).unwrap_or_default(),
            appended: metrics.count(names::APPENDED, &[]),
            delivered: count(names::DELIVERED),
            lost: count(names::SUBSCRIBER_LOST),
            connected: count(names::SUBSCRIBER_CONNECTED),
        })
    }

    fn since(&self, earlier: &Self, began: Instant) -> Option<Sample> {
        let seconds = (self.at - earlier.at).as_secs_f64();
        let accepted = self.appended - earlier.appended;
        let delivered = self.delivered.saturating_sub(earlier.delivered);
        let cpu = self.cpu.since(&earlier.cpu).total().as_secs_f64();
        (accepted >= COOKIES_MIN && seconds > 0.0).then(|| Sample {
            at_seconds: (self.at - began).as_secs_f64(),
            accepted_per_second: accepted as f64 / seconds,
            deliveries_per_second: delivered as f64 / seconds,
            cpu_micros_per_cookie: micros_each(cpu, accepted),
        })
    }
}

fn is_slow_reader(subscriber: &str) -> bool {
    subscriber
        .strip_prefix(SLOW_READER)
        .is_some_and(|number| number.starts_with('-'))
}

/// Looks at the producer again and again, until it is dropped or the producer does not answer; what it saw is in `samples`.
pub(super) async fn watch(
    producer: &Producer,
    first: Look,
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut earlier = first;
    loop {
        ticks.tick().await;
        let now = Look::at(producer).await?;
        samples.extend(now.since(&earlier, first.at));
        earlier = now;
    }
}
