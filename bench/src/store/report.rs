//! The report of `bench store`.

use super::{Cache, Outcome, Ratio, SliceFigures, WritePathOutcome};
use crate::{
    observe::Fates,
    report::{
        Axis, Figure, Plot, Report, Row, grouped, lines, rate, samples,
        unit::{COUNT, CPU, MILLIS, RATE},
    },
};

/// Of the time of a batch.
const QUANTILES: [&str; 2] = ["p50", "p99"];

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let cookies = grouped(self.cookies);
        let title = format!(
            "{cookies} cookies of {} DSPs into {}",
            self.dsps, self.store
        );
        let mut report = Report::new("store", &title);
        report.seconds = self.seconds;
        report.findings = self.findings();
        report.faults.clone_from(&self.faults);
        let mongod = self.mongod_version.iter();
        report
            .environment
            .programs
            .extend(mongod.map(|version| ("mongod".to_owned(), version.clone())));
        report.add("Ways to write", &self.note(), self.measured());
        let pairs = grouped(self.pairs);
        let note = format!("Warm-up included; {pairs} distinct pairs were sent.");
        report.add("What became of the cookies", &note, self.fates());
        report.plots = self.plots();
        report.with_outcome(self)
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }

    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for Ratio {
            of,
            to,
            rate,
            mongod_cpu,
        } in &self.ratios
        {
            let micros = |name: &str| {
                let path = self.ways.iter().find(|path| path.name == name);
                path.and_then(|path| path.mongod_cpu_micros_per_cookie)
            };
            let cpu = mongod_cpu.zip(micros(of)).zip(micros(to));
            let cpu = cpu.map_or_else(String::new, |((cpu, of), to)| {
                format!(" and needed {cpu:.2} × its CPU of mongod, {of:.1} to {to:.1} µs a cookie")
            });
            findings.push(format!("{of} wrote at {rate:.2} × the rate of {to}{cpu}."));
        }
        findings.extend(self.ways.iter().filter_map(WritePathOutcome::course));
        if let Some(Cache {
            used_bytes,
            bytes_max,
        }) = self.cache
        {
            let percent = 100.0 * used_bytes as f64 / bytes_max.max(1) as f64;
            findings.push(format!(
                "In the end {percent:.0} % of MongoDB's cache were in use."
            ));
        }
        if self.is_verified() {
            let verified = grouped(self.verified_pairs as u64);
            findings.push(format!(
                "{verified} pairs were read back and had their newest value."
            ));
        }
        if self.interrupted {
            findings.push("The run was ended before its time.".to_owned());
        }
        findings
    }

    /// Every way whose pairs were read back has their newest values.
    fn is_verified(&self) -> bool {
        let mut wrong = self.ways.iter().filter_map(|path| path.wrong).peekable();
        wrong.peek().is_some() && wrong.all(|wrong| wrong == 0)
    }

    /// What each way took.
    fn measured(&self) -> Vec<Row> {
        let rate_of = |slice: Option<&SliceFigures>| slice.map(|slice| slice.per_second);
        let row = |path: &WritePathOutcome| {
            let slices = path.slice_rows();
            let [client, mongod] = ["client CPU per cookie", "mongod CPU per cookie"];
            path.row([
                COUNT.of("cookies", path.cookies),
                RATE.of("rate", path.per_second)
                    .higher()
                    .sampled(samples(&slices, "rate")),
                RATE.of("first slice", rate_of(path.slices.first())),
                RATE.of("last slice", rate_of(path.slices.last())),
                CPU.of(client, path.client_cpu_micros_per_cookie)
                    .lower()
                    .sampled(samples(&slices, client)),
                CPU.of(mongod, path.mongod_cpu_micros_per_cookie)
                    .lower()
                    .sampled(samples(&slices, mongod)),
                COUNT.of("batches", path.batches),
                COUNT.of("cookies a batch", path.cookies_per_batch),
            ])
            .and(MILLIS.percentiles("batch ", path.batch_micros, &QUANTILES, &QUANTILES))
            .and(MILLIS.percentiles(
                "lookup ",
                path.lookup_micros,
                &QUANTILES,
                &QUANTILES,
            ))
        };
        self.ways.iter().map(row).collect()
    }

    fn note(&self) -> String {
        let repeats = match self.repeat {
            0.0 => "all pairs new".to_owned(),
            _ => format!(
                "{:.0} % repeats, {:.0} % of them changed",
                100.0 * self.repeat,
                100.0 * self.repeat_changed
            ),
        };
        let pace = self.rate.map_or_else(String::new, |rate| {
            format!(" at most, {} a second", grouped(rate.into()))
        });
        format!(
            "one, embedded, none: the consumer, with --expiry {}. ceiling: bare inserts of new pairs only, counted as such. \
             upserts: bare upserts of all. Both with the TTL index and pages of MongoDB's own sizes. Batches of {}{pace}, \
             {repeats}, {} writers, seed {}.",
            self.expiry,
            grouped(self.batch_cookies as u64),
            self.writers,
            self.seed,
        )
    }

    /// What became of the cookies of each way.
    fn fates(&self) -> Vec<Row> {
        let row = |path: &WritePathOutcome| {
            path.row(Fates::measures(path.counts.as_ref())).and([
                COUNT.of("documents", path.documents),
                COUNT.of("wrong", path.wrong),
            ])
        };
        self.ways.iter().map(row).collect()
    }

    fn plots(&self) -> Vec<Plot> {
        let slices: Vec<_> = self
            .ways
            .iter()
            .flat_map(WritePathOutcome::slice_rows)
            .collect();
        let plots = [
            ("rate", "Rate", "cookies a second", "rate"),
            (
                "mongod-cpu",
                "CPU of mongod",
                "µs a cookie",
                "mongod CPU per cookie",
            ),
            (
                "client-cpu",
                "CPU of the client",
                "µs a cookie",
                "client CPU per cookie",
            ),
        ];
        let plots = plots.map(|(name, title, y, figure)| {
            Plot::new(
                name,
                &format!("{title} by size of the store"),
                Axis::linear("documents before the slice"),
                Axis::linear(y),
                lines(&slices, &[figure]),
            )
        });
        let mut plots = Vec::from(plots);
        plots.retain(|plot| !plot.series.is_empty());
        plots
    }
}

