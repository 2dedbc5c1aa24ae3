//! The report of `bench fanout`.

use super::{Marginal, Outcome, StepOutcome, outcome::due_per_second, sampler::Sample};
use crate::{
    report::{
        Axis, Figure, Plot, Report, Row, Series, grouped, lines, rate,
        unit::{COUNT, CPU, MEBIBYTES, MILLIS, PERCENT, RATE},
    },
    subscribe::Call,
};

const CALLS: [Call; 2] = [Call::Subscribe, Call::GetCookies];

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let load = self.rate.map_or_else(
            || "unlimited load".to_owned(),
            |asked| format!("{} asked for", rate(asked as f64)),
        );
        let mut report = Report::new("fanout", &format!("Cost of subscribers, {load}"));
        report.seconds = self.steps.iter().map(|step| step.delivered_seconds).sum();
        report.findings = self.findings();
        report.faults.clone_from(&self.faults);
        let (deliveries, resources) = (self.deliveries(), self.resources());
        let note = "Due: accepted × subscribers. Delivery is from the edge to the reader, where the call tells; \
                    lost of get-cookies is what is missing of accepted × subscribers.";
        report.add("Deliveries", note, deliveries.clone());
        let note = format!(
            "µs of CPU time, in the kernel included; shares are of the CPU time that {} cores had. A further subscriber: \
             against the step before. Memory is the producer's largest, its log included.",
            self.cores
        );
        report.add("CPU and memory", &note, resources.clone());
        let note = "The straight line nearest to all steps of a call.";
        report.add("A further subscriber", note, self.further());
        report.plots = plots(&deliveries, &resources);
        report.with_outcome(self)
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }

    fn findings(&self) -> Vec<String> {
        let mut findings: Vec<String> = self.marginals.iter().map(Marginal::sentence).collect();
        for call in CALLS {
            let most = self
                .of(call)
                .max_by(|a, b| a.deliveries_per_second.total_cmp(&b.deliveries_per_second));
            findings.extend(most.map(|step| {
                format!(
                    "{}: at most {} were delivered, with {} subscribers.",
                    call.name(),
                    rate(step.deliveries_per_second),
                    step.subscribers
                )
            }));
        }
        findings.push(self.lost_finding());
        findings.extend(self.limit_findings());
        if self.interrupted {
            findings.push(
                "The run was ended before its time; the steps that were finished are here."
                    .to_owned(),
            );
        }
        findings
    }

    fn lost_finding(&self) -> String {
        let lossy: Vec<String> = self
            .steps
            .iter()
            .filter(|step| step.lost > 0)
            .map(|step| format!("{} ({})", step.title(), grouped(step.lost)))
            .collect();
        if lossy.is_empty() {
            "Nothing was lost.".to_owned()
        } else {
            format!(
                "Subscribers that were too far behind lost the oldest cookies, as they should: {}.",
                lossy.join(", ")
            )
        }
    }

    /// Who limits what was measured, besides the producer.
    fn limit_findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        let busy: Vec<_> = self
            .steps
            .iter()
            .filter(|step| step.share.is_busy())
            .collect();
        if !busy.is_empty() {
            let titles: Vec<_> = busy.iter().map(|step| step.title()).collect();
            findings.push(format!(
                "The machine had no CPU time left in {}: these rates are what it can do with readers and load on it; \
                 the CPU figures carry over.",
                titles.join(", ")
            ));
        }
        for (who, what) in [
            ("readers", "The readers"),
            ("load", "The generator of the load"),
        ] {
            let steps = self.steps.iter().filter(|step| step.share.most().0 == who);
            let steps: Vec<_> = steps
                .map(|step| format!("{} ({:.0} %)", step.title(), 100.0 * step.share.most().1))
                .collect();
            if !steps.is_empty() {
                findings.push(format!(
                    "{what}, not the producer, used most of the CPU in {}.",
                    steps.join(", ")
                ));
            }
        }
        findings.extend(self.steps.iter().filter_map(StepOutcome::load_finding));
        findings
    }

    /// Step by step, what was accepted and delivered.
    fn deliveries(&self) -> Vec<Row> {
        let row = |step: &StepOutcome| {
            let offered = match self.rate.filter(|_| step.unsent > 0) {
                Some(asked) => asked as f64,
                None => step.sent as f64 / step.seconds.max(f64::MIN_POSITIVE),
            };
            let [accepted, deliveries] = [step.accepted_per_second, step.deliveries_per_second];
            step.row([
                RATE.of("offered", offered),
                RATE.of("accepted", accepted)
                    .higher()
                    .sampled(step.samples(|sample| sample.accepted_per_second)),
                RATE.of("deliveries", deliveries)
                    .higher()
                    .sampled(step.samples(|sample| sample.deliveries_per_second)),
                RATE.of("due", due_per_second(step)),
                COUNT.of("lost", step.lost).lower(),
            ])
            .and(MILLIS.percentiles("request ", step.latency_micros, &["p50", "p99"], &[]))
            .and(MILLIS.percentiles(
                "delivery ",
                step.delivery_micros,
                &["p50", "p99"],
                &["p99"],
            ))
        };
        self.steps.iter().map(row).collect()
    }

    /// Step by step, what it took.
    fn resources(&self) -> Vec<Row> {
        let of_call = |call: &Call| {
            let mut before: Option<&StepOutcome> = None;
            self.of(*call).map(move |step| {
                let further = before.and_then(|before| step.further_micros(before));
                before = Some(step);
                step.row([
                    CPU.of("producer CPU per cookie", step.cpu_micros_per_cookie)
                        .lower()
                        .sampled(step.samples(|sample| sample.cpu_micros_per_cookie)),
                    CPU.of("of a further subscriber", further),
                    CPU.of("producer CPU per delivery", step.cpu_micros_per_delivery)
                        .lower(),
                    CPU.of(
                        "readers' CPU per delivery",
                        step.readers_cpu_micros_per_delivery,
                    )
                    .lower(),
                    CPU.of("load's CPU per request", step.load_cpu_micros_per_request),
                    PERCENT.of("share of producer", step.share.producer),
                    PERCENT.of("share of readers", step.share.readers),
                    PERCENT.of("share of load", step.share.load),
                    MEBIBYTES.of("memory", step.memory.peak_bytes).lower(),
                ])
            })
        };
        CALLS.iter().flat_map(of_call).collect()
    }

    /// What a further subscriber costs, by the line through all steps of a call.
    fn further(&self) -> Vec<Row> {
        let row = |marginal: &Marginal| {
            let further = "producer CPU of a further subscriber per cookie";
            Row::new(
                marginal.call.name(),
                [
                    CPU.of(further, marginal.each_micros).lower(),
                    CPU.of("without subscribers", marginal.base_micros),
                ],
            )
        };
        self.marginals.iter().map(row).collect()
    }
}

