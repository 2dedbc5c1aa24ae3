//! One step: one peer, so many subscribers, so many cookies a message.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use bench::report::{micros_each, per_second};
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    child::Child,
    outcome::Step,
    publisher::PublisherLine,
    scene::{LOOK_INTERVAL, Scene},
    seen::ReaderLine,
};

/// What a sample of the delivery rate covers.
const SAMPLE_MICROS: u64 = 1_000_000;

/// Runs a step on a server of its own.
///
/// # Errors
/// When the server, its publisher or its subscribers break off.
pub(super) async fn measure(
    scene: &Scene<'_>,
    subscribers: usize,
    rate: Option<NonZeroU64>,
    duration: Duration,
) -> Result<Step> {
    let mut broker = scene.broker().await?;
    let readers = scene.readers("reader", &broker, subscribers).await?;
    let mut samples = Samples::default();
    let (cpu_before, _) = broker.usage()?;
    let mut publisher = scene.publisher(&broker, rate, duration)?;
    let published = finish(scene, &mut publisher, || {
        samples.look(readers.newest());
        broker.usage().map(drop)
    })
    .await?;
    let expected = published.published * subscribers as u64;
    scene
        .settle(&[(&readers, expected)], || {
            samples.look(readers.newest());
            broker.usage().map(drop)
        })
        .await?;
    let (cpu, memory) = broker.usage()?;
    let declared_lost = broker.declared_lost().await?;
    let seen = readers.end().await?;
    let version = broker.said_version();
    broker.stop().await;

    let delivered = seen.delivered();
    let seconds = seen.seconds().max(published.seconds);
    let broker_seconds = cpu.since(&cpu_before).total().as_secs_f64();
    Ok(Step {
        peer: scene.peer,
        subscribers,
        batch: scene.batch,
        cookies_per_message: mean(seen.received, seen.messages),
        said_version: version,
        published: published.published,
        refused: published.refused,
        publish_seconds: published.seconds,
        published_per_second: per_second(published.published, published.seconds),
        delivered,
        deliver_seconds: seconds,
        deliveries_per_second: per_second(delivered, seconds),
        lost: expected.saturating_sub(delivered),
        surplus: delivered.saturating_sub(expected),
        told_lost: seen.told_lost.max(declared_lost),
        repeated: seen.repeated,
        unreadable: seen.unreadable,
        disconnects: seen.disconnects,
        broker_cpu_seconds: broker_seconds,
        broker_cpu_micros_per_delivery: micros_each(broker_seconds, delivered),
        publisher_cpu_micros_per_cookie: micros_each(published.cpu_seconds, published.published),
        reader_cpu_micros_per_delivery: micros_each(seen.cpu_seconds, delivered),
        broker_peak_bytes: memory.peak_bytes,
        deliveries_per_second_by_second: samples.rates,
    })
}

/// What each of `count` has of `sum`; 0 when there is none.
fn mean(sum: u64, count: u64) -> f64 {
    if count > 0 {
        sum as f64 / count as f64
    } else {
        0.0
    }
}

/// Waits for the publisher's end, which a Ctrl-C hastens; calls `look` meanwhile.
pub(super) async fn finish(
    scene: &Scene<'_>,
    publisher: &mut Child<PublisherLine>,
    mut look: impl FnMut() -> Result<()>,
) -> Result<PublisherLine> {
    let mut is_told = false;
    loop {
        tokio::select! {
            line = publisher.ended() => return line,
            () = sleep(LOOK_INTERVAL) => look()?,
            () = scene.stop.cancelled(), if !is_told => {
                is_told = true;
                // When it has ended by itself, its line is there.
                publisher.signal(Signal::TERM).ok();
            }
        }
    }
}

/// The delivery rate of each second.
#[derive(Debug, Default)]
struct Samples {
    from: Option<ReaderLine>,
    rates: Vec<f64>,
}

impl Samples {
    fn look(&mut self, line: Option<ReaderLine>) {
        let Some(line) = line.filter(|line| line.first_unix_micros > 0) else {
            return;
        };
        let from = *self.from.get_or_insert(line);
        let micros = line.unix_micros.saturating_sub(from.unix_micros);
        // A second in which the last cookie came is not a whole one.
        if micros >= SAMPLE_MICROS && line.received > from.received {
            let received = line.received - from.received;
            self.rates.push(per_second(received, micros as f64 / 1e6));
            self.from = Some(line);
        }
    }
}