impl WritePathOutcome {
    fn row(&self, measures: impl IntoIterator<Item = Figure>) -> Row {
        Row::new(self.name, measures)
    }

    fn slice_rows(&self) -> Vec<Row> {
        let row = |slice: &SliceFigures| {
            let measures = [
                RATE.of("rate", slice.per_second),
                CPU.of("client CPU per cookie", slice.client_cpu_micros_per_cookie),
                CPU.of("mongod CPU per cookie", slice.mongod_cpu_micros_per_cookie),
            ];
            Row::new("", measures).at(self.name, slice.documents as f64)
        };
        self.slices.iter().map(row).collect()
    }

    /// How its rate went from the first slice to the last.
    fn course(&self) -> Option<String> {
        let [first, .., last] = self.slices.as_slice() else {
            return None;
        };
        let cpu = first
            .mongod_cpu_micros_per_cookie
            .zip(last.mongod_cpu_micros_per_cookie);
        let cpu = cpu.map_or_else(String::new, |(from, to)| {
            format!(", mongod's CPU from {from:.1} to {to:.1} µs a cookie")
        });
        Some(format!(
            "From {} to {} documents, the rate of {} went from {} to {}{cpu}.",
            grouped(first.documents),
            grouped(last.documents),
            self.name,
            rate(first.per_second),
            rate(last.per_second),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTime;

    fn path(wrong: Option<u64>) -> WritePathOutcome {
        WritePathOutcome {
            name: "one",
            warm_up_seconds: 0.0,
            cookies: 1,
            seconds: 1.0,
            per_second: 1.0,
            client_cpu_seconds: CpuTime::default().seconds(),
            client_cpu_micros_per_cookie: 1.0,
            mongod_cpu_seconds: None,
            mongod_cpu_micros_per_cookie: None,
            batches: None,
            cookies_per_batch: None,
            batch_micros: None,
            counts: None,
            documents: None,
            wrong,
            lookup_micros: None,
            lookups_failed: 0,
            slices: Vec::new(),
        }
    }

    #[test]
    fn pairs_are_right_when_they_are_in_every_way() {
        for (wrong, expected) in [
            (&[None, Some(0), Some(0)][..], true),
            (&[Some(0), Some(1)], false),
            (&[Some(1)], false),
            (&[None], false),
            (&[], false),
        ] {
            let outcome = Outcome {
                store: "none".to_owned(),
                mongod_version: None,
                seed: 0,
                dsps: 1,
                repeat: 0.0,
                repeat_changed: 0.0,
                batch_cookies: 1,
                writers: 1,
                refresh_interval_seconds: 0.0,
                rate: None,
                expiry: "index".to_owned(),
                warm_up_cookies: 0,
                cookies: 1,
                pairs: 1,
                changes: 0,
                seconds: 1.0,
                interrupted: false,
                ways: wrong.iter().map(|wrong| path(*wrong)).collect(),
                ratios: Vec::new(),
                verified_pairs: 1,
                cache: None,
                faults: Vec::new(),
            };
            assert_eq!(outcome.is_verified(), expected, "{wrong:?}");
        }
    }
}
