//! Every metric of this process, one struct a component, registered on an injected registry.
//!
//! Counters move once a chunk or a batch, never once a cookie.

mod maintenance;
mod producers;
mod retry_queue;
mod sink;
mod subscription;

use prometheus::Result;
use runtime::metrics::{Registry, register_process};

pub use self::{
    maintenance::Maintenance, producers::register as register_producers, retry_queue::RetryQueue,
    sink::Sink, subscription::Subscription,
};
use crate::ledger::Ledger;

/// All metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What subscriptions count.
    pub subscription: Subscription,
    /// What the sink counts.
    pub sink: Sink,
    /// What is counted of cookies that are set aside.
    pub retry_queue: RetryQueue,
    /// What maintenance counts.
    pub maintenance: Maintenance,
}

impl Metrics {
    /// Registers everything, the process's own figures included.
    ///
    /// # Errors
    /// When a name is taken on this registry.
    pub fn register(registry: &Registry) -> Result<Self> {
        register_process(registry, "consumer", env!("CARGO_PKG_VERSION"))?;
        let ledger = Ledger::default();
        ledger.register(registry)?;
        Ok(Self {
            subscription: Subscription::register(registry, ledger.clone())?,
            sink: Sink::register(registry, ledger.clone())?,
            retry_queue: RetryQueue::register(registry, ledger)?,
            maintenance: Maintenance::register(registry)?,
        })
    }
}

/// A gauge's value for a count that may pass what it can hold.
#[must_use]
pub fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
