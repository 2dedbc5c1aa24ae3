//! Metrics of plans: requests, DSPs, and returns.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use metric_defs::producer;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use proto::{limits::CONTRACTS_MAX, units::DspId};
use runtime::metrics::{Registry, as_f64, family};

use super::{Plan, Reason};
use crate::contracts::Contracts;

/// Maximum number of series, enough for all DSPs with each outcome; others are counted for the DSP `other`.
const SERIES_MAX: usize = 64 * CONTRACTS_MAX;

/// The label of offers.
const OFFERED: &str = "offered";

impl Reason {
    /// The value of the metric label; `None` if the contracts alone decide.
    fn label(self) -> Option<&'static str> {
        match self {
            Self::Unknown | Self::NoSync | Self::Blocked | Self::NoUserId => None,
            Self::Filter => Some("filter"),
            Self::Scope => Some("scope"),
            Self::Country => Some("country"),
            Self::Privacy => Some("privacy"),
            Self::InSync => Some("in_sync"),
            Self::DailyLimit => Some("daily_limit"),
            Self::NotSampled => Some("sampled"),
            Self::UrlTooLong => Some("url_too_long"),
            Self::OverLimit => Some("over_limit"),
        }
    }
}

/// Counts by DSP and outcome.
type Counts = HashMap<(Option<DspId>, &'static str), u64, RandomState>;

/// Handles of all metrics of plans; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    /// Outcomes in plans, and of returns.
    counts: Arc<[Mutex<Counts>; 2]>,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When one of the metrics is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            requests: registry.add(producer::PLAN_REQUESTS)?,
            counts: Arc::default(),
        };
        let counts = Arc::clone(&metrics.counts);
        registry.read(move || {
            let names = [producer::PLAN_DSPS, producer::PLAN_RETURNS];
            let families = names.into_iter().zip(&*counts).map(|(name, counts)| {
                let counts = counts.lock().clone();
                let samples: Vec<_> = counts
                    .into_iter()
                    .map(|((dsp_id, outcome), count)| {
                        let dsp = dsp_id.map_or_else(|| "other".to_owned(), |it| it.to_string());
                        (dsp, outcome, as_f64(count))
                    })
                    .collect();
                let samples = samples.iter();
                family(
                    name,
                    samples.map(|(dsp, outcome, count)| ([&**dsp, *outcome], *count)),
                )
            });
            families.collect()
        })?;
        Ok(metrics)
    }

    /// Counts a request.
    pub fn count(&self, outcome: &str) {
        self.requests.with_label_values(&[outcome]).inc();
    }

    /// Counts the DSPs of a plan.
    pub fn count_plan(&self, plan: &Plan<'_>) {
        let mut counts = self.counts[0].lock();
        for offer in &plan.offers {
            add(&mut counts, offer.dsp_id, OFFERED);
        }
        for (_, dsp_id, reason) in &plan.left_out {
            if let (Some(dsp_id), Some(label)) = (dsp_id, reason.label()) {
                add(&mut counts, *dsp_id, label);
            }
        }
    }

    /// Counts the return of a browser from a DSP, which it may have been offered.
    #[cold]
    pub fn count_return(
        &self,
        dsp_id: Option<DspId>,
        outcome: &'static str,
        contracts: &Contracts,
    ) {
        // Anyone can send any id.
        let synced = dsp_id.filter(|dsp_id| contracts.of(*dsp_id).sync.is_some());
        if let Some(dsp_id) = synced {
            add(&mut self.counts[1].lock(), dsp_id, outcome);
        }
    }
}

fn add(counts: &mut Counts, dsp_id: DspId, outcome: &'static str) {
    let key = (Some(dsp_id), outcome);
    let has_series = counts.len() < SERIES_MAX || counts.contains_key(&key);
    let key = if has_series { key } else { (None, outcome) };
    *counts.entry(key).or_default() += 1;
}
