//! What a run of `bench store` reports.

use serde::Serialize;

use super::server::Cache;
use crate::{cpu::CpuSeconds, observe::Fates, report::Percentiles};

/// What was measured, and what was found to be wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The store, without secrets.
    pub store: String,
    /// Version of the `mongod` that is written to.
    pub mongod_version: Option<String>,
    /// Makes the same cookies again.
    pub seed: u64,
    /// DSPs.
    pub dsps: u32,
    /// Share of cookies that were to repeat a pair.
    pub repeat: f64,
    /// Share of those that were to change its buyer uid.
    pub repeat_changed: f64,
    /// Cookies of a full batch.
    pub batch_cookies: usize,
    /// MongoDB collections written at once.
    pub writers: usize,
    /// How long a repeated cookie is not written again.
    pub refresh_interval_seconds: f64,
    /// Cookies a second; `null` for as fast as it goes.
    pub rate: Option<u32>,
    /// How the consumer expires cookies.
    pub expiry: String,
    /// Cookies written before the clock ran.
    pub warm_up_cookies: u64,
    /// Cookies written under the clock.
    pub cookies: u64,
    /// Distinct pairs of user and DSP in all of them.
    pub pairs: u64,
    /// Cookies of all of them that changed the buyer uid of their pair.
    pub changes: u64,
    /// From the first slice to the last, generation included.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The ways that were compared: the consumer's first.
    pub ways: Vec<WritePathOutcome>,
    /// Rates of the consumer's ways in relation to the others.
    pub ratios: Vec<Ratio>,
    /// Pairs whose stored value was checked for each way.
    pub verified_pairs: usize,
    /// MongoDB's cache at the end.
    pub cache: Option<Cache>,
    /// What is wrong; empty when all is well.
    pub faults: Vec<String>,
}

/// What one way took.
#[derive(Debug, Clone, Serialize)]
pub struct WritePathOutcome {
    /// `one`, `embedded` or `none`: the consumer; `ceiling`: bare inserts of new pairs; `upserts`: bare
    /// upserts of all.
    pub name: &'static str,
    /// What the warm-up took.
    pub warm_up_seconds: f64,
    /// Cookies written under the clock; of the ceiling, only those that are new.
    pub cookies: u64,
    /// While they were written.
    pub seconds: f64,
    /// `cookies` a second.
    pub per_second: f64,
    /// CPU time of the consumer, or of the baseline's client.
    pub client_cpu_seconds: CpuSeconds,
    /// The same for each cookie.
    pub client_cpu_micros_per_cookie: f64,
    /// CPU time of `mongod`; `null` when it does not run on this machine.
    pub mongod_cpu_seconds: Option<CpuSeconds>,
    /// The same for each cookie.
    pub mongod_cpu_micros_per_cookie: Option<f64>,
    /// Batches the consumer wrote.
    pub batches: Option<u64>,
    /// Their mean size.
    pub cookies_per_batch: Option<f64>,
    /// How long the store took for each.
    pub batch_micros: Option<Percentiles>,
    /// What the consumer counted, warm-up included.
    pub counts: Option<Fates>,
    /// Documents at the end; `null` where it is not known.
    pub documents: Option<u64>,
    /// Verified pairs without their newest value; `null` where that was not to be found.
    pub wrong: Option<u64>,
    /// From when a lookup by `_id` was due until its answer; `null` when none were asked for.
    pub lookup_micros: Option<Percentiles>,
    /// Lookups that failed, or found nothing.
    pub lookups_failed: u64,
    /// The rate over time.
    pub slices: Vec<SliceFigures>,
}

/// What one slice took.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SliceFigures {
    /// Documents before it.
    pub documents: u64,
    /// Cookies written.
    pub cookies: u64,
    /// While they were written.
    pub seconds: f64,
    /// `cookies` a second.
    pub per_second: f64,
    /// CPU time of the consumer, or of the baseline's client.
    pub client_cpu_micros_per_cookie: f64,
    /// CPU time of `mongod`.
    pub mongod_cpu_micros_per_cookie: Option<f64>,
}

/// The rate of one way divided by that of another.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// The one.
    pub of: &'static str,
    /// The other.
    pub to: &'static str,
    /// Cookies a second.
    pub rate: f64,
    /// CPU time of `mongod` for each cookie.
    pub mongod_cpu: Option<f64>,
}

impl Outcome {
    /// True when everything was stored as it should be.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.is_empty()
    }

    /// Compares the consumer's ways with each other and with the baselines.
    pub(super) fn compare(ways: &[WritePathOutcome]) -> Vec<Ratio> {
        let consumed = ways.iter().filter(|path| path.counts.is_some());
        let pairs = consumed.enumerate().flat_map(|(at, of)| {
            ways.iter().enumerate().filter_map(move |(other, to)| {
                let is_wanted = to.counts.is_none() || other < at;
                (is_wanted && to.per_second > 0.0).then_some((of, to))
            })
        });
        pairs
            .map(|(of, to)| Ratio {
                of: of.name,
                to: to.name,
                rate: of.per_second / to.per_second,
                mongod_cpu: of
                    .mongod_cpu_micros_per_cookie
                    .zip(to.mongod_cpu_micros_per_cookie)
                    .filter(|(_, to)| *to > 0.0)
                    .map(|(of, to)| of / to),
            })
            .collect()
    }

    /// Collects what is wrong.
    pub(super) fn find_faults(&mut self) {
        let sent = self.warm_up_cookies + self.cookies;
        for path in &self.ways {
            let name = path.name;
            if let Some(counts) = path.counts {
                if counts.received != sent {
                    let received = counts.received;
                    self.faults.push(format!(
                        "{name}: {received} of {sent} cookies were received"
                    ));
                }
                if counts.settled() != counts.received {
                    self.faults
                        .push(format!("{name}: the counts do not add up: {counts:?}"));
                }
                if counts.failed > 0 {
                    let failed = counts.failed;
                    self.faults
                        .push(format!("{name}: {failed} cookies were rejected"));
                }
            }
            if path.lookups_failed > 0 {
                let failed = path.lookups_failed;
                self.faults
                    .push(format!("{name}: {failed} lookups failed, or found nothing"));
            }
            if let Some(documents) = path.documents.filter(|count| *count != self.pairs) {
                let pairs = self.pairs;
                self.faults
                    .push(format!("{name}: {documents} documents instead of {pairs}"));
            }
            if let Some(wrong) = path.wrong.filter(|wrong| *wrong > 0) {
                let verified = self.verified_pairs;
                self.faults.push(format!(
                    "{name}: {wrong} of {verified} pairs have not their newest value"
                ));
            }
        }
    }
}
