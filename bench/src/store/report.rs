//! The report of `bench store`.

use super::{Cache, Outcome, Ratio, SliceFigures, WayOutcome};
use crate::report::{
    Axis, Better, Column, Figure, Plot, Report, Series, Table, duration, grouped, rate,
};

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
        report.figures = self.ways.iter().flat_map(WayOutcome::figures).collect();
        report.tables = vec![self.ways_table(), self.counts_table()];
        report.plots = self.plots();
        report.with_outcome(self)
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
            let cpu = mongod_cpu.map_or_else(String::new, |cpu| {
                format!(" and needed {cpu:.2} × its CPU of mongod")
            });
            findings.push(format!("{of} wrote at {rate:.2} × the rate of {to}{cpu}."));
        }
        findings.extend(self.ways.iter().filter_map(WayOutcome::course));
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
        let mut wrong = self.ways.iter().filter_map(|way| way.wrong).peekable();
        wrong.peek().is_some() && wrong.all(|wrong| wrong == 0)
    }

    fn ways_table(&self) -> Table {
        let micros =
            |micros: Option<f64>| micros.map_or_else(String::new, |micros| format!("{micros:.2}"));
        let of_slice = |slice: Option<&SliceFigures>| {
            slice.map_or_else(String::new, |slice| rate(slice.per_second))
        };
        let rows = self.ways.iter().map(|way| {
            vec![
                way.name.to_owned(),
                grouped(way.cookies),
                rate(way.per_second),
                of_slice(way.slices.first()),
                of_slice(way.slices.last()),
                micros(Some(way.client_cpu_micros_per_cookie)),
                micros(way.mongod_cpu_micros_per_cookie),
                way.cookies_per_batch
                    .map_or_else(String::new, |cookies| format!("{cookies:.0}")),
                way.batch_micros
                    .map_or_else(String::new, |batch| duration(batch.p50)),
                way.batch_micros
                    .map_or_else(String::new, |batch| duration(batch.p99)),
            ]
        });
        let repeats = match self.repeat {
            0.0 => "all pairs new".to_owned(),
            _ => format!(
                "{:.0} % repeats, {:.0} % of them changed",
                100.0 * self.repeat,
                100.0 * self.repeat_changed
            ),
        };
        Table {
            title: "Ways to write".to_owned(),
            note: Some(format!(
                "one, embedded, none: the consumer. ceiling: bare inserts of new pairs only, counted as such. \
                 upserts: bare upserts of all. Batches of {}, {repeats}, {} writers, seed {}.",
                grouped(self.batch_cookies as u64),
                self.writers,
                self.seed,
            )),
            columns: [
                vec![Column::words("way")],
                [
                    "cookies",
                    "rate",
                    "first slice",
                    "last slice",
                    "client CPU, µs a cookie",
                    "mongod CPU, µs a cookie",
                    "cookies a batch",
                    "batch p50",
                    "batch p99",
                ]
                .map(Column::number)
                .into(),
            ]
            .concat(),
            rows: rows.collect(),
        }
    }

    fn counts_table(&self) -> Table {
        let count = |count: Option<u64>| count.map_or_else(String::new, grouped);
        let rows = self.ways.iter().map(|way| {
            let counts = way.counts;
            vec![
                way.name.to_owned(),
                count(counts.map(|counts| counts.received)),
                count(counts.map(|counts| counts.written)),
                count(counts.map(|counts| counts.superseded)),
                count(counts.map(|counts| counts.suppressed)),
                count(counts.map(|counts| counts.stale)),
                count(counts.map(|counts| counts.rejected)),
                count(way.documents),
                count(way.wrong),
            ]
        });
        Table {
            title: "What became of the cookies".to_owned(),
            note: Some(format!(
                "Warm-up included; {} distinct pairs were sent.",
                grouped(self.pairs)
            )),
            columns: [
                vec![Column::words("way")],
                [
                    "received",
                    "written",
                    "superseded",
                    "suppressed",
                    "stale",
                    "rejected",
                    "documents",
                    "wrong",
                ]
                .map(Column::number)
                .into(),
            ]
            .concat(),
            rows: rows.collect(),
        }
    }

    fn plots(&self) -> Vec<Plot> {
        let plot =
            |name: &str, title: &str, unit: &str, value: fn(&SliceFigures) -> Option<f64>| {
                let series = self.ways.iter().map(|way| Series {
                    name: way.name.to_owned(),
                    points: way
                        .slices
                        .iter()
                        .filter_map(|slice| Some((slice.documents as f64, value(slice)?)))
                        .collect(),
                });
                Plot {
                    name: name.to_owned(),
                    title: title.to_owned(),
                    x: Axis::linear("documents before the slice"),
                    y: Axis::linear(unit),
                    series: series.filter(|series| !series.points.is_empty()).collect(),
                }
            };
        let plots = [
            plot(
                "rate",
                "Rate by size of the store",
                "cookies a second",
                |slice| Some(slice.per_second),
            ),
            plot(
                "mongod-cpu",
                "CPU of mongod by size of the store",
                "µs a cookie",
                |slice| slice.mongod_cpu_micros_per_cookie,
            ),
            plot(
                "client-cpu",
                "CPU of the client by size of the store",
                "µs a cookie",
                |slice| Some(slice.client_cpu_micros_per_cookie),
            ),
        ];
        plots
            .into_iter()
            .filter(|plot| !plot.series.is_empty())
            .collect()
    }
}

impl WayOutcome {
    fn figures(&self) -> Vec<Figure> {
        let name = |what: &str| format!("{}: {what}", self.name);
        let samples =
            |value: fn(&SliceFigures) -> Option<f64>| self.slices.iter().filter_map(value);
        let rates = samples(|slice| Some(slice.per_second));
        let cpus = samples(|slice| Some(slice.client_cpu_micros_per_cookie));
        let cpu = self.client_cpu_micros_per_cookie;
        let mut figures = vec![
            Figure::new(name("rate"), "/s", self.per_second, Better::Higher).with_samples(rates),
            Figure::new(name("client CPU per cookie"), "µs", cpu, Better::Lower).with_samples(cpus),
        ];
        if let Some(cpu) = self.mongod_cpu_micros_per_cookie {
            let cpus = samples(|slice| slice.mongod_cpu_micros_per_cookie);
            let figure = Figure::new(name("mongod CPU per cookie"), "µs", cpu, Better::Lower);
            figures.push(figure.with_samples(cpus));
        }
        if let Some(batch) = self.batch_micros {
            for (quantile, micros) in [("p50", batch.p50), ("p99", batch.p99)] {
                let name = name(&format!("batch {quantile}"));
                figures.push(Figure::new(name, "ms", micros as f64 / 1e3, Better::Lower));
            }
        }
        figures
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

    fn way(wrong: Option<u64>) -> WayOutcome {
        WayOutcome {
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
                warm_up_cookies: 0,
                cookies: 1,
                pairs: 1,
                changes: 0,
                seconds: 1.0,
                interrupted: false,
                ways: wrong.iter().map(|wrong| way(*wrong)).collect(),
                ratios: Vec::new(),
                verified_pairs: 1,
                cache: None,
                faults: Vec::new(),
            };
            assert_eq!(outcome.is_verified(), expected, "{wrong:?}");
        }
    }
}