fn plots(deliveries: &[Row], resources: &[Row]) -> Vec<Plot> {
    let by_subscribers = |name: &str, title: &str, y: Axis, series: Vec<Series>| {
        Plot::new(name, title, Axis::logarithmic("subscribers"), y, series)
    };
    vec![
        by_subscribers(
            "deliveries",
            "Deliveries",
            Axis::linear("cookies a second, all subscribers"),
            lines(deliveries, &["deliveries"]),
        ),
        by_subscribers(
            "accepted",
            "Cookies accepted",
            Axis::linear("cookies a second"),
            lines(deliveries, &["accepted"]),
        ),
        by_subscribers(
            "cpu",
            "CPU of the producer",
            Axis::logarithmic("µs"),
            lines(
                resources,
                &["producer CPU per cookie", "producer CPU per delivery"],
            ),
        ),
        by_subscribers(
            "memory",
            "Memory of the producer",
            Axis::linear("MiB, at most"),
            lines(resources, &["memory"]),
        ),
    ]
}

impl StepOutcome {
    fn row(&self, measures: impl IntoIterator<Item = Figure>) -> Row {
        let call = self.call.name();
        Row::new(self.title(), measures).at(call, self.subscribers as f64)
    }

    fn samples(&self, value: fn(&Sample) -> f64) -> impl Iterator<Item = f64> {
        self.samples.iter().map(value)
    }

    /// Why the load was not what was asked for, or not all that the producer takes.
    fn load_finding(&self) -> Option<String> {
        let (title, limit) = (self.title(), &self.limited_by);
        if self.unsent > 0 {
            Some(format!(
                "{title}: the rate that was asked for was not reached; the load was limited by: {limit}"
            ))
        } else {
            (limit == "generator").then(|| format!("{title}: the generator was the limit"))
        }
    }

    /// µs of the producer's CPU per cookie for each subscriber more than `before` had.
    fn further_micros(&self, before: &Self) -> Option<f64> {
        let more = self.subscribers as f64 - before.subscribers as f64;
        (more != 0.0).then(|| (self.cpu_micros_per_cookie - before.cpu_micros_per_cookie) / more)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::outcome::tests::step, *};

    #[test]
    fn load_that_was_held_back_by_its_generator_says_so() {
        let mut step = step(Call::Subscribe, 300, Some(0), 100);
        assert_eq!(step.load_finding(), None);
        step.limited_by = "generator".to_owned();
        let expected = "subscribe ×3: the generator was the limit";
        assert_eq!(step.load_finding().as_deref(), Some(expected));
        step.unsent = 7;
        let finding = step.load_finding().unwrap_or_default();
        assert!(finding.contains("not reached"), "{finding}");
    }
}
