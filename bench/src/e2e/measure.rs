//! Measurements of a step, which is a load at one rate, computed from the observations during the step.

use std::time::Duration;

use metric_defs::MetricDef;

use super::{
    cluster_run::{LoadRun, Settlement},
    step::{ProcessUse, Quantiles, SecondHalf, Step},
    verdict,
};
use crate::{
    observe::{Observation, ProcessCounts, ProcessSample, Role},
    report::micros_per,
    scrape::{Buckets, names},
};

/// Observations of a step.
pub(super) struct StepObservations<'a> {
    pub(super) rate: u64,
    pub(super) duration: Duration,
    pub(super) load_run: &'a LoadRun,
    /// Observations from its start to its end.
    pub(super) observed: &'a [Observation],
    pub(super) settled: Settlement,
    /// Observation after the backlog was stored.
    pub(super) end: &'a Observation,
    pub(super) flush_interval: Duration,
    pub(super) cores: usize,
}

impl StepObservations<'_> {
    pub(super) fn step(&self) -> Step {
        let LoadRun { before, after, .. } = self.load_run;
        let counts = &self.load_run.result.counts;
        let flush = self.quantiles(names::FLUSH_SECONDS);
        let batches = self.increase_of_histogram(names::BATCH_COOKIES).count();
        let [delivered, bytes, batched] =
            [names::DELIVERED, names::SENT_BYTES, names::BATCH_COOKIES]
                .map(|metric| self.increase(metric) as f64);
        let full = |seen: &ProcessSample| {
            let counts = &seen.counts;
            let limit = counts.of(names::BUFFER_LIMIT_BYTES).max(1);
            counts.of(names::BUFFER_BYTES) as f64 / limit as f64
        };
        // If the load ended early: the requests that were due by then.
        let due = counts.sent + counts.unsent;
        let offered = u128::from(self.rate) * self.duration.as_millis() / 1_000;
        let mut step = Step {
            rate: self.rate,
            offered: u64::try_from(offered).unwrap_or(u64::MAX).min(due.max(1)),
            load: self.load_run.result.clone(),
            received: self.quantiles(names::RECEIVED_SECONDS),
            stored: self.quantiles(names::STORED_SECONDS),
            flush,
            batch_cookies: batched / batches.max(1.0),
            backlog: after.backlog(),
            backlog_max: self.load_run.backlog_max,
            backlog_in_producers: sum(after, names::LAG),
            buffer_full: after.of(Role::Consumer).map(full).fold(0.0, f64::max),
            settled: self.settled,
            // Excludes the first second, in which no cookie may be stored yet.
            stored_per_second: stored_per_second(
                self.observed
                    .get(1)
                    .filter(|it| it.at < after.at)
                    .unwrap_or(before),
                after,
            ),
            second_half: self.second_half(flush.p50.unwrap_or(0.0)),
            nodes: self.nodes(),
            processes: self.processes(),
            bytes_per_delivery: bytes / delivered.max(1.0),
            ended_early: self.load_run.ended_early,
            reason: None,
        };
        step.reason = verdict::failure_reason(&step, self.cores);
        step
    }

    /// Observations of a histogram since the start of the step, over all nodes.
    fn increase_of_histogram(&self, metric: MetricDef) -> Buckets {
        let buckets = self.end.histogram(metric);
        buckets.since(&self.load_run.before.histogram(metric))
    }

    fn quantiles(&self, metric: MetricDef) -> Quantiles {
        let buckets = self.increase_of_histogram(metric);
        Quantiles {
            p50: buckets.quantile(0.5),
            p99: buckets.quantile(0.99),
        }
    }

    fn second_half(&self, flush_seconds: f64) -> SecondHalf {
        let (before, after) = (&self.load_run.before, &self.load_run.after);
        let middle = before.at + (after.at - before.at) / 2;
        let then = self
            .observed
            .iter()
            .find(|it| it.at >= middle && it.at < after.at)
            .unwrap_or(before);
        SecondHalf {
            accepted_per_second: after.accepted_per_second(then),
            stored_per_second: stored_per_second(then, after),
            backlog_growth: after.backlog().saturating_sub(then.backlog()),
            backlog_wave: self.rate as f64 * (self.flush_interval.as_secs_f64() + flush_seconds),
        }
    }

    /// Increase of a counter over all processes since the start of the step.
    fn increase(&self, metric: MetricDef) -> u64 {
        sum(self.end, metric).saturating_sub(sum(&self.load_run.before, metric))
    }

    fn nodes(&self) -> Vec<(String, ProcessCounts)> {
        let before = self.load_run.before.of(Role::Consumer);
        let pairs = self.end.of(Role::Consumer).zip(before);
        let of_node = pairs.map(|(now, then)| (now.name.clone(), now.counts.since(&then.counts)));
        of_node.collect()
    }

    fn processes(&self) -> Vec<ProcessUse> {
        let (before, after) = (&self.load_run.before, &self.load_run.after);
        let cores = after.cores_since(before);
        let pairs = self.end.processes.iter().zip(&before.processes).zip(cores);
        pairs
            .map(|((now, then), cores)| ProcessUse {
                name: now.name.clone(),
                role: now.role,
                cores,
                cpu_micros_per_cookie: micros_per(
                    now.cpu.saturating_sub(then.cpu).as_secs_f64(),
                    self.load_run.result.counts.accepted,
                ),
                resident_bytes: now.memory.resident_bytes,
                peak_bytes: now.memory.peak_bytes,
            })
            .collect()
    }
}

/// Rate of the slowest node.
fn stored_per_second(before: &Observation, after: &Observation) -> f64 {
    let nodes = after.settled_per_second(before);
    nodes.min_by(f64::total_cmp).unwrap_or(0.0)
}

fn sum(at: &Observation, metric: MetricDef) -> u64 {
    let processes = at.processes.iter();
    processes.map(|seen| seen.counts.of(metric)).sum()
}
