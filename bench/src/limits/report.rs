//! The report of `bench limits`.

use super::{
    CallOutcome, Latency, Outcome, ServiceOutcome, Way, WayOutcome, in_process::TIMED_EACH,
};
use crate::report::{
    Measure, Report, Row, grouped, rate,
    unit::{COUNT, CPU, FINE_MICROS, MEBIBYTES, RATE},
};

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let counters = grouped(self.counters);
        let title = match &self.service {
            None => format!("Decisions on limits, {counters} counters"),
            Some(service) => {
                let pace = service.rate.map(|asked| rate(asked as f64));
                let pace = pace.unwrap_or_else(|| "as fast as answers come".to_owned());
                format!("Calls to a limiter, {pace}, {counters} counters")
            }
        };
        let mut report = Report::new("limits", &title);
        let of_ways = self.ways.iter().map(|way| way.seconds).sum();
        report.seconds = self.service.as_ref().map_or(of_ways, |it| it.seconds);
        report.findings = self.findings();
        report.faults.clone_from(&self.faults);
        let redis = self.redis_version.iter();
        report
            .environment
            .programs
            .extend(redis.map(|version| ("redis-server".to_owned(), version.clone())));
        let note = format!(
            "Local, governor and lease decide in process, by one thread, and each {TIMED_EACH}th decision is timed; the others have {} \
             × {} calls under way. CPU is for a decision, in the kernel included; that of bench is the client's, or in process all there is.",
            self.connections, self.pipeline
        );
        let rows: Vec<Row> = self.ways.iter().map(WayOutcome::row).collect();
        report.add_rows("Ways to decide", &note, &rows);
        if let Some(service) = &self.service {
            service.add_to(&mut report);
        }
        report.with_outcome(self)
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }

    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        let way = |name: Way| self.ways.iter().find(|it| it.way == name);
        for (way, beside) in [
            (way(Way::Local), way(Way::Governor)),
            (way(Way::Exact), way(Way::Window)),
        ] {
            if let Some((way, beside)) = way.zip(beside) {
                findings.push(format!(
                    "{} decided at {:.2} × the rate of {}.",
                    way.way.name(),
                    way.per_second / beside.per_second.max(f64::MIN_POSITIVE),
                    beside.way.name()
                ));
            }
        }
        if !self.left_out.is_empty() {
            let names: Vec<_> = self.left_out.iter().map(|way| way.name()).collect();
            findings.push(format!(
                "Left out, since there is no redis-server: {}.",
                names.join(", ")
            ));
        }
        if let Some(service) = &self.service {
            findings.extend(service.sentence());
            if service.stalled.clients > 0 {
                findings.push(format!(
                    "Clients that never read: {}. The limiter took {} bytes of them, and cut them off {} times.",
                    service.stalled.clients,
                    grouped(service.stalled.sent_bytes),
                    grouped(service.stalled.cut)
                ));
            }
        }
        if self.interrupted {
            findings.push("The run was ended before its time.".to_owned());
        }
        findings
    }
}

impl WayOutcome {
    fn row(&self) -> Row {
        let name = self.way.name();
        let decisions = RATE.of("decisions", self.per_second).higher();
        let which = [
            Measure::words("way", name),
            decisions.sampled(self.each_second.iter().copied()),
        ];
        Row::new(format!("{name}: "), which)
            .and(latency(self.latency_micros, &["p50", "p99"]))
            .and([
                CPU.of("bench CPU", self.client_cpu_micros).lower(),
                CPU.of("limiter CPU", self.service_cpu_micros).lower(),
                CPU.of("Redis CPU", self.redis_cpu_micros).lower(),
            ])
    }
}

impl ServiceOutcome {
    fn add_to(&self, report: &mut Report) {
        let note = "From when a call was due, or without a rate left, until its answer was read.";
        let all = Row::new(
            "all: ",
            [
                Measure::words("call", "all"),
                RATE.of("answered", self.answered_per_second).higher(),
            ],
        );
        let mut rows = vec![all.and(latency(self.latency_micros, &["mean", "p50", "p99"]))];
        let row = |it: &CallOutcome| {
            let per_second = it.answered as f64 / self.seconds.max(f64::MIN_POSITIVE);
            let which = [
                Measure::words("call", it.call.name()),
                RATE.of("answered", per_second),
            ];
            Row::new(format!("{}: ", it.call.name()), which).and(latency(it.latency_micros, &[]))
        };
        rows.extend(self.calls.iter().map(row));
        report.add_rows("Calls", note, &rows);
        let late = self.late_micros;
        let facts = [
            COUNT.of("sent", self.sent),
            COUNT.of("due and not sent", self.unsent).lower(),
            COUNT.of("without an answer", self.unanswered).lower(),
            FINE_MICROS.of("left late, p99", late.map(|it| it.p99)),
            FINE_MICROS.of("left late, max", late.map(|it| it.max)),
            CPU.of("limiter CPU per call", self.service_cpu_micros)
                .lower(),
            CPU.of("bench CPU per call", self.client_cpu_micros),
            MEBIBYTES
                .of("memory of the limiter", self.service_memory.peak_bytes)
                .lower(),
        ];
        report.add_facts("The run", &facts);
    }
}

/// Percentiles, of which some are compared.
fn latency(of: Option<Latency>, compared: &[&str]) -> impl Iterator<Item = Measure> {
    let all = [
        ("mean", of.map(|it| it.mean)),
        ("p50", of.map(|it| it.p50)),
        ("p95", of.map(|it| it.p95)),
        ("p99", of.map(|it| it.p99)),
        ("p99.9", of.map(|it| it.p999)),
        ("max", of.map(|it| it.max)),
    ];
    all.map(|(name, value)| {
        let measure = FINE_MICROS.of(name, value);
        if compared.contains(&name) {
            measure.lower()
        } else {
            measure
        }
    })
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;

    #[test]
    fn each_way_has_a_row_and_figures_of_its_own() {
        let report = outcome().report();
        let rows = &report.tables[0].rows;
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[2][0], "lease");
        let names: Vec<_> = report.figures.iter().map(|it| it.name.as_str()).collect();
        for name in ["local: decisions", "http: limiter CPU", "exact: Redis CPU"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"local: limiter CPU"));
        assert!(report.findings[0].starts_with("local decided at 1.00 × the rate of governor"));
    }
}
