//! What health and metrics show of a stream while it is open.

use std::sync::Arc;

use super::{Context, Subscription};
use crate::{
    batch::Cursor,
    health::{self, Link},
    metrics::{self, Followed},
};

impl Subscription {
    /// Shows the producer that answers at this address, instead of one that did before.
    pub(super) fn follow(&mut self, producer: &Arc<str>) {
        let is_the_same = |followed: &Arc<Followed>| followed.producer() == producer;
        if !self.followed.as_ref().is_some_and(is_the_same) {
            let producers = &self.context.metrics.producers;
            self.followed = Some(Arc::new(producers.follow(producer)));
        }
    }

    /// Shows that a stream is open, which goes on after `began_at`, until what this returns is dropped.
    pub(super) fn connected<'a>(
        &self,
        context: &'a Context,
        link: &'a Arc<Link>,
        began_at: &Cursor,
        next_sequence: u64,
    ) -> Connected<'a> {
        if let Some(followed) = &self.followed {
            followed.connected(began_at, next_sequence);
        }
        let metrics = &context.metrics;
        let address = link.address().to_string();
        metrics.connected.inc();
        metrics
            .connected_by_address
            .with_label_values(&[&address])
            .set(1);
        Connected {
            metrics,
            address,
            followed: self.followed.clone(),
            _link: link.connected(&began_at.producer, began_at.epoch, began_at.sequence),
        }
    }
}

/// Shows an open stream in health and metrics while it lives.
pub(super) struct Connected<'a> {
    metrics: &'a metrics::Subscription,
    address: String,
    followed: Option<Arc<Followed>>,
    _link: health::Connected<'a>,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.metrics.connected.dec();
        self.metrics
            .connected_by_address
            .with_label_values(&[&self.address])
            .set(0);
        if let Some(followed) = &self.followed {
            followed.disconnected();
        }
    }
}
