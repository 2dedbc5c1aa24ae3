//! What other rates need: computed from what each cookie cost in this run.

use serde::Serialize;

use super::step::Step;
use crate::report::{
    Figure, Report, Row, counted, grouped,
    unit::{COUNT, DECIMAL},
};

/// What is asked for most often: cookies a second.
const RATES: [u64; 4] = [20_000, 50_000, 200_000, 1_000_000];

/// What each cookie cost.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sizing {
    /// The rate at which it was measured.
    pub measured_at: u64,
    /// The highest rate that was sustained, if any was: what a node of this machine's size takes at least.
    pub sustained: Option<u64>,
    /// Nodes that there were.
    pub nodes: usize,
    /// Producer's CPU time for each cookie, with its deliveries to these nodes.
    pub producer_micros: f64,
    /// Consumer's CPU time for each cookie.
    pub consumer_micros: f64,
    /// The store's CPU time for each cookie, as far as it is a process of its own.
    pub store_micros: f64,
    /// Bytes on the way to each node for each cookie.
    pub bytes: f64,
}

impl Sizing {
    /// From the highest step that was sustained, or else the first.
    pub(super) fn of(steps: &[Step], nodes: usize) -> Option<Self> {
        let steps = || steps.iter().filter(|step| step.cut.is_none());
        let sustained = steps()
            .filter(|step| step.is_sustained)
            .max_by_key(|step| step.rate);
        let step = sustained
            .or(steps().next())
            .filter(|step| step.accepted > 0)?;
        Some(Self {
            measured_at: step.rate,
            sustained: sustained.map(|step| step.rate),
            nodes,
            producer_micros: step.cpu_micros("producer"),
            consumer_micros: step.cpu_micros("consumer") / nodes as f64,
            store_micros: step.cpu_micros("mongod") / nodes as f64,
            bytes: step.bytes_per_delivery,
        })
    }

    /// Cores of each node.
    #[must_use]
    pub fn node_cores(&self, rate: u64) -> f64 {
        rate as f64 * (self.consumer_micros + self.store_micros) / 1e6
    }

    /// What all producers together send to each node, in Gbit/s.
    #[must_use]
    pub fn egress_gigabits(&self, rate: u64) -> f64 {
        rate as f64 * self.bytes * 8.0 / 1e9
    }

    pub(super) fn finding(&self) -> String {
        format!(
            "at {}/s a cookie costs {:.2} µs of producer with {}; {:.2} µs of consumer and {:.2} µs of mongod on each node; and {:.1} \
             bytes to each node",
            grouped(self.measured_at),
            self.producer_micros,
            counted(self.nodes, "node"),
            self.consumer_micros,
            self.store_micros,
            self.bytes,
        )
    }

    /// Adds what other rates need.
    pub(super) fn add_to(&self, report: &mut Report) {
        let row = |rate: u64| {
            let takes = match self.sustained {
                Some(sustained) if rate <= sustained => "yes, measured",
                Some(_) => "not by one like this",
                None => "not measured",
            };
            let figures = [
                COUNT.of("cookies a second", rate),
                DECIMAL.of("producers, cores", rate as f64 * self.producer_micros / 1e6),
                DECIMAL.of("egress to each node, Gbit/s", self.egress_gigabits(rate)),
                DECIMAL.of("each node, cores", self.node_cores(rate)),
                Figure::words("does a node take it?", takes),
            ];
            Row::new("", figures)
        };
        let note = format!(
            "Computed, not measured, from what a cookie cost in this run at {}/s with {}, its repeats included; egress is without TCP's \
             headers. Every node stores every cookie, so more nodes do not share the rate; what each further one costs the producers is \
             measured by `bench subscribe --fan-out`. Costs a cookie fall with the rate, and mongod's rise with the size of its database: \
             leave room.",
            grouped(self.measured_at),
            counted(self.nodes, "node"),
        );
        let rows: Vec<_> = RATES.into_iter().map(row).collect();
        report.add("How many cores and how much network", &note, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_with_the_rate() {
        let sizing = Sizing {
            measured_at: 50_000,
            sustained: Some(50_000),
            nodes: 1,
            producer_micros: 1.02,
            consumer_micros: 1.0,
            store_micros: 4.0,
            bytes: 65.0,
        };
        assert!((sizing.egress_gigabits(1_000_000) - 0.52).abs() < 1e-9);
        assert!((sizing.node_cores(200_000) - 1.0).abs() < 1e-9);
        let mut report = Report::new("e2e", "Sizing");
        sizing.add_to(&mut report);
        assert_eq!(report.tables[0].rows.len(), RATES.len());
    }
}
