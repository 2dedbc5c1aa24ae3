//! What a load saw, as a program reads it and as a person does.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    connection::RECONNECT_PATIENCE,
    generator::{Generator, Limit},
    history::History,
    plan::Plan,
    profile::Steps,
    recorder::{Counts, StepPart, merge},
    second::{Collector, Second},
    tally::Tally,
};
use crate::{
    cpu::{CpuSeconds, CpuTime},
    report::{self, Percentiles, micros_each, micros_histogram, per_second},
};

/// What a load saw.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Where the requests went.
    pub urls: Vec<String>,
    /// Number of connections.
    pub connections: usize,
    /// Most requests without an answer on each connection.
    pub pipeline: usize,
    /// Threads they were sent from.
    pub threads: usize,
    /// When requests should have left, in words; `None` for as fast as answers came.
    pub schedule: Option<String>,
    /// Seed of the cookies.
    pub seed: u64,
    /// From the start to the last answer; when requests stayed without one, or did not leave, at least to when the last was
    /// due, or else to the end of the run.
    pub seconds: f64,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// Malformed requests that were refused with 4xx.
    pub refused_as_expected: u64,
    /// Requests answered otherwise, or not.
    pub errors: Errors,
    /// Requests that should have left, by the schedule, and did not; and what connections that were given up still had to
    /// send.
    pub unsent: u64,
    /// Connections opened again.
    pub reconnects: u64,
    /// Connections that broke and could not be opened again within 30 s.
    pub given_up: usize,
    /// `accepted` a second.
    pub accepted_per_second: f64,
    /// From sending, or with a schedule from the intended time, to the answer 200; of a request without an answer, until it
    /// was given up, which is the least it would have taken. Requests that were refused are not in it.
    pub latency_micros: Option<Percentiles>,
    /// With a schedule: from the intended time to the time a request was given to the system.
    pub send_delay_micros: Option<Percentiles>,
    /// Whether the generator was the limit.
    pub generator: Generator,
    /// CPU time of this process.
    pub cpu_seconds: CpuSeconds,
    /// CPU time of this process for each request, the kernel's included.
    pub cpu_micros_per_request: f64,
    /// CPU time of this process for each request, without the kernel's.
    pub user_cpu_micros_per_request: f64,
    /// Of a ramp.
    pub steps: Vec<Step>,
    /// Second by second.
    pub by_second: Vec<Second>,
    /// Latencies, all of them.
    #[serde(skip)]
    pub latency: Histogram<u64>,
    /// How many requests each connection sent: numbers 0 to this of its stream of the traffic.
    #[serde(skip)]
    pub sent_by_connection: Vec<u64>,
    /// What became of each request, by connection; empty unless the plan keeps it.
    #[serde(skip)]
    pub histories: Vec<History>,
}

/// Answers that were not the right one, by kind.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Errors {
    /// All of them.
    pub total: u64,
    /// Answers with another status than 200 to well-formed requests, or other than 4xx to malformed ones.
    pub status: BTreeMap<u16, u64>,
    /// Malformed requests that were answered with 200.
    pub accepted_malformed: u64,
    /// Answers that are not HTTP, or that nobody asked for.
    pub malformed: u64,
    /// Requests whose connection ended, or whose answer did not come in time.
    pub unanswered: u64,
}

/// What a load saw of the requests that should have left in one step of a ramp.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Requests a second.
    pub rate: u64,
    /// How long it was.
    pub seconds: f64,
    /// Requests that should have left.
    pub intended: u64,
    /// What became of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// From the intended time to the answer 200, or until it was given up.
    pub latency_micros: Option<Percentiles>,
}

/// What an [`Outcome`] is made from.
pub(super) struct Measured {
    pub(super) threads: usize,
    pub(super) started: Instant,
    pub(super) elapsed: Duration,
    pub(super) interrupted: bool,
    pub(super) cpu: CpuTime,
    pub(super) collector: Collector,
    /// In order.
    pub(super) connections: Vec<(Tally, History)>,
    pub(super) steps: Vec<StepPart>,
}

impl Measured {
    pub(super) fn outcome(self, plan: &Plan) -> Outcome {
        let mut errors = Errors::default();
        let (mut sent, mut accepted, mut unsent) = (0, 0, 0);
        let (mut reconnects, mut given_up, mut refused_as_expected) = (0, 0, 0);
        let mut ended = self.started;
        let mut histories = Vec::with_capacity(self.connections.len());
        for (tally, history) in self.connections {
            sent += tally.sent;
            accepted += tally.accepted;
            refused_as_expected += tally.refused_as_expected;
            unsent += tally.unsent;
            reconnects += tally.reconnects;
            given_up += usize::from(tally.is_given_up);
            errors.add(&tally);
            ended = ended.max(tally.last_answer_at.unwrap_or(self.started));
            histories.push(history);
        }
        if errors.unanswered > 0 || unsent > 0 || given_up > 0 {
            let due = plan.last_due();
            let lasted = due.map_or(self.elapsed, |due| due.min(self.elapsed));
            ended = ended.max(self.started + lasted);
        }
        let seconds = (ended - self.started).as_secs_f64();
        let times = &self.collector.times;
        let schedule = match (&plan.schedule, &plan.replay) {
            (Some(profile), _) => Some(profile.to_string()),
            (None, Some(replay)) => replay.speed.map(|speed| format!("as recorded, × {speed}")),
            (None, None) => None,
        };
        let steps = plan
            .schedule
            .as_ref()
            .and_then(|profile| profile.as_steps());
        let delay = Percentiles::of(&times.generator_delay);
        let send_delay = Percentiles::of(&times.send_delay);
        let is_behind = unsent > 0 || send_delay.as_ref().is_some_and(Generator::is_late);
        Outcome {
            urls: plan.urls.iter().map(ToString::to_string).collect(),
            connections: plan.connections.get(),
            pipeline: plan.pipeline_max(),
            threads: self.threads,
            schedule,
            seed: plan.traffic.seed(),
            seconds,
            interrupted: self.interrupted,
            sent,
            accepted,
            refused_as_expected,
            errors,
            unsent,
            reconnects,
            given_up,
            accepted_per_second: per_second(accepted, seconds),
            latency_micros: Percentiles::of(&times.latency),
            send_delay_micros: send_delay,
            generator: Generator::assess(delay, is_behind, &self.collector.threads),
            cpu_seconds: self.cpu.seconds(),
            cpu_micros_per_request: micros_each(self.cpu.total().as_secs_f64(), sent),
            user_cpu_micros_per_request: micros_each(self.cpu.user.as_secs_f64(), sent),
            steps: steps.map_or_else(Vec::new, |steps| {
                Step::all(steps, &self.steps, self.elapsed)
            }),
            sent_by_connection: histories.iter().map(History::sent).collect(),
            latency: self.collector.times.latency,
            by_second: self.collector.seconds,
            histories: histories.into_iter().filter(History::keeps_all).collect(),
        }
    }
}

