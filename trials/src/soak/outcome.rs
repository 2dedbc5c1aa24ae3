//! Outcome of a soak run, and its summary.

use std::time::Duration;

use bench::{
    e2e::{LoadResult, Settlement, Verification},
    observe::{Observation, Role},
    report::{Percentiles, grouped, per_second, plural, rate},
    scrape::names,
    verify::StoreVerdict,
};
use serde::Serialize;
use tokio::time::Instant;

use super::{allowed_losses::AllowedLosses, args::SoakArgs, inject::FaultEvent, plan::FaultKind};

/// Events, measurements and failed checks of a run.
#[derive(Debug, Clone, Serialize)]
pub struct SoakOutcome {
    /// Number of consumers, each with its own store.
    pub consumers: usize,
    /// Number of producers.
    pub producers: usize,
    /// Kind of the stores.
    pub store: &'static str,
    /// Seed of cookies and faults.
    pub seed: u64,
    /// Configured requests per second.
    pub rate: u64,
    /// Duration of the load.
    pub seconds: f64,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// Requests sent.
    pub sent: u64,
    /// Requests with response 200.
    pub accepted: u64,
    /// Requests with another response.
    pub rejected: u64,
    /// Requests without a response, whose outcome is unknown.
    pub unanswered: u64,
    /// Due requests that were not sent.
    pub unsent: u64,
    /// Accepted requests per second.
    pub accepted_per_second: f64,
    /// Latency from the intended send time to the response.
    pub edge_micros: Option<Percentiles>,
    /// Maximum observed backlog, without the counts of killed processes.
    pub backlog_max: u64,
    /// Result of waiting for the backlog.
    pub settled: Settlement,
    /// Lost cookies reported by each consumer.
    pub lost: Vec<u64>,
    /// Producer restarts with uncertain losses, by consumer.
    pub uncertain_restarts: Vec<u64>,
    /// Kinds of faults, with their mean intervals in seconds.
    pub kinds: Vec<(FaultKind, f64)>,
    /// Injected faults in chronological order.
    pub events: Vec<FaultEvent>,
    /// Verification of the stores.
    pub verification: Verification,
    /// Conclusions in sentences.
    pub findings: Vec<String>,
    /// Failed checks; empty if the run passed.
    pub failures: Vec<String>,
}

/// Data of a finished run.
pub(super) struct RunData<'a> {
    pub(super) args: &'a SoakArgs,
    pub(super) seed: u64,
    pub(super) interrupted: bool,
    pub(super) result: &'a LoadResult,
    pub(super) before: &'a Observation,
    pub(super) settled: Settlement,
    pub(super) kinds: &'a [(FaultKind, Duration)],
    pub(super) events: Vec<FaultEvent>,
    /// Number of kills of producers.
    pub(super) killed: usize,
    /// Start of the load.
    pub(super) began: Instant,
    /// Allowed losses by node name.
    pub(super) allowed: Vec<(String, AllowedLosses)>,
    pub(super) verification: Verification,
    pub(super) failures: Vec<String>,
    pub(super) observations: &'a [Observation],
}

impl SoakOutcome {
    pub(super) fn new(run: RunData<'_>) -> Self {
        let result = run.result;
        let counts = &result.counts;
        let last = run.observations.last().unwrap_or(run.before);
        let nodes = |metric| -> Vec<u64> {
            let nodes = last.of(Role::Consumer);
            nodes.map(|observed| observed.counts.of(metric)).collect()
        };
        let mut outcome = Self {
            consumers: run.args.cluster.consumers.get(),
            producers: run.args.cluster.producers.get(),
            store: run.args.cluster.store.name(),
            seed: run.seed,
            rate: run.args.rate.get(),
            seconds: result.seconds,
            interrupted: run.interrupted,
            sent: counts.sent,
            accepted: counts.accepted,
            rejected: counts.errors() - counts.unanswered,
            unanswered: counts.unanswered,
            unsent: counts.unsent,
            accepted_per_second: per_second(counts.accepted, result.seconds),
            edge_micros: result.latency,
            backlog_max: run
                .observations
                .iter()
                .map(Observation::backlog)
                .max()
                .unwrap_or(0),
            settled: run.settled,
            lost: nodes(names::LOST),
            uncertain_restarts: nodes(names::UNCERTAIN_RESTARTS),
            kinds: run
                .kinds
                .iter()
                .map(|(kind, every)| (*kind, every.as_secs_f64()))
                .collect(),
            events: run.events,
            verification: run.verification,
            findings: Vec::new(),
            failures: run.failures,
        };
        outcome.add_failures();
        outcome.check_losses(run.killed, &run.allowed, run.began);
        outcome
    }

