//! What a run of `bench fanout` found.

use serde::Serialize;

use super::{
    children::{Load, Readers, SlowReaders},
    marginal::Marginal,
    sampler::Sample,
};
use crate::{
    memory::Memory,
    report::{Percentiles, grouped, micros_each, per_second, rate},
    subscribe::Call,
};

/// From this share of the machine's CPU time on, rates are what the machine can do.
const BUSY: f64 = 0.9;

/// All steps, and what follows from them.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Requests a second that were asked for.
    pub rate: Option<u64>,
    /// Processors.
    pub cores: usize,
    /// Finished steps.
    pub steps: Vec<StepOutcome>,
    /// What a further subscriber costs, for each call with steps to tell.
    pub marginals: Vec<Marginal>,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// What is wrong; empty when all is well.
    pub faults: Vec<String>,
}

/// What one number of subscribers took.
#[derive(Debug, Clone, Serialize)]
pub struct StepOutcome {
    /// The subscribers' call.
    pub call: Call,
    /// Number of subscribers, without the slow readers.
    pub subscribers: usize,
    /// Number of slow readers beside them.
    pub slow_readers: usize,
    /// Cookies the slow readers received.
    pub slow_readers_received: u64,
    /// How often a slow reader's stream was ended by the producer.
    pub slow_readers_broken: u64,
    /// How long the load lasted.
    pub seconds: f64,
    /// From the start of the load until every subscriber had been handed everything.
    pub delivered_seconds: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with 200.
    pub accepted: u64,
    /// `accepted` a second.
    pub accepted_per_second: f64,
    /// Requests that should have left, by the rate, and did not.
    pub unsent: u64,
    /// What limited the load on its side: `generator`, `processors`.
    pub limited_by: String,
    /// Cookies in the producer's log.
    pub appended: u64,
    /// Cookies received, over all subscribers.
    pub deliveries: u64,
    /// `deliveries` a second, from the first to the last.
    pub deliveries_per_second: f64,
    /// Cookies not delivered, over all subscribers: declared by the producer, or where the call has no sequences what
    /// is missing of appended × subscribers.
    pub lost: u64,
    /// Cookies neither delivered nor declared lost; negative when some came twice.
    pub unaccounted: i64,
    /// Broken promises of the wire.
    pub violations: u64,
    /// The first of them.
    pub first_violation: Option<String>,
    /// CPU time of the producer, from the start of the load until everything was delivered.
    pub producer_cpu_seconds: f64,
    /// The same for each cookie accepted.
    pub cpu_micros_per_cookie: f64,
    /// The same for each delivery.
    pub cpu_micros_per_delivery: f64,
    /// CPU time of the readers.
    pub readers_cpu_seconds: f64,
    /// The same for each delivery.
    pub readers_cpu_micros_per_delivery: f64,
    /// CPU time of the load's process.
    pub load_cpu_seconds: f64,
    /// The same for each request.
    pub load_cpu_micros_per_request: f64,
    /// Who used how much of the CPU time that the machine had.
    pub share: Share,
    /// Of requests, at the client.
    pub latency_micros: Option<Percentiles>,
    /// From the edge to the reader; only `Subscribe` tells.
    pub delivery_micros: Option<Percentiles>,
    /// Memory of the producer, all delivered.
    pub memory: Memory,
    /// The producer while it worked.
    pub samples: Vec<Sample>,
}

/// Shares of the CPU time that all processors together had.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Share {
    /// The producer.
    pub producer: f64,
    /// The readers.
    pub readers: f64,
    /// The load.
    pub load: f64,
}

/// What was seen of a step.
pub(super) struct Measured {
    pub(super) load: Load,
    pub(super) readers: Readers,
    /// How many there were, and what they saw.
    pub(super) slow_readers: (usize, SlowReaders),
    pub(super) appended: u64,
    pub(super) producer_cpu: f64,
    pub(super) seconds: f64,
    pub(super) memory: Memory,
    pub(super) samples: Vec<Sample>,
}

