//! Outcome of `trials store`, and its summary.

use bench::report::{grouped, rate};
use serde::Serialize;

use super::{consumer_sink::BatchStats, lookups::LookupStats};

/// Measurements and failed checks of a run.
#[derive(Debug, Clone, Serialize)]
pub struct StoreOutcome {
    /// The store, without secrets.
    pub store: String,
    /// Seed of the cookies.
    pub seed: u64,
    /// Measured cookies.
    pub cookies: u64,
    /// Distinct pairs of user and DSP, including those of the warm-up and of previous runs.
    pub pairs: u64,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// Compared variants; the first one is the consumer.
    pub variants: Vec<VariantOutcome>,
    /// Failed checks; empty if the run passed.
    pub failures: Vec<String>,
}

/// Measurements of one variant.
#[derive(Debug, Clone, Serialize)]
pub struct VariantOutcome {
    /// `consumer`, `ceiling` (plain inserts of new pairs) or `upserts` (plain upserts of all cookies).
    pub name: &'static str,
    /// Measured cookies; only new pairs for the ceiling.
    pub cookies: u64,
    /// Duration of the writes.
    pub seconds: f64,
    /// Cookies per second.
    pub per_second: f64,
    /// CPU time of the consumer or client per cookie.
    pub client_cpu_micros: f64,
    /// CPU time of `mongod` per cookie; `null` if it runs on another machine.
    pub mongod_cpu_micros: Option<f64>,
    /// Batches of the consumer, including the warm-up.
    pub batches: Option<BatchStats>,
    /// Lookups during the writes: in slices without pages, and in slices with pages.
    pub lookups: Vec<LookupStats>,
    /// Documents at the end; `null` if unknown.
    pub documents: Option<u64>,
}

impl StoreOutcome {
    /// The summary for the terminal.
    pub fn summary(&self) -> String {
        let (cookies, pairs) = (grouped(self.cookies), grouped(self.pairs));
        let mut lines = vec![format!(
            "{cookies} cookies into {}, {pairs} pairs, seed {}",
            self.store, self.seed
        )];
        for variant in &self.variants {
            let mut line = format!(
                "{}: {}, CPU per cookie {:.2} µs",
                variant.name,
                rate(variant.per_second),
                variant.client_cpu_micros
            );
            if let Some(micros) = variant.mongod_cpu_micros {
                line += &format!(", mongod {micros:.1} µs");
            }
            if let Some(batches) = &variant.batches {
                line += &format!("; {batches}");
            }
            for lookups in &variant.lookups {
                line += &format!("; {lookups}");
            }
            lines.push(line);
        }
        lines.extend(
            self.failures
                .iter()
                .map(|failure| format!("FAILED    {failure}")),
        );
        lines.join("\n")
    }
}
