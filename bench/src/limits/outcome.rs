//! What a run of `bench limits` found.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Call, LimitsArgs, Pace, Way, generator::Sent, tally::Tally};
use crate::{
    cpu::{CpuSeconds, CpuTime},
    memory::Memory,
    report::{duration, grouped, micros_each, per_second, rate},
};

/// All ways, or the calls at a rate.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Counters.
    pub counters: u64,
    /// Connections to a limiter.
    pub connections: usize,
    /// Most calls without an answer on each, where there is no rate.
    pub pipeline: usize,
    /// How long each way was to be measured, or calls were to be sent.
    pub duration_seconds: f64,
    /// Version of the Redis or Valkey server.
    pub redis_version: Option<String>,
    /// Ways that were measured, in this order.
    pub ways: Vec<WayOutcome>,
    /// Ways that were left out, since there is no Redis.
    pub left_out: Vec<Way>,
    /// Calls to a limiter at a rate, which is instead of ways.
    pub service: Option<ServiceOutcome>,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// What is wrong; empty when all is well.
    pub faults: Vec<String>,
}

/// What one way took.
#[derive(Debug, Clone, Serialize)]
pub struct WayOutcome {
    /// The way.
    pub way: Way,
    /// Decisions.
    pub decisions: u64,
    /// In so long a time.
    pub seconds: f64,
    /// `decisions` a second.
    pub per_second: f64,
    /// Decisions in each whole second.
    pub each_second: Vec<f64>,
    /// Of a decision; in process of each 64th.
    pub latency_micros: Option<Latency>,
    /// CPU time of this process for each decision.
    pub client_cpu_micros: f64,
    /// Likewise of the limiter.
    pub service_cpu_micros: Option<f64>,
    /// Likewise of Redis.
    pub redis_cpu_micros: Option<f64>,
    /// Decisions that did not let the call go at once, or were not made.
    pub wrong: u64,
    /// Why the first of them.
    pub first_wrong: Option<String>,
}

/// Calls to a limiter.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceOutcome {
    /// Calls a second that were asked for; `null` for as fast as answers come.
    pub rate: Option<u64>,
    /// Which calls, with their weights.
    pub mix: String,
    /// For how long they were sent.
    pub seconds: f64,
    /// Calls that left.
    pub sent: u64,
    /// Calls that were due, and did not leave.
    pub unsent: u64,
    /// Calls without an answer.
    pub unanswered: u64,
    /// Answers a second.
    pub answered_per_second: f64,
    /// From when a call was due, or without a rate left, until its answer.
    pub latency_micros: Option<Latency>,
    /// Of each kind of call.
    pub calls: Vec<CallOutcome>,
    /// From when a call was due until it left, which is part of its latency.
    pub late_micros: Option<Latency>,
    /// CPU time of the limiter.
    pub service_cpu_seconds: CpuSeconds,
    /// The same for each call.
    pub service_cpu_micros: f64,
    /// CPU time of this process for each call.
    pub client_cpu_micros: f64,
    /// Memory of the limiter in the end.
    pub service_memory: Memory,
    /// Clients that never read.
    pub stalled: StalledOutcome,
}

/// Calls of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct CallOutcome {
    /// The call.
    pub call: Call,
    /// Answers.
    pub answered: u64,
    /// Those that were wrong.
    pub wrong: u64,
    /// Why the first of them.
    pub first_wrong: Option<String>,
    /// As of all calls.
    pub latency_micros: Option<Latency>,
}

/// Clients that send calls and never read an answer.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StalledOutcome {
    /// How many.
    pub clients: usize,
    /// What the limiter's side took of them.
    pub sent_bytes: u64,
    /// How often the limiter ended one's connection.
    pub cut: u64,
}

/// Percentiles of a time, in microseconds and parts of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds; `None` when it is empty.
    pub(super) fn of(nanos: &Histogram<u64>) -> Option<Self> {
        let quantile = |quantile| nanos.value_at_quantile(quantile) as f64 / 1e3;
        (!nanos.is_empty()).then(|| Self {
            mean: nanos.mean() / 1e3,
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: nanos.max() as f64 / 1e3,
        })
    }
}

impl Outcome {
    /// Of a run that has measured nothing yet.
    pub(super) fn new(args: &LimitsArgs) -> Self {
        Self {
            counters: args.counters,
            connections: args.connections.get(),
            pipeline: args.pipeline.get(),
            duration_seconds: args.duration.as_secs_f64(),
            redis_version: None,
            ways: Vec::new(),
            left_out: Vec::new(),
            service: None,
            interrupted: false,
            faults: Vec::new(),
        }
    }

    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    pub(super) fn find_faults(&mut self) {
        let fault = |name: &str, count: u64, what: &str, why: Option<&String>| {
            let why = why.map_or_else(String::new, |why| format!("; the first: {why}"));
            (count > 0).then(|| format!("{name}: {} {what}{why}", grouped(count)))
        };
        let of_ways = self.ways.iter().filter_map(|way| {
            let what = "decisions did not let a call go at once, or were not made";
            fault(way.way.name(), way.wrong, what, way.first_wrong.as_ref())
        });
        self.faults.extend(of_ways);
        let Some(service) = &self.service else { return };
        let calls = service.calls.iter().filter_map(|it| {
            let (name, why) = (it.call.name(), it.first_wrong.as_ref());
            fault(name, it.wrong, "answers were wrong", why)
        });
        self.faults.extend(calls);
        let counts = [
            (service.unanswered, "had no answer"),
            (service.unsent, "were due and did not leave"),
        ];
        let counts = counts.map(|(count, what)| fault("calls", count, what, None));
        self.faults.extend(counts.into_iter().flatten());
    }
}