impl Step {
    /// The steps that have begun within `elapsed`, of the parts of all threads.
    fn all(steps: &Steps, parts: &[StepPart], elapsed: Duration) -> Vec<Self> {
        let each = steps.each.as_secs_f64();
        let begun = (0..).map(|index| f64::from(index) * each);
        let begun = steps
            .rates
            .iter()
            .zip(begun)
            .take_while(|(_, begun)| *begun < elapsed.as_secs_f64());
        let step = |(index, (rate, _)): (usize, (&std::num::NonZeroU64, f64))| {
            let (mut counts, mut latency) = (Counts::default(), micros_histogram());
            for part in parts.iter().skip(index).step_by(steps.rates.len()) {
                counts.add(&part.counts);
                merge(&mut latency, &part.latency);
            }
            let profile = super::Profile::steps(steps.rates.clone(), steps.each);
            let at = |step: usize| {
                let nanos = steps.each.as_nanos() * step as u128;
                profile.requests_before(u64::try_from(nanos).unwrap_or(u64::MAX))
            };
            Self {
                rate: rate.get(),
                seconds: each,
                intended: at(index + 1) - at(index),
                counts,
                latency_micros: Percentiles::of(&latency),
            }
        };
        begun.enumerate().map(step).collect()
    }
}

impl Outcome {
    /// True when every request was answered as it should be, and, unless the load was stopped before its end, all left
    /// that should have, and no connection was given up.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.errors.total == 0 && self.given_up == 0 && (self.unsent == 0 || self.interrupted)
    }

    pub(super) fn unsent_line(&self) -> String {
        let why = if self.interrupted {
            "the load was stopped"
        } else if self.given_up > 0 {
            "connections were given up"
        } else {
            match self.generator.limited_by {
                Limit::Generator => "the generator was the limit",
                Limit::Processors => "the processors were the limit",
                Limit::None | Limit::Unknown => "the answers came too slowly for this rate",
            }
        };
        format!(
            "{} requests were due and not sent, and no latency tells of them: {why}",
            report::grouped(self.unsent)
        )
    }

    pub(super) fn given_up_line(&self) -> String {
        format!(
            "{} connections were given up after {} without a way to open them again",
            self.given_up,
            humantime::format_duration(RECONNECT_PATIENCE)
        )
    }

    /// What the latency says of requests that were not accepted, if there are such.
    pub(super) fn latency_note(&self) -> String {
        let mut notes = Vec::new();
        let unanswered = self.errors.unanswered + self.errors.malformed;
        if unanswered > 0 {
            notes.push(format!(
                "at least, since {} without an answer count until they were given up",
                report::grouped(unanswered)
            ));
        }
        let refused = self.refused_as_expected + self.errors.status.values().sum::<u64>();
        if refused > 0 {
            notes.push(format!("without {} refused", report::grouped(refused)));
        }
        if notes.is_empty() {
            return String::new();
        }
        format!(" ({})", notes.join("; "))
    }
}

impl Errors {
    fn add(&mut self, tally: &Tally) {
        self.malformed += tally.malformed;
        self.unanswered += tally.unanswered;
        self.accepted_malformed += tally.accepted_malformed;
        for (status, count) in &tally.refused {
            *self.status.entry(*status).or_default() += count;
        }
        let by_status: u64 = self.status.values().sum();
        self.total = self.malformed + self.unanswered + self.accepted_malformed + by_status;
    }

    pub(super) fn summary(&self) -> String {
        if self.total == 0 {
            return "0".to_owned();
        }
        let mut kinds: Vec<_> = self
            .status
            .iter()
            .map(|(status, count)| format!("status {status}: {}", report::grouped(*count)))
            .collect();
        for (kind, count) in [
            ("malformed and accepted", self.accepted_malformed),
            ("no HTTP", self.malformed),
            ("unanswered", self.unanswered),
        ] {
            if count > 0 {
                kinds.push(format!("{kind}: {}", report::grouped(count)));
            }
        }
        format!("{} ({})", report::grouped(self.total), kinds.join(", "))
    }
}
