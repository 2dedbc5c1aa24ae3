//! One step, that is, a load at one rate: its measurements, computed from the observations before and after it, and whether
//! its rate was sustained.

use metric_defs::MetricDef;
use testkit::{
    numbers::{duration, grouped, per_second, rate},
    observe::{Observation, ProcessCounts, ProcessSample, Role},
    scrape::{Buckets, names},
};

use super::cluster_run::{LoadRun, Settlement};
use crate::report::micros_per;

/// Minimum fraction of offered requests that must be accepted.
const ACCEPTED_SHARE: f64 = 0.99;

/// Roles in data-flow order, with their names.
const ROLES: [(Role, &str); 4] = [
    (Role::Generator, "the generator"),
    (Role::Producer, "producers"),
    (Role::Consumer, "consumers"),
    (Role::Mongod, "mongod"),
];

/// One step.
pub(super) struct Step {
    /// Configured requests per second.
    pub(super) rate: u64,
    /// Requests due during the load.
    pub(super) offered: u64,
    pub(super) load_run: LoadRun,
    /// Cookies stored per second by the slowest node during the load.
    pub(super) stored_per_second: f64,
    /// Maximum backlog observed.
    pub(super) backlog_max: u64,
    pub(super) settled: Settlement,
    /// Observation after the backlog was stored.
    pub(super) end: Observation,
    /// Why the measurements are not reliable, if so.
    pub(super) ended_early: Option<&'static str>,
}

/// Resource usage of a process.
pub(super) struct ProcessUse<'a> {
    /// The process at the end of the step.
    pub(super) sample: &'a ProcessSample,
    /// Cores used during the load.
    pub(super) cores: f64,
    /// CPU time per accepted cookie, until all cookies were stored.
    pub(super) cpu_micros_per_cookie: f64,
}

impl Step {
    /// A step, from the observations since its start.
    pub(super) fn new(
        rate: u64,
        load_run: LoadRun,
        observed: &[Observation],
        settled: Settlement,
        ended_early: Option<&'static str>,
    ) -> Self {
        let (before, after) = (&load_run.before, &load_run.after);
        // If the load ended early: the requests that were due by then.
        let due = load_run.outcome.counts.sent + load_run.outcome.counts.unsent;
        let duration = load_run.outcome.plan.duration.unwrap_or_default();
        let offered = u128::from(rate) * duration.as_millis() / 1_000;
        // Excludes the first second, in which no cookie may be stored yet.
        let second = observed.get(1).filter(|it| it.at < after.at);
        let stored = after.settled_per_second(second.unwrap_or(before));
        Self {
            rate,
            offered: u64::try_from(offered).unwrap_or(u64::MAX).min(due.max(1)),
            stored_per_second: stored.min_by(f64::total_cmp).unwrap_or(0.0),
            backlog_max: observed.iter().map(Observation::backlog).max().unwrap_or(0),
            settled,
            end: observed.last().unwrap_or(after).clone(),
            ended_early,
            load_run,
        }
    }

    /// Requests with response 200.
    pub(super) fn accepted(&self) -> u64 {
        self.load_run.outcome.counts.accepted
    }

    pub(super) fn accepted_per_second(&self) -> f64 {
        per_second(self.accepted(), self.load_run.outcome.seconds)
    }

    /// Cookies accepted but not stored on the slowest node at the end of the load.
    pub(super) fn backlog(&self) -> u64 {
        self.load_run.after.backlog()
    }

    /// Observations of a histogram, over all nodes.
    pub(super) fn histogram(&self, metric: MetricDef) -> Buckets {
        let buckets = self.end.histogram(metric);
        buckets.since(&self.load_run.before.histogram(metric))
    }

    /// Increase of a counter, over all processes.
    pub(super) fn increase(&self, metric: MetricDef) -> u64 {
        let sum = |at: &Observation| -> u64 {
            let processes = at.processes.iter();
            processes.map(|seen| seen.counts.of(metric)).sum()
        };
        sum(&self.end).saturating_sub(sum(&self.load_run.before))
    }

