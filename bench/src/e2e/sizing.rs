//! How many nodes and cores another rate needs: computed from what each cookie cost in this run.

use serde::Serialize;

use super::outcome::Step;
use crate::report::{Column, Table, grouped};

/// What is asked for most often: cookies a second, and exchange nodes.
const RATES: [u64; 4] = [20_000, 50_000, 200_000, 1_000_000];
const NODES: [u64; 3] = [10, 50, 100];

/// What each cookie cost.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sizing {
    /// The rate at which it was measured.
    pub measured_at: u64,
    /// The highest rate that was sustained, if any was: what a node of this machine's size takes at least.
    pub sustained: Option<u64>,
    /// Producer's CPU time for each cookie, without delivering it.
    pub edge_micros: f64,
    /// Producer's CPU time for each delivery to one node.
    pub delivery_micros: f64,
    /// Whether the two were told apart by a second measurement; otherwise all is counted as delivery.
    pub is_delivery_measured: bool,
    /// Consumer's CPU time for each cookie.
    pub consumer_micros: f64,
    /// The store's CPU time for each cookie, as far as it is a process of its own.
    pub store_micros: f64,
    /// Bytes on the way to each node for each cookie.
    pub bytes: f64,
}

impl Sizing {
    /// From the steps, and what a delivery was found to cost.
    pub(super) fn of(steps: &[Step], nodes: usize, delivery: Option<f64>) -> Option<Self> {
        let by_rate = |step: &&Step| step.rate;
        let sustained = steps
            .iter()
            .filter(|step| step.is_sustained)
            .max_by_key(by_rate);
        let step = sustained
            .or(steps.first())
            .filter(|step| step.accepted > 0)?;
        let producer = step.cpu_micros("producer");
        let nodes = nodes as f64;
        let delivery_micros =
            delivery.map_or(producer / nodes, |delivery| delivery.min(producer / nodes));
        Some(Self {
            measured_at: step.rate,
            sustained: sustained.map(|step| step.rate),
            edge_micros: producer - delivery_micros * nodes,
            delivery_micros,
            is_delivery_measured: delivery.is_some(),
            consumer_micros: step.cpu_micros("consumer") / nodes,
            store_micros: step.cpu_micros("mongod") / nodes,
            bytes: step.bytes_per_delivery,
        })
    }

    /// Cores of all producers together.
    #[must_use]
    pub fn producer_cores(&self, rate: u64, nodes: u64) -> f64 {
        rate as f64 * (self.edge_micros + nodes as f64 * self.delivery_micros) / 1e6
    }

    /// Cores of each node.
    #[must_use]
    pub fn node_cores(&self, rate: u64) -> f64 {
        rate as f64 * (self.consumer_micros + self.store_micros) / 1e6
    }

    /// What all producers together send, in Gbit/s.
    #[must_use]
    pub fn egress_gigabits(&self, rate: u64, nodes: u64) -> f64 {
        rate as f64 * nodes as f64 * self.bytes * 8.0 / 1e9
    }

    pub(super) fn finding(&self) -> String {
        let delivery = if self.is_delivery_measured {
            format!(
                "{:.2} µs of producer at the edge and {:.3} µs for each node",
                self.edge_micros, self.delivery_micros
            )
        } else {
            format!(
                "{:.2} µs of producer (not told apart: all is counted as delivery)",
                self.delivery_micros
            )
        };
        format!(
            "a cookie costs {delivery}, {:.2} µs of consumer and {:.2} µs of mongod on each node, and {:.1} bytes to each node \
             (at {}/s)",
            self.consumer_micros,
            self.store_micros,
            self.bytes,
            grouped(self.measured_at)
        )
    }

    pub(super) fn table(&self) -> Table {
        let number = |name: &str| Column {
            name: name.to_owned(),
            is_number: true,
        };
        let row = |rate: u64, nodes: u64| {
            let takes = match self.sustained {
                Some(sustained) if rate <= sustained => "yes, measured",
                Some(_) => "not by one like this",
                None => "not measured",
            };
            vec![
                grouped(rate),
                grouped(nodes),
                format!("{:.1}", self.producer_cores(rate, nodes)),
                format!("{:.2}", self.egress_gigabits(rate, nodes)),
                format!("{:.2}", self.node_cores(rate)),
                takes.to_owned(),
            ]
        };
        let rows = RATES
            .iter()
            .flat_map(|rate| NODES.iter().map(move |nodes| row(*rate, *nodes)));
        Table {
            title: "How many cores and how much network".to_owned(),
            note: Some(format!(
                "Computed, not measured, from what a cookie cost in this run at {}/s, its repeats included: producers' cores = rate × \
                 (edge + nodes × delivery), egress = rate × nodes × bytes, without TCP's headers. Every node stores every cookie, so more nodes do not \
                 share the rate. Costs a cookie fall with the rate, and mongod's rise with the size of its database: leave room.",
                grouped(self.measured_at)
            )),
            columns: vec![
                number("cookies a second"),
                number("nodes"),
                number("producers, cores"),
                number("egress, Gbit/s"),
                number("each node, cores"),
                Column {
                    name: "does a node take it?".to_owned(),
                    is_number: false,
                },
            ],
            rows: rows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_with_rate_and_nodes() {
        let sizing = Sizing {
            measured_at: 50_000,
            sustained: Some(50_000),
            edge_micros: 1.0,
            delivery_micros: 0.02,
            is_delivery_measured: true,
            consumer_micros: 1.0,
            store_micros: 4.0,
            bytes: 65.0,
        };
        assert!((sizing.producer_cores(1_000_000, 100) - 3.0).abs() < 1e-9);
        assert!((sizing.egress_gigabits(1_000_000, 100) - 52.0).abs() < 1e-9);
        assert!((sizing.node_cores(200_000) - 1.0).abs() < 1e-9);
        assert_eq!(sizing.table().rows.len(), 12);
    }
}