fn title(call: Call, subscribers: usize) -> String {
    format!("{} ×{subscribers}", call.name())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl StepOutcome {
    pub(super) fn new(call: Call, subscribers: usize, measured: Measured) -> Self {
        let Measured {
            load,
            readers,
            slow_readers: (slow_readers, slow),
            appended,
            producer_cpu,
            seconds,
            memory,
            samples,
        } = measured;
        let expected = appended * subscribers as u64;
        let lost = readers
            .lost
            .unwrap_or_else(|| expected.saturating_sub(readers.received));
        let (readers_cpu, load_cpu) = (readers.cpu_seconds, load.cpu_seconds);
        let available = (seconds * cores() as f64).max(f64::MIN_POSITIVE);
        Self {
            call,
            subscribers,
            slow_readers,
            slow_readers_received: slow.received,
            slow_readers_broken: slow.broken,
            seconds: load.seconds,
            delivered_seconds: seconds,
            sent: load.sent,
            accepted: load.accepted,
            accepted_per_second: load.accepted_per_second,
            unsent: load.unsent,
            limited_by: load.limited_by,
            appended,
            deliveries: readers.received,
            deliveries_per_second: readers.received_per_second,
            lost,
            unaccounted: expected.cast_signed() - (readers.received + lost).cast_signed(),
            violations: readers.violations,
            first_violation: readers.first_violation,
            producer_cpu_seconds: producer_cpu,
            cpu_micros_per_cookie: micros_each(producer_cpu, appended),
            cpu_micros_per_delivery: micros_each(producer_cpu, readers.received),
            readers_cpu_seconds: readers_cpu,
            readers_cpu_micros_per_delivery: micros_each(readers_cpu, readers.received),
            load_cpu_seconds: load_cpu,
            load_cpu_micros_per_request: micros_each(load_cpu, load.sent),
            share: Share {
                producer: producer_cpu / available,
                readers: readers_cpu / available,
                load: load_cpu / available,
            },
            latency_micros: load.latency_micros,
            delivery_micros: readers.delivery_micros,
            memory,
            samples,
        }
    }

    /// `get-cookies ×50`.
    pub(super) fn title(&self) -> String {
        let title = title(self.call, self.subscribers);
        match self.slow_readers {
            0 => title,
            slow_readers => format!("{title} beside {slow_readers} slow readers"),
        }
    }

    /// What to know of a step while others follow.
    pub(super) fn short_line(&self) -> String {
        let [accepted, delivered] =
            [self.accepted_per_second, self.deliveries_per_second].map(rate);
        format!(
            "{}, {accepted} accepted, {delivered} delivered",
            self.title()
        )
    }

    fn faults(&self) -> Vec<String> {
        let title = self.title();
        let mut faults = Vec::new();
        if self.accepted != self.sent {
            let refused = grouped(self.sent.saturating_sub(self.accepted));
            faults.push(format!(
                "{title}: {refused} of {} requests were not accepted",
                grouped(self.sent)
            ));
        }
        if self.appended != self.accepted {
            let (appended, accepted) = (grouped(self.appended), grouped(self.accepted));
            faults.push(format!(
                "{title}: {appended} cookies in the log, {accepted} accepted"
            ));
        }
        match self.unaccounted {
            0 => {}
            1.. => faults.push(format!(
                "{title}: {} cookies were neither delivered nor declared lost",
                grouped(self.unaccounted.unsigned_abs())
            )),
            _ => faults.push(format!(
                "{title}: {} cookies more were delivered than there were",
                grouped(self.unaccounted.unsigned_abs())
            )),
        }
        if let Some(violation) = &self.first_violation {
            let times = grouped(self.violations);
            faults.push(format!(
                "{title}: the wire's promise was broken {times} times; first: {violation}"
            ));
        }
        faults
    }
}

impl Share {
    /// All together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.producer + self.readers + self.load
    }

    /// True when there was hardly CPU time left: rates are then what this machine can do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.total() >= BUSY
    }

    /// Who used most, and its share of what all three used.
    #[must_use]
    pub fn most(&self) -> (&'static str, f64) {
        let all = [
            ("producer", self.producer),
            ("readers", self.readers),
            ("load", self.load),
        ];
        let most = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (who, share) = most.unwrap_or(("producer", 0.0));
        (who, share / self.total().max(f64::MIN_POSITIVE))
    }
}

