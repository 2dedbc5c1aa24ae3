//! Metrics of plans: requests, DSPs, and returns.

use std::{hash::Hash, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use metric_defs::{MetricDef, producer};
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use proto::{limits::CONTRACTS_MAX, units::DspId};
use runtime::metrics::{Family, Registry, as_f64, family};

use super::{Plan, Reason};
use crate::contracts::Contracts;

/// Maximum number of series, enough for all DSPs with each outcome; others are counted for the DSP `other`.
const SERIES_MAX: usize = 64 * CONTRACTS_MAX;

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
type Counts<Outcome> = HashMap<(Option<DspId>, Outcome), u64, RandomState>;

/// Handles of all metrics of plans; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    /// Why a DSP was left out; `None` if it was offered.
    dsps: Arc<Mutex<Counts<Option<Reason>>>>,
    returns: Arc<Mutex<Counts<&'static str>>>,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When one of the metrics is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            requests: registry.add(producer::PLAN_REQUESTS)?,
            dsps: Arc::default(),
            returns: Arc::default(),
        };
        let (dsps, returns) = (Arc::clone(&metrics.dsps), Arc::clone(&metrics.returns));
        registry.read(move || {
            let label = |reason: Option<Reason>| reason.map_or(Some("offered"), Reason::label);
            vec![
                read(producer::PLAN_DSPS, &dsps, label),
                read(producer::PLAN_RETURNS, &returns, Some),
            ]
        })?;
        Ok(metrics)
    }

    /// Counts a request.
    pub fn count(&self, outcome: &str) {
        self.requests.with_label_values(&[outcome]).inc();
    }

    /// Counts the DSPs of a plan.
    pub fn count_plan(&self, plan: &Plan<'_>) {
        let mut counts = self.dsps.lock();
        for offer in &plan.offers {
            add(&mut counts, offer.dsp_id, None);
        }
        for (_, dsp_id, reason) in &plan.left_out {
            if let Some(dsp_id) = dsp_id {
                add(&mut counts, *dsp_id, Some(*reason));
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
            add(&mut self.returns.lock(), dsp_id, outcome);
        }
    }
}

fn add<Outcome: Copy + Eq + Hash>(counts: &mut Counts<Outcome>, dsp_id: DspId, outcome: Outcome) {
    let key = (Some(dsp_id), outcome);
    let has_series = counts.len() < SERIES_MAX || counts.contains_key(&key);
    let key = if has_series { key } else { (None, outcome) };
    *counts.entry(key).or_default() += 1;
}

/// The samples of a metric; those without a label are left out.
fn read<Outcome: Copy>(
    def: MetricDef,
    counts: &Mutex<Counts<Outcome>>,
    label: impl Fn(Outcome) -> Option<&'static str>,
) -> Family {
    let counts = counts.lock().clone();
    let samples: Vec<_> = counts
        .into_iter()
        .filter_map(|((dsp_id, outcome), count)| {
            let dsp = dsp_id.map_or_else(|| "other".to_owned(), |it| it.to_string());
            Some((dsp, label(outcome)?, as_f64(count)))
        })
        .collect();
    let samples = samples.iter();
    family(
        def,
        samples.map(|(dsp, outcome, count)| ([&**dsp, *outcome], *count)),
    )
}
