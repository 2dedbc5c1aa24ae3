//! How many nodes and cores another rate needs: computed from what each cookie cost in this run.

use serde::Serialize;

use super::step::Step;
use crate::report::{
    Figure, Report, Row, counted, grouped,
    unit::{COUNT, DECIMAL},
};

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
    /// Nodes that there were.
    pub nodes: usize,
    /// Producer's CPU time for each cookie, with its deliveries to these nodes.
    pub producer_micros: f64,
    /// What of it is for deliveries; `null` when that was not measured.
    pub delivery: Option<Delivery>,
    /// Consumer's CPU time for each cookie.
    pub consumer_micros: f64,
    /// The store's CPU time for each cookie, as far as it is a process of its own.
    pub store_micros: f64,
    /// Bytes on the way to each node for each cookie.
    pub bytes: f64,
}

/// What a delivery to one node costs a producer.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Delivery {
    /// The rate at which it was measured.
    pub at: u64,
    /// CPU time for each cookie; `null` when it is below what the system's clock can tell.
    pub micros: Option<f64>,
}

impl Sizing {
    /// From the steps, and what a delivery was found to cost.
    pub(super) fn of(steps: &[Step], nodes: usize, delivery: Option<Delivery>) -> Option<Self> {
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
            delivery,
            consumer_micros: step.cpu_micros("consumer") / nodes as f64,
            store_micros: step.cpu_micros("mongod") / nodes as f64,
            bytes: step.bytes_per_delivery,
        })
    }

    /// Producer's CPU time for each cookie at the edge and for each delivery, when they were told apart.
    fn edge_and_delivery(&self) -> Option<(f64, f64)> {
        let delivery = self.delivery?.micros?;
        let edge = self.producer_micros - delivery * self.nodes as f64;
        Some((edge.max(0.0), delivery))
    }

    /// Cores of all producers together; `None` when deliveries were not told apart.
    #[must_use]
    pub fn producer_cores(&self, rate: u64, nodes: u64) -> Option<f64> {
        let (edge, delivery) = self.edge_and_delivery()?;
        Some(rate as f64 * (edge + nodes as f64 * delivery) / 1e6)
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

    pub(super) fn findings(&self) -> [String; 2] {
        [self.costs(), self.nodes_needed()]
    }

    fn costs(&self) -> String {
        let of_it = match (self.delivery, self.edge_and_delivery()) {
            (Some(measured), Some((_, delivery))) => format!(
                "of which each node's delivery {delivery:.3} (measured at {}/s)",
                grouped(measured.at)
            ),
            (Some(measured), None) => format!(
                "of which deliveries were not told apart: at {}/s they cost less than the system's clock can tell",
                grouped(measured.at)
            ),
            (None, _) => "of which deliveries were not measured".to_owned(),
        };
        format!(
            "at {}/s a cookie costs {:.2} µs of producer with {}, {of_it}; {:.2} µs of consumer and {:.2} µs of mongod on each \
             node; and {:.1} bytes to each node",
            grouped(self.measured_at),
            self.producer_micros,
            counted(self.nodes, "node"),
            self.consumer_micros,
            self.store_micros,
            self.bytes,
        )
    }

    fn nodes_needed(&self) -> String {
        let most = RATES[RATES.len() - 1];
        let sustained = self.sustained.unwrap_or(0);
        let beyond = RATES.into_iter().find(|rate| *rate > sustained);
        let (rate, nodes) = (beyond.unwrap_or(most), NODES[0]);
        let takes = match self.sustained {
            Some(sustained) => format!(
                "one like this, with everything on the same cores, takes {}/s",
                grouped(sustained)
            ),
            None => "one like this sustained no rate of this run".to_owned(),
        };
        let producers = self
            .producer_cores(rate, nodes)
            .map_or_else(String::new, |cores| {
                format!(", {cores:.1} such cores of producers for {nodes} nodes")
            });
        format!(
            "how many nodes are needed does not depend on the rate: every node stores every cookie, so each must take the whole \
             rate; {takes}; {}/s would need {:.1} such cores on each node{producers} and {:.2} Gbit/s of egress for {nodes} nodes",
            grouped(rate),
            self.node_cores(rate),
            self.egress_gigabits(rate, nodes),
        )
    }

    /// Adds what other rates and numbers of nodes need.
    pub(super) fn add_to(&self, report: &mut Report) {
        let row = |rate: u64, nodes: u64| {
            let takes = match self.sustained {
                Some(sustained) if rate <= sustained => "yes, measured",
                Some(_) => "not by one like this",
                None => "not measured",
            };
            let measures = [
                COUNT.of("cookies a second", rate),
                COUNT.of("nodes", nodes),
                DECIMAL.of("producers, cores", self.producer_cores(rate, nodes)),
                DECIMAL.of("egress, Gbit/s", self.egress_gigabits(rate, nodes)),
                DECIMAL.of("each node, cores", self.node_cores(rate)),
                Figure::words("does a node take it?", takes),
            ];
            Row::new("", measures)
        };
        let of_rate = |rate: &u64| NODES.map(|nodes| row(*rate, nodes));
        let rows: Vec<_> = RATES.iter().flat_map(of_rate).collect();
        report.add("How many cores and how much network", &self.note(), rows);
    }

    fn note(&self) -> String {
        let producers = match (self.delivery, self.edge_and_delivery()) {
            (Some(measured), Some(_)) => format!(
                "producers' cores = rate × (edge + nodes × delivery), where a delivery is as measured at {}/s and edge is the rest \
                 of what a cookie cost a producer",
                grouped(measured.at)
            ),
            _ => "producers' cores are left out, since deliveries were not told apart".to_owned(),
        };
        format!(
            "Computed, not measured, from what a cookie cost in this run at {}/s, its repeats included: {producers}; egress = rate × nodes × bytes, \
             without TCP's headers. Every node stores every cookie, so more nodes do not \
             share the rate. Costs a cookie fall with the rate, and mongod's rise with the size of its database: leave room.",
            grouped(self.measured_at)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(sizing: &Sizing) -> Vec<Row> {
        let mut report = Report::new("e2e", "Sizing");
        sizing.add_to(&mut report);
        report.tables.remove(0).rows
    }

    #[test]
    fn sizes_grow_with_rate_and_nodes() {
        let sizing = Sizing {
            measured_at: 50_000,
            sustained: Some(50_000),
            nodes: 1,
            producer_micros: 1.02,
            delivery: Some(Delivery {
                at: 40_000,
                micros: Some(0.02),
            }),
            consumer_micros: 1.0,
            store_micros: 4.0,
            bytes: 65.0,
        };
        assert!((sizing.producer_cores(1_000_000, 100).unwrap() - 3.0).abs() < 1e-9);
        assert!((sizing.egress_gigabits(1_000_000, 100) - 52.0).abs() < 1e-9);
        assert!((sizing.node_cores(200_000) - 1.0).abs() < 1e-9);
        assert_eq!(rows(&sizing).len(), 12);
        let [costs, nodes] = sizing.findings();
        assert!(costs.contains("0.020 (measured at 40 000/s)"), "{costs}");
        assert!(
            nodes.contains("takes 50 000/s; 200 000/s would need 1.0"),
            "{nodes}"
        );

        let untold = Sizing {
            delivery: None,
            ..sizing
        };
        assert_eq!(untold.producer_cores(1_000_000, 100), None);
        assert!(
            rows(&untold)
                .iter()
                .all(|row| row.figures[2].value.is_none())
        );
    }
}
