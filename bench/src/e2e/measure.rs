//! Measurements of a step, computed from its observations.

use std::time::Duration;

use super::{
    cluster_run::{LoadRun, Settlement},
    step::{NodeCounts, ProcessUse, Quantiles, SecondHalf, Step},
    verdict,
};
use crate::{
    observe::{Observation, ProcessCounts, ProcessSample, Role},
    report::{micros_per, per_second},
    scrape::Buckets,
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
        let LoadRun {
            result,
            before,
            after,
            backlog_max,
            ended_early,
        } = self.load_run;
        let counts = &result.counts;
        let seconds = result.seconds.max(f64::MIN_POSITIVE);
        let flush = self.quantiles(|counts| &counts.flush_seconds);
        let [delivered, bytes, batches, batched] = [
            self.increase(|counts| counts.delivered),
            self.increase(|counts| counts.sent_bytes),
            self.increase(|counts| counts.batches),
            self.increase(|counts| counts.batched),
        ];
        let mean = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        let full = |seen: &ProcessSample| {
            let counts = &seen.counts;
            counts.buffer_bytes as f64 / counts.buffer_limit_bytes.max(1) as f64
        };
        // If the load ended early: the requests that were due by then.
        let due = counts.sent + counts.unsent;
        let offered = u128::from(self.rate) * self.duration.as_millis() / 1_000;
        let mut step = Step {
            rate: self.rate,
            seconds,
            offered: u64::try_from(offered).unwrap_or(u64::MAX).min(due.max(1)),
            sent: counts.sent,
            accepted: counts.accepted,
            rejected: counts.errors() - counts.unanswered,
            unanswered: counts.unanswered,
            accepted_per_second: per_second(counts.accepted, seconds),
            edge_micros: result.latency,
            received: self.quantiles(|counts| &counts.received_seconds),
            stored: self.quantiles(|counts| &counts.stored_seconds),
            flush,
            batch_cookies: mean(batched, batches),
            backlog: after.backlog(),
            backlog_max: *backlog_max,
            backlog_in_producers: sum(after, |counts| counts.lag),
            buffer_full: after.of(Role::Consumer).map(full).fold(0.0, f64::max),
            settled: self.settled,
            // From the second observation on: in the first second, no cookie may be stored yet.
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
            bytes_per_delivery: mean(bytes, delivered),
            ended_early: *ended_early,
            is_sustained: false,
            reason: None,
            generator_limit: result.generator_limit.clone(),
            accepted_each_second: self.accepted_each_second(),
        };
        step.reason = verdict::failure_reason(&step, self.cores);
        step.is_sustained = step.reason.is_none();
        step
    }

    /// Quantiles of all nodes since the start of the step.
    fn quantiles(&self, of: fn(&ProcessCounts) -> &Buckets) -> Quantiles {
        let buckets = self.end.histogram(of);
        let buckets = buckets.since(&self.load_run.before.histogram(of));
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
    fn increase(&self, of: fn(&ProcessCounts) -> u64) -> u64 {
        sum(self.end, of).saturating_sub(sum(&self.load_run.before, of))
    }

    fn nodes(&self) -> Vec<NodeCounts> {
        let pairs = self
            .end
            .of(Role::Consumer)
            .zip(self.load_run.before.of(Role::Consumer));
        pairs
            .map(|(now, then)| {
                let (name, now, then) = (&now.name, &now.counts, &then.counts);
                NodeCounts {
                    name: name.clone(),
                    outcomes: now.outcomes.combine(&then.outcomes, |now, then| now - then),
                    lost: now.lost - then.lost,
                }
            })
            .collect()
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

    fn accepted_each_second(&self) -> Vec<f64> {
        let (before, after) = (&self.load_run.before, &self.load_run.after);
        let within = |at: &&Observation| (before.at..=after.at).contains(&at.at);
        let observed: Vec<_> = self.observed.iter().filter(within).collect();
        // Skips the incomplete last second.
        let seconds = observed
            .windows(2)
            .filter(|pair| pair[1].at - pair[0].at > Duration::from_millis(500));
        seconds
            .map(|pair| pair[1].accepted_per_second(pair[0]))
            .collect()
    }
}

/// Rate of the slowest node.
fn stored_per_second(before: &Observation, after: &Observation) -> f64 {
    let nodes = after.settled_per_second(before);
    nodes.min_by(f64::total_cmp).unwrap_or(0.0)
}

fn sum(at: &Observation, of: fn(&ProcessCounts) -> u64) -> u64 {
    at.processes.iter().map(|seen| of(&seen.counts)).sum()
}
