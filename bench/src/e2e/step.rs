//! Measurements at one rate.

use serde::Serialize;

use super::cluster_run::{EarlyEnd, Settlement};
use crate::{
    observe::{CookieOutcomes, Role},
    report::{Percentiles, duration, grouped, rate},
};

/// Measurements of one step.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Configured requests per second.
    pub rate: u64,
    /// Duration of the load.
    pub seconds: f64,
    /// Requests due in that time.
    pub offered: u64,
    /// Requests sent.
    pub sent: u64,
    /// Requests with response 200.
    pub accepted: u64,
    /// Requests with another response.
    pub rejected: u64,
    /// Requests without a response.
    pub unanswered: u64,
    /// Accepted requests per second.
    pub accepted_per_second: f64,
    /// Latency from the intended send time to the response.
    pub edge_micros: Option<Percentiles>,
    /// Latency from acceptance to receipt by a consumer, over all nodes.
    pub received: Quantiles,
    /// Latency from acceptance to durability, over all nodes.
    pub stored: Quantiles,
    /// Time to make a batch durable.
    pub flush: Quantiles,
    /// Mean cookies per batch.
    pub batch_cookies: f64,
    /// Cookies accepted but not stored on the slowest node at the end of the load.
    pub backlog: u64,
    /// Maximum backlog observed.
    pub backlog_max: u64,
    /// Part of the backlog in the logs of producers, over all subscribers.
    pub backlog_in_producers: u64,
    /// Fill level (0 to 1) of the fullest consumer buffer at the end of the load.
    pub buffer_full: f64,
    /// Result of waiting for the backlog.
    pub settled: Settlement,
    /// Cookies stored per second by the slowest node during the load.
    pub stored_per_second: f64,
    /// Rates in the second half of the load.
    pub second_half: SecondHalf,
    /// Cookie outcomes by node.
    pub nodes: Vec<NodeCounts>,
    /// Resource usage by process.
    pub processes: Vec<ProcessUse>,
    /// Bytes passed to streams per delivered cookie.
    pub bytes_per_delivery: f64,
    /// Why the load ended early, if it did.
    pub ended_early: Option<EarlyEnd>,
    /// Whether accepted and stored cookies kept up with the rate.
    pub is_sustained: bool,
    /// Why the rate was not sustained, if so.
    pub reason: Option<String>,
    /// Why the generator was the bottleneck, if it was.
    pub generator_limit: Option<String>,
    /// Accepted cookies per second, for each second.
    pub accepted_each_second: Vec<f64>,
}

/// Rates in the second half of a step.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SecondHalf {
    /// Accepted cookies per second.
    pub accepted_per_second: f64,
    /// Cookies stored per second by the slowest node.
    pub stored_per_second: f64,
    /// Growth of the backlog.
    pub backlog_growth: u64,
    /// Fluctuation of the backlog caused by batches.
    pub backlog_wave: f64,
}

/// Quantiles in seconds from Prometheus histograms, interpolated within buckets.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// Cookie outcomes of one node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeCounts {
    /// Name of the node.
    pub name: String,
    /// Received cookies and their outcomes.
    #[serde(flatten)]
    pub outcomes: CookieOutcomes,
    /// Lost cookies.
    pub lost: u64,
}

/// Resource usage of a process.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessUse {
    /// Name of the process.
    pub name: String,
    /// Role of the process.
    pub role: Role,
    /// Cores used during the load.
    pub cores: f64,
    /// CPU time per accepted cookie, until all cookies were stored.
    pub cpu_micros_per_cookie: f64,
    /// Resident memory at the end of the step.
    pub resident_bytes: u64,
    /// Peak resident memory.
    pub peak_bytes: u64,
}

impl Quantiles {
    /// Both quantiles in one line: `p50 …  p99 …`.
    #[must_use]
    pub fn line(&self) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let text = |seconds: Option<f64>| {
            seconds.map_or_else(
                || "-".to_owned(),
                |seconds| duration((seconds * 1e6) as u64),
            )
        };
        format!("p50 {}  p99 {}", text(self.p50), text(self.p99))
    }
}

impl Step {
    /// CPU time of all processes of a role per accepted cookie.
    #[must_use]
    pub fn cpu_micros(&self, role: Role) -> f64 {
        self.of(role)
            .fold(0.0, |sum, used| sum + used.cpu_micros_per_cookie)
    }

    /// Cores used by all processes of a role.
    #[must_use]
    pub fn cores(&self, role: Role) -> f64 {
        self.of(role).fold(0.0, |sum, used| sum + used.cores)
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &ProcessUse> {
        self.processes.iter().filter(move |used| used.role == role)
    }

    /// Lost and failed cookies, over all nodes.
    #[must_use]
    pub fn lost_and_failed(&self) -> (u64, u64) {
        let sum = |of: fn(&NodeCounts) -> u64| self.nodes.iter().map(of).sum();
        (sum(|node| node.lost), sum(|node| node.outcomes.failed))
    }

    /// `yes` or `no` by whether the rate was sustained, or why this is unknown.
    pub(super) fn verdict<'a>(&self, yes: &'a str, no: &'a str) -> &'a str {
        match self.ended_early {
            Some(EarlyEnd::Interrupted) => "interrupted",
            Some(EarlyEnd::ProcessExited) => "process exited",
            None if self.is_sustained => yes,
            None => no,
        }
    }

    /// Summary in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:>11}: accepted {:>11}, stored {:>11}, backlog {} ({:.1} s to store), latency to stored {}; {}",
            rate(self.rate as f64),
            rate(self.accepted_per_second),
            rate(self.stored_per_second),
            grouped(self.backlog),
            self.settled.seconds,
            self.stored.line(),
            self.verdict("sustained", "NOT SUSTAINED")
        )
    }
}
