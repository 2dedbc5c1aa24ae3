//! Metrics of the lookup port.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use metric_defs::consumer;
use parking_lot::RwLock;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, Result};
use proto::units::{DspId, UnixMicros};
use runtime::metrics::Registry;

use super::{Tally, request::BatchRequest};

/// Maximum number of DSPs with series that are not in `--dsps`.
const UNLISTED_MAX: usize = 64;

/// Outcomes of pairs, in the order of [`DspCounters`].
const PAIR_OUTCOMES: [&str; 4] = ["hit", "miss", "expired", "unavailable"];

/// Outcomes of requests.
const OUTCOMES: [&str; 8] = [
    "ok",
    "partial",
    "invalid",
    "too_large",
    "unauthenticated",
    "not_found",
    "busy",
    "unavailable",
];

/// The protocol of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Api {
    Http,
    Grpc,
}

/// The counters of one DSP.
type DspCounters = [IntCounter; PAIR_OUTCOMES.len()];

/// Metrics of the lookup port.
#[derive(Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    seconds: [Histogram; 2],
    /// The requests that were answered completely.
    ok: [IntCounter; 2],
    hit_age_seconds: Histogram,
    pairs: IntCounterVec,
    listed: usize,
    by_dsp: RwLock<HashMap<DspId, DspCounters>>,
    others: DspCounters,
}

impl Metrics {
    /// Registers the metrics. The `listed` DSPs have series from the beginning.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(registry: &Registry, listed: &BTreeSet<DspId>) -> Result<Self> {
        let requests: IntCounterVec = registry.add(consumer::LOOKUPS)?;
        let seconds: HistogramVec = registry.add(consumer::LOOKUP_SECONDS)?;
        let pairs: IntCounterVec = registry.add(consumer::LOOKUP_PAIRS)?;
        let apis = [Api::Http, Api::Grpc].map(Api::label);
        for api in apis {
            for outcome in OUTCOMES {
                requests.with_label_values(&[api, outcome]);
            }
        }
        let by_dsp = listed
            .iter()
            .map(|dsp_id| (*dsp_id, counters(&pairs, &dsp_id.to_string())));
        Ok(Self {
            seconds: apis.map(|api| seconds.with_label_values(&[api])),
            ok: apis.map(|api| requests.with_label_values(&[api, "ok"])),
            requests,
            hit_age_seconds: registry.add(consumer::LOOKUP_HIT_AGE_SECONDS)?,
            listed: listed.len(),
            by_dsp: RwLock::new(by_dsp.collect()),
            others: counters(&pairs, "other"),
            pairs,
        })
    }

    /// Counts a request.
    pub(super) fn count(&self, api: Api, outcome: &'static str, time: Duration) {
        match outcome {
            "ok" => self.ok[api as usize].inc(),
            _ => self
                .requests
                .with_label_values(&[api.label(), outcome])
                .inc(),
        }
        self.seconds[api as usize].observe(time.as_secs_f64());
    }

    /// Counts the pairs of a request.
    pub(super) fn count_pairs(
        &self,
        request: &BatchRequest<'_>,
        tally: &Tally,
        unavailable: &[DspId],
        now: UnixMicros,
    ) {
        if let Some(first) = tally.first {
            let age = Duration::from_micros(now.0.saturating_sub(first.0));
            self.hit_age_seconds.observe(age.as_secs_f64());
        }
        let valid = request.users.iter().filter(|user| user.valid().is_some());
        let valid = valid.count() as u64;
        self.add_series(request, tally);
        let by_dsp = self.by_dsp.read();
        for (dsp_id, (live, expired)) in request.dsps.iter().zip(&tally.found) {
            let [hit, miss, old, not_read] = by_dsp.get(dsp_id).unwrap_or(&self.others);
            if unavailable.contains(dsp_id) {
                not_read.inc_by(valid);
                continue;
            }
            hit.inc_by(*live);
            miss.inc_by(tally.users - live - expired);
            old.inc_by(*expired);
            not_read.inc_by(valid - tally.users);
        }
    }

    /// Gives DSPs with stored matches their own series, while there are few.
    fn add_series(&self, request: &BatchRequest<'_>, tally: &Tally) {
        let max = self.listed + UNLISTED_MAX;
        let found = request.dsps.iter().zip(&tally.found);
        let found = found.filter(|(_, (live, expired))| live + expired > 0);
        let unknown: Vec<_> = {
            let by_dsp = self.by_dsp.read();
            let is_new = |dsp_id: &&DspId| by_dsp.len() < max && !by_dsp.contains_key(dsp_id);
            found.map(|(dsp_id, _)| dsp_id).filter(is_new).collect()
        };
        for dsp_id in unknown {
            let mut by_dsp = self.by_dsp.write();
            if by_dsp.len() < max {
                let of_dsp = || counters(&self.pairs, &dsp_id.to_string());
                by_dsp.entry(*dsp_id).or_insert_with(of_dsp);
            }
        }
    }
}

impl Api {
    fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

fn counters(pairs: &IntCounterVec, dsp: &str) -> DspCounters {
    PAIR_OUTCOMES.map(|outcome| pairs.with_label_values(&[dsp, outcome]))
}