    /// Names of the nodes, with their counts during the step.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, ProcessCounts)> {
        let before = self.load_run.before.of(Role::Consumer);
        let pairs = self.end.of(Role::Consumer).zip(before);
        pairs.map(|(now, then)| (now.name.as_str(), now.counts.since(&then.counts)))
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessUse<'_>> {
        let (before, after) = (&self.load_run.before, &self.load_run.after);
        let cores = after.cores_since(before);
        let pairs = self.end.processes.iter().zip(&before.processes).zip(cores);
        pairs.map(|((now, then), cores)| ProcessUse {
            sample: now,
            cores,
            cpu_micros_per_cookie: micros_per(
                now.cpu.saturating_sub(then.cpu).as_secs_f64(),
                self.accepted(),
            ),
        })
    }

    /// Sum over all processes of a role.
    pub(super) fn sum(&self, role: Role, of: impl Fn(&ProcessUse<'_>) -> f64) -> f64 {
        let processes = self.processes().filter(|used| used.sample.role == role);
        processes.fold(0.0, |sum, used| sum + of(&used))
    }

    /// Why the rate was not sustained; `None` if accepted and stored cookies kept up with it.
    pub(super) fn failure_reason(&self) -> Option<String> {
        if let Some(reason) = self.ended_early {
            return Some(reason.to_owned());
        }
        let mut reasons = Vec::new();
        if (self.accepted() as f64) < ACCEPTED_SHARE * self.offered as f64 {
            let accepted = format!("accepted only {}", rate(self.accepted_per_second()));
            let limit = self.load_run.outcome.generator_limit();
            reasons
                .push(limit.map_or(accepted.clone(), |why| format!("{accepted}, because {why}")));
        }
        // Cookies in transit (chunk age, flush interval, current batch) are far below one second of the rate.
        if self.backlog() > self.rate {
            reasons.push(format!("stored only {}", rate(self.stored_per_second)));
        }
        if reasons.is_empty() {
            return None;
        }
        let used = ROLES.map(|(role, name)| format!("{name} {:.2}", self.sum(role, |it| it.cores)));
        reasons.push(format!("used cores: {}", used.join(", ")));
        Some(reasons.join("; "))
    }

    /// `yes` or `no`, depending on whether the rate was sustained; or the reason why this is unknown.
    pub(super) fn verdict(&self) -> &'static str {
        let sustained = self.failure_reason().map_or("yes", |_| "no");
        self.ended_early.unwrap_or(sustained)
    }

    /// Summary in one line.
    pub(super) fn line(&self) -> String {
        format!(
            "{:>11}: accepted {:>11}, stored {:>11}, backlog {} ({:.1} s to store), latency to stored {}; sustained: {}",
            rate(self.rate as f64),
            rate(self.accepted_per_second()),
            rate(self.stored_per_second),
            grouped(self.backlog()),
            self.settled.seconds,
            self.stored_latency(),
            self.verdict()
        )
    }

    /// Latency from acceptance to durability, over all nodes.
    pub(super) fn stored_latency(&self) -> String {
        let stored = self.histogram(names::STORED_SECONDS);
        #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let text = |quantile: f64| {
            let seconds = stored.quantile(quantile);
            seconds.map_or_else(|| "-".to_owned(), |it| duration((it * 1e6) as u64))
        };
        format!("p50 {}  p99 {}", text(0.5), text(0.99))
    }

    /// Events that are failures at any rate.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let counts = &self.load_run.outcome.counts;
        for (count, problem) in [
            (
                counts.errors() - counts.unanswered,
                "were rejected by the edge",
            ),
            (counts.unanswered, "received no response"),
            (self.increase(names::LOST), "were lost"),
            (self.increase(names::FAILED), "could not be stored"),
        ] {
            if count > 0 {
                failures.push(format!("{}/s: {count} cookies {problem}", self.rate));
            }
        }
        for (name, counts) in self.nodes() {
            let (received, accepted) = (counts.of(names::RECEIVED), self.accepted());
            if self.settled.remaining == 0 && received != accepted {
                failures.push(format!(
                    "{}/s: {name} received {received} of {accepted} accepted cookies",
                    self.rate
                ));
            }
        }
        failures
    }
}
