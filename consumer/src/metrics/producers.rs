//! Metrics per producer: connection, lag, clock skew and cursor, read from the [table](Producers) at each scrape.
//!
//! A producer has metric series while it is the one that last responded at a resolved address. The cursor of a producer
//! has a series while the store keeps the cursor. At most [`PRODUCER_SERIES_MAX`] producers have series; producers
//! without an address are omitted first.

use metric_defs::{MetricDef, consumer};
use prometheus::Result;
use runtime::metrics::{Family, Registry, as_f64, family, value};

use crate::{
    producers::{PRODUCER_SERIES_MAX, ProducerStatus, Producers, Snapshot},
    ttl::Ttls,
};

/// The value of a producer's series, if it has one.
type Value = fn(&ProducerStatus) -> Option<f64>;

const BY_PRODUCER: [(MetricDef, Value); 4] = [
    (consumer::PRODUCER_CONNECTED, |it| {
        it.has_address.then(|| f64::from(u8::from(it.streams > 0)))
    }),
    (consumer::PRODUCER_LAG, |it| {
        it.lag_cookies.filter(|_| it.has_address).map(as_f64)
    }),
    (consumer::CLOCK_SKEW, |it| {
        it.skew_micros.filter(|_| it.has_address).map(seconds)
    }),
    (consumer::CURSOR, |it| {
        it.durable.map(|it| as_f64(it.sequence.0))
    }),
];

/// Registers the metrics of this table, and of the TTLs that the producers report.
///
/// # Errors
/// When a name is already registered.
pub fn register(registry: &Registry, producers: Producers, ttls: Ttls) -> Result<()> {
    registry.read(move || {
        let mut families = families(&producers.snapshot());
        let reported = as_f64(ttls.reported_dsps() as u64);
        families.push(value(consumer::CONTRACT_TTL_DSPS, reported));
        families
    })
}

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let by_producer = BY_PRODUCER.iter().map(|(metric, value)| {
        let producers = snapshot.producers.iter().take(PRODUCER_SERIES_MAX);
        family(
            *metric,
            producers.filter_map(|(id, it)| Some(([&**id], value(it)?))),
        )
    });
    let addresses: Vec<_> = snapshot
        .addresses
        .iter()
        .map(|(address, it)| (address.to_string(), u8::from(it.is_connected)))
        .collect();
    let connected = addresses.iter().map(|(_, connected)| u64::from(*connected));
    let has_address = |id| {
        let mut addresses = snapshot.addresses.values();
        addresses.any(|it| it.producer.as_ref() == Some(id))
    };
    let read = snapshot.producers.iter();
    let read = read.filter(|(id, it)| it.streams > 0 && !has_address(id));
    let streams = as_f64(connected.sum::<u64>() + read.count() as u64);
    let addresses = addresses.iter();
    let addresses = addresses.map(|(address, connected)| ([&**address], f64::from(*connected)));
    let unconfirmed = snapshot.addresses.values();
    let unconfirmed = unconfirmed.filter(|it| it.unconfirmed.is_some()).count();
    let others = [
        value(consumer::CONFIRMATIONS_FAILING, as_f64(unconfirmed as u64)),
        value(consumer::PRODUCERS_CONNECTED, streams),
        family(consumer::ADDRESS_CONNECTED, addresses),
    ];
    by_producer.chain(others).collect()
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