impl WayOutcome {
    /// What was decided in so long a time, with the CPU time of this process and of the server.
    pub(super) fn new(way: Way, tally: &Tally, took: Duration, cpu: [Duration; 2]) -> Self {
        let (decisions, seconds) = (tally.count(), took.as_secs_f64());
        let [client, server] = cpu.map(|cpu| micros_each(cpu.as_secs_f64(), decisions));
        Self {
            way,
            decisions,
            seconds,
            per_second: per_second(decisions, seconds),
            each_second: tally.whole_seconds(took),
            latency_micros: Latency::of(&tally.nanos),
            client_cpu_micros: client,
            service_cpu_micros: way.needs_limiter().then_some(server),
            redis_cpu_micros: way.needs_redis().then_some(server),
            wrong: tally.wrong,
            first_wrong: tally.first_wrong.clone(),
        }
    }

    /// The line of a way.
    pub(super) fn line(&self) -> String {
        let (name, rate) = (self.way.name(), rate(self.per_second));
        match self.latency_micros {
            Some(latency) => format!("{name:>8} {rate:>14}, p99 {:.3} µs", latency.p99),
            None => format!("{name:>8} {rate:>14}"),
        }
    }
}

impl ServiceOutcome {
    /// What was sent, with the CPU time of this process and of the limiter.
    pub(super) fn new(
        args: &LimitsArgs,
        pace: Pace,
        sent: &Sent,
        cpu: [CpuTime; 2],
        service_memory: Memory,
        stalled: StalledOutcome,
    ) -> Self {
        let (all, seconds) = (sent.all(), sent.length.as_secs_f64());
        let answered = all.count();
        let [client, limiter] = cpu.map(|it| micros_each(it.total().as_secs_f64(), answered));
        let calls = Call::ALL.into_iter().zip(&sent.calls);
        let calls = calls.filter(|(_, tally)| tally.count() > 0);
        Self {
            rate: match pace {
                Pace::Rate(rate) => Some(rate.get()),
                Pace::Max => None,
            },
            mix: args.mix.to_string(),
            seconds,
            sent: sent.sent,
            unsent: sent.unsent,
            unanswered: sent.unanswered,
            answered_per_second: per_second(answered, seconds),
            latency_micros: Latency::of(&all.nanos),
            calls: calls
                .map(|(call, tally)| CallOutcome {
                    call,
                    answered: tally.count(),
                    wrong: tally.wrong,
                    first_wrong: tally.first_wrong.clone(),
                    latency_micros: Latency::of(&tally.nanos),
                })
                .collect(),
            late_micros: Latency::of(&sent.late_nanos),
            service_cpu_seconds: cpu[1].seconds(),
            service_cpu_micros: limiter,
            client_cpu_micros: client,
            service_memory,
            stalled,
        }
    }

    /// What there is to say of the time that calls took.
    pub(super) fn sentence(&self) -> Option<String> {
        let latency = self.latency_micros?;
        #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let time = |micros: f64| duration(micros.round() as u64);
        Some(format!(
            "{} were answered: p99 {}, mean {}.",
            rate(self.answered_per_second),
            time(latency.p99),
            time(latency.mean)
        ))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn outcome() -> Outcome {
        let mut tally = Tally::default();
        tally.decided(Duration::from_millis(500), 1_000);
        tally.took(Duration::from_nanos(2_500));
        let cpu = [Duration::from_millis(10), Duration::from_millis(20)];
        let took = Duration::from_millis(1_500);
        let way = |way| WayOutcome::new(way, &tally, took, cpu);
        Outcome {
            counters: 10,
            connections: 1,
            pipeline: 1,
            duration_seconds: 1.5,
            redis_version: Some("7.0.15".to_owned()),
            ways: Way::ALL.map(way).to_vec(),
            left_out: Vec::new(),
            service: None,
            interrupted: false,
            faults: Vec::new(),
        }
    }

    #[test]
    fn cpu_is_of_the_part_that_used_it() {
        let outcome = outcome();
        let cpu = outcome.ways.iter().map(|way| {
            let servers = (way.service_cpu_micros, way.redis_cpu_micros);
            (way.client_cpu_micros, servers)
        });
        let none = (10.0, (None, None));
        let redis = (10.0, (None, Some(20.0)));
        let limiter = (10.0, (Some(20.0), None));
        assert!(cpu.eq([none, none, redis, redis, redis, limiter]));
        let way = &outcome.ways[0];
        assert_eq!((way.decisions, way.each_second.len()), (1_000, 1));
        assert!(way.latency_micros.is_some_and(|it| it.p99.round() == 3.0));
    }

    #[test]
    fn what_is_wrong_is_a_fault() {
        let mut outcome = outcome();
        outcome.find_faults();
        assert!(outcome.is_faultless());
        outcome.ways[1].wrong = 7;
        outcome.ways[1].first_wrong = Some("no".to_owned());
        outcome.find_faults();
        let [fault] = outcome.faults.as_slice() else {
            panic!("{:?}", outcome.faults);
        };
        assert!(fault.starts_with("governor: 7 ") && fault.ends_with("the first: no"));
    }
}
