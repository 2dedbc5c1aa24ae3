//! What was measured at one rate.

use serde::Serialize;

use super::running::{EarlyEnd, Settlement};
use crate::{
    observe::{CookieOutcomes, Role},
    report::{Percentiles, duration, grouped, rate},
};

/// One rate.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Requests a second that were asked for.
    pub rate: u64,
    /// How long they were sent.
    pub seconds: f64,
    /// Requests that should have left in that time.
    pub offered: u64,
    /// Requests that left.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Requests answered otherwise.
    pub rejected: u64,
    /// Requests without an answer.
    pub unanswered: u64,
    /// `accepted` a second.
    pub accepted_per_second: f64,
    /// From the intended time to the answer.
    pub edge_micros: Option<Percentiles>,
    /// From accepted to received by a consumer, over all nodes.
    pub received: Quantiles,
    /// From accepted to durable, over all nodes.
    pub stored: Quantiles,
    /// How long a batch takes to become durable.
    pub flush: Quantiles,
    /// Mean cookies of a batch.
    pub batch_cookies: f64,
    /// Cookies that were accepted and not yet stored on the slowest node, when the last request was answered.
    pub backlog: u64,
    /// The largest that was seen.
    pub backlog_max: u64,
    /// Of the backlog: what the producers still held, of all subscribers.
    pub backlog_in_producers: u64,
    /// How full the fullest consumer's buffer was then, 0 to 1.
    pub buffer_full: f64,
    /// How the backlog went away.
    pub settled: Settlement,
    /// Rate at which the slowest node stored while requests came.
    pub stored_per_second: f64,
    /// Whether it was still keeping up towards the end.
    pub second_half: SecondHalf,
    /// What became of the cookies, node by node.
    pub nodes: Vec<NodeCounts>,
    /// What each process took.
    pub processes: Vec<ProcessUse>,
    /// Bytes handed to streams for each cookie delivered.
    pub bytes_per_delivery: f64,
    /// Why it was cut short, if it was; it then says nothing of the rate.
    pub ended_early: Option<EarlyEnd>,
    /// Whether accepted and stored kept up with the rate.
    pub is_sustained: bool,
    /// If not: where it stops, and why.
    pub why: Option<String>,
    /// Why the generator was the limit, if it said so.
    pub generator_limit: Option<String>,
    /// Rate of the accepted cookies in each second.
    pub accepted_each_second: Vec<f64>,
}

/// The second half of a step.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SecondHalf {
    /// Rate of the accepted cookies.
    pub accepted_per_second: f64,
    /// Rate at which the slowest node stored.
    pub stored_per_second: f64,
    /// By how much the backlog grew.
    pub backlog_growth: u64,
    /// By how much it goes up and down as batches are collected and written.
    pub backlog_wave: f64,
}

/// Quantiles from a histogram of the processes' own, in seconds; interpolated within its buckets.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// What became of the cookies on one node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeCounts {
    /// The node.
    pub name: String,
    /// Received, and what became of them.
    #[serde(flatten)]
    pub outcomes: CookieOutcomes,
    /// Will not come.
    pub lost: u64,
}

/// What a process took.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessUse {
    /// The process.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Cores while requests came.
    pub cores: f64,
    /// CPU time for each accepted cookie, until all were stored.
    pub cpu_micros_per_cookie: f64,
    /// Memory at the end of the step.
    pub resident_bytes: u64,
    /// The most it had.
    pub peak_bytes: u64,
}

impl Quantiles {
    /// `p50 …  p99 …`.
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
    /// CPU time of all processes with this role, for each accepted cookie.
    #[must_use]
    pub fn cpu_micros(&self, role: Role) -> f64 {
        self.of(role)
            .fold(0.0, |sum, used| sum + used.cpu_micros_per_cookie)
    }

    /// Cores of all processes with this role.
    #[must_use]
    pub fn cores(&self, role: Role) -> f64 {
        self.of(role).fold(0.0, |sum, used| sum + used.cores)
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &ProcessUse> {
        self.processes.iter().filter(move |used| used.role == role)
    }

    /// Cookies that will not come, or cannot be stored, on all nodes.
    #[must_use]
    pub fn lost_and_failed(&self) -> (u64, u64) {
        let sum = |of: fn(&NodeCounts) -> u64| self.nodes.iter().map(of).sum();
        (sum(|node| node.lost), sum(|node| node.outcomes.failed))
    }

    /// Whether it was sustained, in these words, or why that cannot be said.
    pub(super) fn verdict<'a>(&self, yes: &'a str, no: &'a str) -> &'a str {
        match self.ended_early {
            Some(EarlyEnd::Interrupted) => "interrupted",
            Some(EarlyEnd::ProcessExited) => "a process ended",
            None if self.is_sustained => yes,
            None => no,
        }
    }

    /// One line for a person.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:>11}: accepted {:>11}, stored {:>11}, {} waiting at the end ({:.1} s to store); to stored {}; {}",
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