impl Outcome {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self {
            rate,
            cores: cores(),
            steps: Vec::new(),
            marginals: Vec::new(),
            interrupted: false,
            faults: Vec::new(),
        }
    }

    /// Notes a step that could not be finished; there are none after it.
    pub(super) fn fail(&mut self, call: Call, subscribers: usize, error: &anyhow::Error) {
        let title = title(call, subscribers);
        self.faults
            .push(format!("{title} could not be finished: {error:#}"));
    }

    /// Draws what follows from the steps.
    pub(super) fn conclude(&mut self) {
        let faults = self.steps.iter().flat_map(StepOutcome::faults);
        self.faults.extend(faults);
        self.marginals = [Call::Subscribe, Call::GetCookies]
            .into_iter()
            .filter_map(|call| {
                let points = self
                    .of(call)
                    .map(|step| (step.subscribers as f64, step.cpu_micros_per_cookie));
                Marginal::of(call, &points.collect::<Vec<_>>())
            })
            .collect();
    }

    pub(super) fn of(&self, call: Call) -> impl Iterator<Item = &StepOutcome> {
        self.steps.iter().filter(move |step| step.call == call)
    }

    /// True when every cookie was accepted, and delivered or declared lost.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Deliveries a second that the subscribers of a step would have at the rate of acceptance.
pub(super) fn due_per_second(step: &StepOutcome) -> f64 {
    per_second(step.appended * step.subscribers as u64, step.seconds)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::fanout) fn step(
        call: Call,
        received: u64,
        lost: Option<u64>,
        sent: u64,
    ) -> StepOutcome {
        let load = Load {
            seconds: 2.0,
            sent,
            accepted: 100,
            unsent: 0,
            accepted_per_second: 50.0,
            latency_micros: None,
            limited_by: "nothing here".to_owned(),
            cpu_seconds: 0.5,
        };
        let readers = Readers {
            received,
            lost,
            received_per_second: 0.0,
            violations: 0,
            first_violation: None,
            delivery_micros: None,
            cpu_seconds: 1.0,
        };
        StepOutcome::new(
            call,
            3,
            Measured {
                load,
                readers,
                slow_readers: (0, SlowReaders::default()),
                appended: 100,
                producer_cpu: 0.3,
                seconds: 2.0,
                memory: Memory::default(),
                samples: Vec::new(),
            },
        )
    }

    #[test]
    fn every_cookie_is_accounted_for() {
        use Call::{GetCookies, Subscribe};
        for (call, received, lost, sent, faults) in [
            (Subscribe, 300, Some(0), 100, 0),
            (Subscribe, 290, Some(10), 100, 0),
            (Subscribe, 290, Some(0), 100, 1),
            (Subscribe, 300, Some(1), 100, 1),
            (Subscribe, 300, Some(0), 101, 1),
            (GetCookies, 290, None, 100, 0),
            (GetCookies, 301, None, 100, 1),
        ] {
            let step = step(call, received, lost, sent);
            assert_eq!(step.faults().len(), faults, "{:?}", step.faults());
        }
        assert_eq!(step(GetCookies, 290, None, 100).lost, 10);
    }

    #[test]
    fn cpu_is_told_apart() {
        let step = step(Call::Subscribe, 300, Some(0), 100);
        assert_eq!(step.cpu_micros_per_cookie, 3_000.0);
        assert_eq!(step.cpu_micros_per_delivery, 1_000.0);
        assert_eq!(step.share.most().0, "readers");
        assert!((step.share.most().1 - 1.0 / 1.8).abs() < 1e-9);
    }
}