    fn add_failures(&mut self) {
        self.failures.extend(self.verification.unverified());
        let edge_is_affected = self.kinds.iter().any(|(kind, _)| kind.affects_edge());
        let failed = self.rejected + self.unanswered;
        if failed > 0 && !edge_is_affected {
            self.failures.push(format!(
                "{failed} requests were rejected or unanswered, although no fault affected a producer"
            ));
        }
        let lost: u64 = self.lost.iter().sum();
        if lost == 0 {
            self.findings.push("no consumer reported a loss".to_owned());
        }
        let verdicts = self.verification.verdicts.iter();
        let wrong = verdicts.filter(|verdict| !verdict.has_passed());
        self.failures.extend(wrong.map(StoreVerdict::line));
    }

    /// Compares missing cookies with the losses reported by consumers.
    fn check_losses(&mut self, killed: usize, allowed: &[(String, AllowedLosses)], began: Instant) {
        for verdict in &self.verification.verdicts {
            let of_node = allowed.iter().find(|(node, _)| *node == verdict.node);
            let Some((node, allowed)) = of_node.filter(|_| verdict.explained > 0) else {
                continue;
            };
            let exceeded = allowed.exceeded(&verdict.lost, began);
            let exceeded = exceeded.iter().map(|it| format!("{node}: {it}"));
            self.failures.extend(exceeded);
            let reported = allowed.reported;
            self.findings.push(format!(
                "{node}: {} missing or stale pairs (at least {} requests) are explained by losses reported by its consumer: gaps ({} \
                 cookies) and epoch ends ({}, up to {} cookies; producers were killed {})",
                grouped(verdict.explained),
                grouped(verdict.lost.len() as u64),
                grouped(reported.cookies_in_gaps),
                grouped(reported.epoch_ends),
                grouped(reported.cookies_at_ends_max),
                plural(killed, "time")
            ));
            if reported.ends_without_bound > 0 {
                self.findings.push(format!(
                    "{node}: {} of these epoch ends have no bound and allow any loss",
                    grouped(reported.ends_without_bound)
                ));
            }
        }
    }

    /// The summary for the terminal.
    pub fn summary(&self) -> String {
        let mut lines = vec![
            format!(
                "{}, {}, store {}; {} for {:.0} s{}; seed {}",
                plural(self.producers, "producer"),
                plural(self.consumers, "consumer"),
                self.store,
                rate(self.rate as f64),
                self.seconds,
                if self.interrupted {
                    ", interrupted"
                } else {
                    ""
                },
                self.seed
            ),
            format!(
                "sent {}, accepted {}, rejected {}, unanswered {}, unsent {}",
                grouped(self.sent),
                grouped(self.accepted),
                grouped(self.rejected),
                grouped(self.unanswered),
                grouped(self.unsent)
            ),
            format!(
                "peak backlog {}, stored {:.1} s after the end; lost {:?}, uncertain restarts {:?}",
                grouped(self.backlog_max),
                self.settled.seconds,
                self.lost,
                self.uncertain_restarts
            ),
        ];
        lines.extend(
            self.edge_micros
                .as_ref()
                .map(|edge| format!("edge      {}", edge.line())),
        );
        lines.extend(self.findings.iter().cloned());
        lines.extend(self.verification.lines());
        lines.extend(
            self.failures
                .iter()
                .map(|failure| format!("FAILED    {failure}")),
        );
        lines.join("\n")
    }
}
