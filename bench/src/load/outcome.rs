//! What a load saw.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::{
    generator::Generator,
    history::History,
    plan::Plan,
    second::{Collector, Second},
    tally::Tally,
};
use crate::{cpu::CpuTime, report::Percentiles};

/// What a load saw.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Number of connections.
    pub connections: usize,
    /// Most requests without an answer on each connection.
    pub pipeline: usize,
    /// Requests a second that should have left; `None` for as fast as answers came.
    pub rate: Option<NonZeroU64>,
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
    /// Requests that should have left, by the rate, and did not; and what connections that were given up still had to send.
    pub unsent: u64,
    /// Connections opened again.
    pub reconnects: u64,
    /// Connections that broke and could not be opened again within 30 s.
    pub given_up: usize,
    /// From sending, or with a rate from the intended time, to the answer 200; of a request without an answer, until it
    /// was given up, which is the least it would have taken. Requests that were refused are not in it.
    pub latency_micros: Option<Percentiles>,
    /// With a rate: from the intended time to the time a request was given to the system.
    pub send_delay_micros: Option<Percentiles>,
    /// Whether the generator was the limit.
    pub generator: Generator,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// Second by second.
    pub by_second: Vec<Second>,
    /// Latencies, all of them.
    pub latency: Histogram<u64>,
    /// How many requests each connection sent: numbers 0 to this of its stream of the traffic.
    pub sent_by_connection: Vec<u64>,
    /// What became of each request, by connection; empty unless the plan keeps it.
    pub histories: Vec<History>,
}

/// Answers that were not the right one, by kind.
#[derive(Debug, Clone, Default)]
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

/// What an [`Outcome`] is made from.
pub(super) struct Measured<'a> {
    pub(super) started: Instant,
    pub(super) elapsed: Duration,
    pub(super) interrupted: bool,
    pub(super) cpu: CpuTime,
    pub(super) collector: Collector<'a>,
    /// In order.
    pub(super) connections: Vec<(Tally, History)>,
}

impl Measured<'_> {
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
        let delay = Percentiles::of(&times.generator_delay);
        let send_delay = Percentiles::of(&times.send_delay);
        let is_behind = unsent > 0 || send_delay.as_ref().is_some_and(Generator::is_late);
        Outcome {
            connections: plan.connections.get(),
            pipeline: plan.pipeline_max(),
            rate: plan.rate,
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
            latency_micros: Percentiles::of(&times.latency),
            send_delay_micros: send_delay,
            generator: Generator::assess(delay, is_behind, &self.collector.threads),
            cpu: self.cpu,
            sent_by_connection: histories.iter().map(History::sent).collect(),
            latency: self.collector.times.latency,
            by_second: self.collector.seconds,
            histories: histories.into_iter().filter(History::keeps_all).collect(),
        }
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
}
