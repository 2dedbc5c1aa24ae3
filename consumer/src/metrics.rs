//! All metrics of this process: one struct per component, registered on an injected registry.
//!
//! Counters are updated per chunk or batch, never per cookie.

mod deletions;
mod health;
mod maintenance;
mod producers;
mod sink;
mod subscription;

use prometheus::Result;
use runtime::metrics::Registry;

pub use self::{
    deletions::register as register_deletions, health::register as register_health,
    maintenance::Maintenance, producers::register as register_producers, sink::Sink,
    subscription::Subscription,
};
use crate::ledger::Ledger;

/// All metrics of a consumer, except those of its producers.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Metrics of subscriptions.
    pub subscription: Subscription,
    /// Metrics of the sink.
    pub sink: Sink,
    /// Metrics of maintenance.
    pub maintenance: Maintenance,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        let ledger = Ledger::default();
        ledger.register(registry)?;
        Ok(Self {
            subscription: Subscription::register(registry, ledger.clone())?,
            sink: Sink::register(registry, ledger)?,
            maintenance: Maintenance::register(registry)?,
        })
    }
}

/// A count as the value of a gauge, saturating.
pub fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
