//! The report of `bench fanout`.

use super::{Marginal, Outcome, StepOutcome, outcome::due_per_second, sampler::Sample};
use crate::{
    report::{
        Axis, Better, Column, Figure, Percentiles, Plot, Report, Series, Table, duration, grouped,
        rate,
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
        report.figures = self.figures();
        report.tables = vec![self.delivery_table(), self.cpu_table()];
        report.plots = self.plots();
        report.with_outcome(self)
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

    fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = self.steps.iter().flat_map(StepOutcome::figures).collect();
        figures.extend(self.marginals.iter().map(|marginal| {
            let name = format!(
                "{}: producer CPU of a further subscriber per cookie",
                marginal.call.name()
            );
            Figure::new(name, "µs", marginal.each_micros, Better::Lower)
        }));
        figures
    }

    fn delivery_table(&self) -> Table {
        let percentiles = |micros: Option<Percentiles>| {
            micros.map_or([String::new(), String::new()], |micros| {
                [duration(micros.p50), duration(micros.p99)]
            })
        };
        let rows = self.steps.iter().map(|step| {
            let offered = if step.unsent > 0 {
                self.rate
                    .map_or_else(String::new, |asked| rate(asked as f64))
            } else {
                rate(step.sent as f64 / step.seconds.max(f64::MIN_POSITIVE))
            };
            let mut row = vec![
                step.call.name().to_owned(),
                step.subscribers.to_string(),
                offered,
                rate(step.accepted_per_second),
                rate(step.deliveries_per_second),
                rate(due_per_second(step)),
                grouped(step.lost),
            ];
            row.extend(percentiles(step.latency_micros));
            row.extend(percentiles(step.delivery_micros));
            row
        });
        Table {
            title: "Deliveries".to_owned(),
            note: Some(
                "Due: accepted × subscribers. Delivery is from the edge to the reader, where the call tells; \
                 lost of get-cookies is what is missing of accepted × subscribers."
                    .to_owned(),
            ),
            columns: columns(&[
                "offered", "accepted", "delivered", "due", "lost", "request p50", "request p99", "delivery p50", "delivery p99",
            ]),
            rows: rows.collect(),
        }
    }

    fn cpu_table(&self) -> Table {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let rows = CALLS.iter().flat_map(|call| {
            let mut before: Option<&StepOutcome> = None;
            self.of(*call).map(move |step| {
                let further = before.and_then(|before| step.further_micros(before));
                before = Some(step);
                vec![
                    step.call.name().to_owned(),
                    step.subscribers.to_string(),
                    format!("{:.3}", step.cpu_micros_per_cookie),
                    further.map_or_else(String::new, |micros| format!("{micros:.3}")),
                    format!("{:.3}", step.cpu_micros_per_delivery),
                    format!("{:.3}", step.readers_cpu_micros_per_delivery),
                    format!("{:.3}", step.load_cpu_micros_per_request),
                    percent(step.share.producer),
                    percent(step.share.readers),
                    percent(step.share.load),
                    format!("{:.1}", mebibytes(step.memory.peak_bytes)),
                ]
            })
        });
        Table {
            title: "CPU and memory".to_owned(),
            note: Some(format!(
                "µs of CPU time, in the kernel included; shares are of the CPU time that {} cores had. A further subscriber: \
                 against the step before. Memory is the producer's largest, its log included.",
                self.cores
            )),
            columns: columns(&[
                "producer, per cookie",
                "of a further subscriber",
                "producer, per delivery",
                "readers, per delivery",
                "load, per request",
                "share of producer",
                "share of readers",
                "share of load",
                "memory, MiB",
            ]),
            rows: rows.collect(),
        }
    }

    fn plots(&self) -> Vec<Plot> {
        let by_subscribers = |name: &str, title: &str, y: Axis, series: Vec<Series>| Plot {
            name: name.to_owned(),
            title: title.to_owned(),
            x: Axis::logarithmic("subscribers"),
            y,
            series,
        };
        vec![
            by_subscribers(
                "deliveries",
                "Deliveries",
                Axis::linear("cookies a second, all subscribers"),
                self.series("", |step| step.deliveries_per_second),
            ),
            by_subscribers(
                "accepted",
                "Cookies accepted",
                Axis::linear("cookies a second"),
                self.series("", |step| step.accepted_per_second),
            ),
            by_subscribers(
                "cpu",
                "CPU of the producer",
                Axis::logarithmic("µs"),
                [
                    self.series(", per cookie", |step| step.cpu_micros_per_cookie),
                    self.series(", per delivery", |step| step.cpu_micros_per_delivery),
                ]
                .concat(),
            ),
            by_subscribers(
                "memory",
                "Memory of the producer",
                Axis::linear("MiB, at most"),
                self.series("", |step| mebibytes(step.memory.peak_bytes)),
            ),
        ]
    }

    /// A line for each call that was measured.
    fn series(&self, what: &str, value: fn(&StepOutcome) -> f64) -> Vec<Series> {
        let lines = CALLS.iter().map(|call| {
            let mut points: Vec<_> = self
                .of(*call)
                .map(|step| (step.subscribers as f64, value(step)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series {
                name: format!("{}{what}", call.name()),
                points,
            }
        });
        lines.filter(|series| !series.points.is_empty()).collect()
    }
}

impl StepOutcome {
    fn figures(&self) -> Vec<Figure> {
        let name = |what: &str| format!("{}: {what}", self.title());
        let samples = |value: fn(&Sample) -> f64| self.samples.iter().map(value);
        let mut figures = vec![
            Figure::new(
                name("accepted"),
                "/s",
                self.accepted_per_second,
                Better::Higher,
            )
            .with_samples(samples(|sample| sample.accepted_per_second)),
            Figure::new(
                name("deliveries"),
                "/s",
                self.deliveries_per_second,
                Better::Higher,
            )
            .with_samples(samples(|sample| sample.deliveries_per_second)),
            Figure::new(name("lost"), "", self.lost as f64, Better::Lower),
            Figure::new(
                name("producer CPU per cookie"),
                "µs",
                self.cpu_micros_per_cookie,
                Better::Lower,
            )
            .with_samples(samples(|sample| sample.cpu_micros_per_cookie)),
            Figure::new(
                name("producer CPU per delivery"),
                "µs",
                self.cpu_micros_per_delivery,
                Better::Lower,
            ),
            Figure::new(
                name("readers' CPU per delivery"),
                "µs",
                self.readers_cpu_micros_per_delivery,
                Better::Lower,
            ),
            Figure::new(
                name("memory"),
                "MiB",
                mebibytes(self.memory.peak_bytes),
                Better::Lower,
            ),
        ];
        if let Some(delivery) = self.delivery_micros {
            figures.push(Figure::new(
                name("delivery p99"),
                "ms",
                delivery.p99 as f64 / 1e3,
                Better::Lower,
            ));
        }
        figures
    }

    /// Why the load was not what was asked for, or not all that the producer takes.
    fn load_finding(&self) -> Option<String> {
        let (title, why) = (self.title(), &self.generator_why);
        if self.unsent > 0 {
            Some(format!(
                "{title}: the rate that was asked for was not reached; {why}"
            ))
        } else {
            self.generator_limit.then(|| format!("{title}: {why}"))
        }
    }

    /// µs of the producer's CPU per cookie for each subscriber more than `before` had.
    fn further_micros(&self, before: &Self) -> Option<f64> {
        let more = self.subscribers as f64 - before.subscribers as f64;
        (more != 0.0).then(|| (self.cpu_micros_per_cookie - before.cpu_micros_per_cookie) / more)
    }
}

fn columns(numbers: &[&str]) -> Vec<Column> {
    let first = [Column::words("call"), Column::number("subscribers")];
    first
        .into_iter()
        .chain(numbers.iter().map(|name| Column::number(name)))
        .collect()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::{super::outcome::tests::step, *};

    #[test]
    fn load_that_was_held_back_by_its_generator_says_so() {
        let mut step = step(Call::Subscribe, 300, Some(0), 100);
        assert_eq!(step.load_finding(), None);
        step.generator_why = "it was late".to_owned();
        step.generator_limit = true;
        let expected = "subscribe ×3: it was late";
        assert_eq!(step.load_finding().as_deref(), Some(expected));
        (step.generator_limit, step.unsent) = (false, 7);
        let finding = step.load_finding().unwrap_or_default();
        assert!(finding.contains("not reached; it was late"), "{finding}");
    }
}
