//! Measurements of one step, that is, of a load at one rate.

use super::{
    cluster_run::{EarlyEnd, Settlement},
    drive::LoadResult,
};
use crate::{
    observe::{ProcessCounts, Role},
    report::{duration, grouped, per_second, rate},
    scrape::names,
};

/// Measurements of one step.
#[derive(Debug, Clone, Default)]
pub(super) struct Step {
    /// Configured requests per second.
    pub(super) rate: u64,
    /// Requests due during the load.
    pub(super) offered: u64,
    pub(super) load: LoadResult,
    /// Latency from acceptance to receipt by a consumer, over all nodes.
    pub(super) received: Quantiles,
    /// Latency from acceptance to durability, over all nodes.
    pub(super) stored: Quantiles,
    /// Time to make a batch durable.
    pub(super) flush: Quantiles,
    /// Mean cookies per batch.
    pub(super) batch_cookies: f64,
    /// Cookies accepted but not stored on the slowest node at the end of the load.
    pub(super) backlog: u64,
    /// Maximum backlog observed.
    pub(super) backlog_max: u64,
    /// Part of the backlog in the logs of producers, over all subscribers.
    pub(super) backlog_in_producers: u64,
    /// Fill level (0 to 1) of the fullest consumer buffer at the end of the load.
    pub(super) buffer_full: f64,
    pub(super) settled: Settlement,
    /// Cookies stored per second by the slowest node during the load.
    pub(super) stored_per_second: f64,
    pub(super) second_half: SecondHalf,
    /// Names of the nodes, with their counts during the step.
    pub(super) nodes: Vec<(String, ProcessCounts)>,
    pub(super) processes: Vec<ProcessUse>,
    /// Bytes passed to streams per delivered cookie.
    pub(super) bytes_per_delivery: f64,
    pub(super) ended_early: Option<EarlyEnd>,
    /// Why the rate was not sustained; `None` if accepted and stored cookies kept up with it.
    pub(super) reason: Option<String>,
}

/// Rates in the second half of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SecondHalf {
    /// Accepted cookies per second.
    pub(super) accepted_per_second: f64,
    /// Cookies stored per second by the slowest node.
    pub(super) stored_per_second: f64,
    /// Growth of the backlog.
    pub(super) backlog_growth: u64,
    /// Fluctuation of the backlog caused by batches.
    pub(super) backlog_wave: f64,
}

/// Quantiles in seconds from Prometheus histograms, interpolated within buckets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quantiles {
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// Resource usage of a process.
#[derive(Debug, Clone)]
pub(super) struct ProcessUse {
    pub(super) name: String,
    pub(super) role: Role,
    /// Cores used during the load.
    pub(super) cores: f64,
    /// CPU time per accepted cookie, until all cookies were stored.
    pub(super) cpu_micros_per_cookie: f64,
    /// Resident memory at the end of the step.
    pub(super) resident_bytes: u64,
    /// Peak resident memory.
    pub(super) peak_bytes: u64,
}

impl Quantiles {
    /// Both quantiles in one line: `p50 …  p99 …`.
    pub(super) fn line(&self) -> String {
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
    /// Requests with response 200.
    pub(super) fn accepted(&self) -> u64 {
        self.load.counts.accepted
    }

    pub(super) fn accepted_per_second(&self) -> f64 {
        per_second(self.accepted(), self.load.seconds)
    }

    /// Requests with another response.
    pub(super) fn rejected(&self) -> u64 {
        self.load.counts.errors() - self.load.counts.unanswered
    }

    pub(super) fn is_sustained(&self) -> bool {
        self.reason.is_none()
    }

    /// CPU time of all processes of a role per accepted cookie.
    pub(super) fn cpu_micros(&self, role: Role) -> f64 {
        self.of(role)
            .fold(0.0, |sum, used| sum + used.cpu_micros_per_cookie)
    }

    /// Cores used by all processes of a role.
    pub(super) fn cores(&self, role: Role) -> f64 {
        self.of(role).fold(0.0, |sum, used| sum + used.cores)
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &ProcessUse> {
        self.processes.iter().filter(move |used| used.role == role)
    }

    /// Lost and failed cookies, over all nodes.
    pub(super) fn lost_and_failed(&self) -> (u64, u64) {
        let sum = |metric| self.nodes.iter().map(|(_, counts)| counts.of(metric)).sum();
        (sum(names::LOST), sum(names::FAILED))
    }

    /// `yes` or `no`, depending on whether the rate was sustained; or the reason why this is unknown.
    pub(super) fn verdict<'a>(&self, yes: &'a str, no: &'a str) -> &'a str {
        match self.ended_early {
            Some(EarlyEnd::Interrupted) => "interrupted",
            Some(EarlyEnd::ProcessExited) => "process exited",
            None if self.is_sustained() => yes,
            None => no,
        }
    }

    /// Summary in one line.
    pub(super) fn line(&self) -> String {
        format!(
            "{:>11}: accepted {:>11}, stored {:>11}, backlog {} ({:.1} s to store), latency to stored {}; {}",
            rate(self.rate as f64),
            rate(self.accepted_per_second()),
            rate(self.stored_per_second),
            grouped(self.backlog),
            self.settled.seconds,
            self.stored.line(),
            self.verdict("sustained", "NOT SUSTAINED")
        )
    }
}
