//! One observation of all processes, and rates between two of them.

use std::time::Duration;

use metric_defs::MetricDef;
use tokio::time::Instant;

use super::counts::ProcessCounts;
use crate::{
    memory::Memory,
    numbers::per_second,
    scrape::{Buckets, names},
};

/// Role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts requests.
    Producer,
    /// Writes to a store.
    Consumer,
    /// Is the store of a consumer.
    Mongod,
    /// This process.
    Generator,
}

/// Samples of all processes. Each sample has its own time, because processes may respond late.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Start of the observation.
    pub at: Instant,
    /// Samples in the order of the targets.
    pub processes: Vec<ProcessSample>,
}

/// Sample of one process.
#[derive(Debug, Clone)]
pub struct ProcessSample {
    /// Role of the process.
    pub role: Role,
    /// Name in reports.
    pub name: String,
    /// Time of the sample.
    pub at: Instant,
    /// CPU time over all runs.
    pub cpu: Duration,
    /// Memory of the current run.
    pub memory: Memory,
    /// Counts over all runs.
    pub counts: ProcessCounts,
    /// Counts of the current run.
    pub run: ProcessCounts,
}

impl Observation {
    /// Samples of all processes with this role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &ProcessSample> {
        self.processes.iter().filter(move |seen| seen.role == role)
    }

    /// Cookies appended to the logs of all producers.
    pub fn accepted(&self) -> u64 {
        self.of(Role::Producer)
            .map(|seen| seen.counts.of(names::APPENDED))
            .sum()
    }

    /// Accepted cookies that are neither settled nor lost, by node.
    pub fn backlogs(&self) -> Vec<u64> {
        let accepted = self.accepted();
        self.of(Role::Consumer)
            .map(|seen| {
                let counts = &seen.counts;
                accepted.saturating_sub(counts.settled() + counts.of(names::LOST))
            })
            .collect()
    }

    /// Backlog of the slowest node.
    pub fn backlog(&self) -> u64 {
        self.backlogs().into_iter().max().unwrap_or(0)
    }

    /// Cookies accepted per second since `earlier`.
    pub fn accepted_per_second(&self, earlier: &Self) -> f64 {
        let appended = |seen: &ProcessSample| seen.counts.of(names::APPENDED);
        self.per_second(earlier, Role::Producer, appended).sum()
    }

    /// Cookies settled per second since `earlier`, by node.
    pub fn settled_per_second(&self, earlier: &Self) -> impl Iterator<Item = f64> {
        self.per_second(earlier, Role::Consumer, |seen| seen.counts.settled())
    }

    fn per_second(
        &self,
        earlier: &Self,
        role: Role,
        count: impl Fn(&ProcessSample) -> u64,
    ) -> impl Iterator<Item = f64> {
        let pairs = self.of(role).zip(earlier.of(role));
        pairs.map(move |(now, before)| {
            let plural = count(now).saturating_sub(count(before));
            per_second(plural, (now.at - before.at).as_secs_f64())
        })
    }

    /// Sum of a histogram over all nodes.
    pub fn histogram(&self, metric: MetricDef) -> Buckets {
        let nodes = self.of(Role::Consumer);
        nodes.fold(Buckets::default(), |sum, seen| {
            sum.plus(&seen.counts.histogram(metric))
        })
    }

    /// Cores used by each process since `earlier`.
    pub fn cores_since(&self, earlier: &Self) -> Vec<f64> {
        let pairs = self.processes.iter().zip(&earlier.processes);
        pairs
            .map(|(now, before)| {
                let seconds = (now.at - before.at).as_secs_f64();
                let used = now.cpu.saturating_sub(before.cpu).as_secs_f64();
                if seconds > 0.0 { used / seconds } else { 0.0 }
            })
            .collect()
    }
}
