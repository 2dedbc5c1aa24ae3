//! How each producer stands, as series: connected or not, how far behind, and what can be known of its clock; all read from the
//! [table](Producers) when somebody asks.
//!
//! # Which producers are shown
//!
//! One that a subscription reads from, or read from last: it goes with the last such subscription, that is when its
//! address leaves the name service, or another producer answers there. The newest durable sequence is shown as long as the
//! store keeps the cursor. In all at most [`PRODUCERS_SHOWN`] are shown; what is too many is left out, those first that
//! nobody reads from.

use prometheus::{
    Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use runtime::metrics::{Family, Registry};

use crate::producers::{PRODUCERS_SHOWN, ProducerFigures, Producers};

const STREAMS: Family = Family::gauge("consumer_producers_connected", "Streams open now.", &[]);

const ADDRESS_CONNECTED: Family = Family::gauge(
    "consumer_address_connected",
    "1 while the stream from this address is open.",
    &["address"],
);

const LABELS: &[&str] = &["producer"];

const CONNECTED: Family = Family::gauge(
    "consumer_producer_connected",
    "1 while a stream of this producer is open.",
    LABELS,
);

const LAG: Family = Family::gauge(
    "consumer_producer_lag_cookies",
    "Cookies that this producer is known to have, by its hello or because they were received, and that are not durable here.",
    LABELS,
);

const SKEW: Family = Family::gauge(
    "consumer_clock_skew_seconds",
    "How far this machine's clock is ahead of the producer's, at most: the least time from accepted there to received here in the last one to two minutes.",
    LABELS,
);

const CURSOR: Family = Family::gauge(
    "consumer_cursor_sequence",
    "The newest durable sequence, by producer id.",
    LABELS,
);

/// A series of each producer: its value, if it has one.
type Value = fn(&ProducerFigures) -> Option<f64>;

const BY_PRODUCER: [(Family, Value); 4] = [
    (CONNECTED, |it| {
        it.is_read.then(|| f64::from(u8::from(it.streams > 0)))
    }),
    (LAG, |it| it.lag_cookies.filter(|_| it.is_read).map(as_f64)),
    (SKEW, |it| {
        it.skew_micros.filter(|_| it.is_read).map(seconds)
    }),
    (CURSOR, |it| {
        it.durable.map(|(_, sequence)| as_f64(sequence))
    }),
];

/// Shows a table.
#[derive(Debug)]
pub struct ProducerSeries {
    descs: Vec<Desc>,
    producers: Producers,
}

impl ProducerSeries {
    /// Shows this one.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry, producers: Producers) -> Result<()> {
        let families = BY_PRODUCER.iter().map(|(family, _)| family);
        let families = families.chain([&STREAMS, &ADDRESS_CONNECTED]);
        let descs = families.map(Family::desc).collect::<Result<_>>()?;
        registry.register(Box::new(Self { descs, producers }))
    }
}

impl Collector for ProducerSeries {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let snapshot = self.producers.snapshot();
        let by_producer = BY_PRODUCER.iter().map(|(family, value)| {
            let shown = snapshot.producers.iter().take(PRODUCERS_SHOWN);
            family.with(shown.filter_map(|(id, it)| Some(([&**id], value(it)?))))
        });
        let addresses: Vec<_> = snapshot
            .addresses
            .iter()
            .map(|it| (it.address.to_string(), u8::from(it.is_connected)))
            .collect();
        let connected = addresses.iter().map(|(_, connected)| u64::from(*connected));
        let streams = STREAMS.with([([], as_f64(connected.sum()))]);
        let addresses = addresses.iter();
        let addresses = ADDRESS_CONNECTED
            .with(addresses.map(|(address, connected)| ([&**address], f64::from(*connected))));
        by_producer.chain([streams, addresses]).collect()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests;
