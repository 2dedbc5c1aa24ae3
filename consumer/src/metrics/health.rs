//! Metrics of the store's health, read at each scrape.

use std::sync::Arc;

use metric_defs::consumer;
use prometheus::Result;
use proto::units::DspId;
use runtime::metrics::{self, Registry, family, value};

use crate::health::Health;

/// Maximum number of failing DSPs with their own series.
const FAILING_MAX: usize = 64;

/// Registers these metrics.
///
/// # Errors
/// When a name is already registered.
pub fn register(registry: &Registry, health: Arc<Health>) -> Result<()> {
    registry.read(move || {
        let failing = health.failing_dsps();
        let named: Vec<_> = failing
            .keys()
            .take(FAILING_MAX)
            .map(DspId::to_string)
            .collect();
        let as_f64 = |is: bool| f64::from(u8::from(is));
        let other = (["other"], as_f64(failing.len() > FAILING_MAX));
        let dsps = named.iter().map(|dsp_id| ([&**dsp_id], 1.0));
        let copy = health.copy();
        let copied = copy.as_ref().map_or(0, |it| it.records);
        let ratio = copy.map_or(1.0, |it| it.ratio);
        vec![
            value(consumer::COPIED, metrics::as_f64(copied)),
            value(consumer::COPIED_RATIO, ratio),
            value(consumer::STORE_UP, as_f64(health.store_down().is_none())),
            family(consumer::DSP_FAILING, dsps.chain([other])),
        ]
    })
}
