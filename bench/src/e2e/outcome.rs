//! What a run of `bench e2e` found, and its summary.

use serde::Serialize;

use super::{
    running::{Cut, Settled, Verification},
    sizing::Sizing,
};
use crate::report::{Percentiles, duration, grouped, rate};

/// What was measured, and what was found to be wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Consumers, each with a store.
    pub consumers: usize,
    /// Producers.
    pub producers: usize,
    /// What the stores are.
    pub store: &'static str,
    /// Makes the same cookies again.
    pub seed: u64,
    /// Cores that everything shared.
    pub cores: usize,
    /// From the first request to the last process's end.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The ladder.
    pub steps: Vec<Step>,
    /// What follows for other sizes; `null` when nothing was measured.
    pub sizing: Option<Sizing>,
    /// Whether every accepted cookie is in every store.
    pub verification: Verification,
    /// What the run says, in sentences.
    pub findings: Vec<String>,
    /// What is wrong; empty when all is well.
    pub faults: Vec<String>,
}

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
    pub refused: u64,
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
    /// What a cookie waits at worst that comes right after a batch was begun: the flush interval and the time of a flush, seconds.
    pub flush_and_interval_p99: Option<f64>,
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
    pub settled: Settled,
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
    pub cut: Option<Cut>,
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
    /// 99.9th percentile.
    pub p999: Option<f64>,
}

/// What became of the cookies on one node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeCounts {
    /// The node.
    pub name: String,
    /// Delivered to its consumer.
    pub received: u64,
    /// Written to its store.
    pub written: u64,
    /// Replaced by a newer one before.
    pub superseded: u64,
    /// Left out as repeats of what is stored.
    pub suppressed: u64,
    /// Older than what is stored.
    pub stale: u64,
    /// Refused by the store.
    pub failed: u64,
    /// Will not come.
    pub lost: u64,
}

/// What a process took.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessUse {
    /// The process.
    pub name: String,
    /// What it is: `producer`, `consumer`, `mongod`, `generator`.
    pub role: &'static str,
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
        let text = |seconds: Option<f64>| {
            seconds.map_or_else(|| "-".to_owned(), |seconds| duration(micros(seconds)))
        };
        format!("p50 {}  p99 {}", text(self.p50), text(self.p99))
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

impl Step {
    /// CPU time of all processes with this role, for each accepted cookie.
    #[must_use]
    pub fn cpu_micros(&self, role: &str) -> f64 {
        self.of(role)
            .fold(0.0, |sum, used| sum + used.cpu_micros_per_cookie)
    }

    /// Cores of all processes with this role.
    #[must_use]
    pub fn cores(&self, role: &str) -> f64 {
        self.of(role).fold(0.0, |sum, used| sum + used.cores)
    }

    fn of(&self, role: &str) -> impl Iterator<Item = &ProcessUse> {
        self.processes.iter().filter(move |used| used.role == role)
    }

    /// Cookies that will not come, or cannot be stored, on all nodes.
    #[must_use]
    pub fn lost_and_failed(&self) -> (u64, u64) {
        let sum = |of: fn(&NodeCounts) -> u64| self.nodes.iter().map(of).sum();
        (sum(|node| node.lost), sum(|node| node.failed))
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
            match self.cut {
                Some(Cut::Interrupted) => "interrupted",
                Some(Cut::Ended) => "a process ended",
                None if self.is_sustained => "sustained",
                None => "NOT SUSTAINED",
            }
        )
    }
}

impl Outcome {
    /// True when every accepted cookie is where it should be, and all processes ended in order.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = vec![format!(
            "{}, {}, store {}, {}, {:.0} s{}; seed {}",
            counted(self.producers, "producer"),
            counted(self.consumers, "consumer"),
            self.store,
            counted(self.cores, "core"),
            self.seconds,
            if self.interrupted {
                ", interrupted"
            } else {
                ""
            },
            self.seed
        )];
        lines.extend(self.steps.iter().map(Step::line));
        lines.push(format!(
            "{:>11}  {:>9} {:>9} {:>9} {:>9}  {:>10} {:>10} {:>9}  edge latency",
            "CPU, µs", "producer", "consumer", "mongod", "generator", "received", "flush", "batch"
        ));
        for step in &self.steps {
            let ms = |seconds: Option<f64>| {
                seconds.map_or_else(|| "-".to_owned(), |seconds| duration(micros(seconds)))
            };
            lines.push(format!(
                "{:>11}  {:>9.2} {:>9.2} {:>9.2} {:>9.2}  {:>10} {:>10} {:>9.0}  {}",
                rate(step.rate as f64),
                step.cpu_micros("producer"),
                step.cpu_micros("consumer"),
                step.cpu_micros("mongod"),
                step.cpu_micros("generator"),
                ms(step.received.p99),
                ms(step.flush.p99),
                step.batch_cookies,
                step.edge_micros
                    .as_ref()
                    .map(Percentiles::line)
                    .unwrap_or_default(),
            ));
        }
        lines.extend(self.findings.iter().cloned());
        lines.extend(self.verification.lines());
        lines.extend(self.faults.iter().map(|fault| format!("WRONG     {fault}")));
        lines.join("\n")
    }
}

impl Verification {
    /// A line for each node, and one for the books.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.balanced > 0 {
            let scrapes = grouped(self.balanced);
            lines.push(format!(
                "balanced  in {scrapes} scrapes every cookie had one fate"
            ));
        }
        for verdict in &self.verdicts {
            lines.push(format!("verified  {}", verdict.line()));
            lines.extend(
                verdict
                    .examples
                    .iter()
                    .map(|example| format!("          {example}")),
            );
        }
        lines.extend(
            self.failed
                .iter()
                .chain(&self.not_verified)
                .map(|why| format!("NOT VERIFIED: {why}")),
        );
        lines
    }

    /// What could not be verified though it is there.
    pub(crate) fn not_done(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|why| format!("not verified: {why}"))
    }

    /// What of it is wrong.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let wrong = self
            .verdicts
            .iter()
            .filter(|verdict| !verdict.is_faultless());
        let wrong = wrong.map(|verdict| {
            let examples = verdict.examples.join("; ");
            format!("{} ({examples})", verdict.line())
        });
        wrong.chain(self.not_done()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_that_is_not_verified_is_a_fault_and_no_store_is_none() {
        assert!(Verification::default().faults().is_empty());
        let nothing = Verification {
            not_verified: Some("there is no store".to_owned()),
            ..Verification::default()
        };
        assert!(nothing.faults().is_empty());
        let failed = Verification::failed("node-1: it is gone".to_owned());
        assert_eq!(failed.faults(), ["not verified: node-1: it is gone"]);
        assert_eq!(failed.lines(), ["NOT VERIFIED: node-1: it is gone"]);
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(1, "node"), "1 node");
        assert_eq!(counted(2, "node"), "2 nodes");
    }
}
