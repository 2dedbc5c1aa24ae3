//! What a soak found, and its summary.

use std::time::Duration;

use bench::{
    observe::{Observation, ProcessCounts, Role},
    report::{Percentiles, grouped, per_second, plural, rate},
    verify::StoreVerdict,
};
use serde::Serialize;
use tokio::time::Instant;

use super::{AllowedLosses, FaultEvent, FaultKind, LoadResult, Settlement, SoakArgs, Verification};

/// What was done, what was seen, and what was found to be wrong.
#[derive(Debug, Clone, Serialize)]
pub struct SoakOutcome {
    /// Consumers, each with a store.
    pub consumers: usize,
    /// Producers.
    pub producers: usize,
    /// What the stores are.
    pub store: &'static str,
    /// Makes the same cookies and the same faults again.
    pub seed: u64,
    /// Requests a second that were asked for.
    pub rate: u64,
    /// How long they were sent.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// Requests that left.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Requests answered otherwise.
    pub rejected: u64,
    /// Requests without an answer: what became of them is unknown.
    pub unanswered: u64,
    /// Requests that should have left and did not.
    pub unsent: u64,
    /// `accepted` a second.
    pub accepted_per_second: f64,
    /// From the intended time to the answer.
    pub edge_micros: Option<Percentiles>,
    /// Largest number of cookies that were accepted and not stored, as far as counts survived.
    pub backlog_max: u64,
    /// How the backlog went away.
    pub settled: Settlement,
    /// Cookies that each consumer said it will not get.
    pub lost: Vec<u64>,
    /// Epochs of producers of which each consumer said that their end is unknown.
    pub uncertain_restarts: Vec<u64>,
    /// The kinds of faults, each with the mean seconds between two.
    pub kinds: Vec<(FaultKind, f64)>,
    /// What was done, in the order of time.
    pub events: Vec<FaultEvent>,
    /// Whether every accepted cookie is in every store.
    pub verification: Verification,
    /// What the run says, in sentences.
    pub findings: Vec<String>,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
}

/// What an outcome is made of.
pub(super) struct Run<'a> {
    pub(super) args: &'a SoakArgs,
    pub(super) seed: u64,
    pub(super) interrupted: bool,
    pub(super) result: &'a LoadResult,
    pub(super) before: &'a Observation,
    pub(super) settled: Settlement,
    pub(super) kinds: &'a [(FaultKind, Duration)],
    pub(super) events: Vec<FaultEvent>,
    /// Producers that were killed.
    pub(super) killed: usize,
    /// When the load began.
    pub(super) began: Instant,
    /// What each node may lack, by its name.
    pub(super) allowed: Vec<(String, AllowedLosses)>,
    pub(super) verification: Verification,
    pub(super) failures: Vec<String>,
    pub(super) observations: &'a [Observation],
}

impl SoakOutcome {
    pub(super) fn new(run: Run<'_>) -> Self {
        let result = run.result;
        let counts = &result.counts;
        let last = run.observations.last().unwrap_or(run.before);
        let nodes = |of: fn(&ProcessCounts) -> u64| -> Vec<u64> {
            last.of(Role::Consumer)
                .map(|observed| of(&observed.counts))
                .collect()
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
            lost: nodes(|counts| counts.lost),
            uncertain_restarts: nodes(|counts| counts.uncertain_restarts),
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
        let edge_is_struck = self.kinds.iter().any(|(kind, _)| kind.affects_edge());
        let without_answer = self.rejected + self.unanswered;
        if without_answer > 0 && !edge_is_struck {
            self.failures.push(format!(
                "{without_answer} requests were refused or not answered, though no producer was struck"
            ));
        }
        let lost: u64 = self.lost.iter().sum();
        if lost == 0 {
            self.findings
                .push("no consumer had to be told that it lost a cookie".to_owned());
        }
        let verdicts = self.verification.verdicts.iter();
        let wrong = verdicts.filter(|verdict| !verdict.has_passed());
        self.failures.extend(wrong.map(StoreVerdict::line));
    }

    /// Holds what is missing against what the consumers reported.
    fn check_losses(&mut self, killed: usize, allowed: &[(String, AllowedLosses)], began: Instant) {
        for verdict in &self.verification.verdicts {
            let of_node = allowed.iter().find(|(node, _)| *node == verdict.node);
            let Some((node, allowed)) = of_node.filter(|_| verdict.explained > 0) else {
                continue;
            };
            let exceeded = allowed.exceeded(&verdict.lost, began);
            let exceeded = exceeded.iter().map(|what| format!("{node}: {what}"));
            self.failures.extend(exceeded);
            let reported = allowed.reported;
            self.findings.push(format!(
                "{node}: {} pairs are missing or stale and allowed: the {} requests they lack at least were under way while their \
                 producers accepted what the node's consumer reported: gaps ({} cookies) and ends of epochs of producers ({}, \
                 with {} cookies at most; producers were killed {}), give or take two seconds",
                grouped(verdict.explained),
                grouped(verdict.lost.len() as u64),
                grouped(reported.cookies_in_gaps),
                grouped(reported.ends),
                grouped(reported.cookies_at_ends_max),
                plural(killed, "time")
            ));
            if reported.ends_without_bound > 0 {
                self.findings.push(format!(
                    "{node}: of {} of these ends no bound is known, so that they allow any number",
                    grouped(reported.ends_without_bound)
                ));
            }
        }
    }

    /// True when nothing is missing but what may be.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// The summary for a person.
    #[must_use]
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
                "sent {}, accepted {}, refused {}, unanswered {}, unsent {}",
                grouped(self.sent),
                grouped(self.accepted),
                grouped(self.rejected),
                grouped(self.unanswered),
                grouped(self.unsent)
            ),
            format!(
                "at most {} waiting; all stored {:.1} s after the end; lost {:?}, uncertain restarts {:?}",
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
                .map(|failure| format!("WRONG     {failure}")),
        );
        lines.join("\n")
    }
}
