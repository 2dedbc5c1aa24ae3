//! How each producer stands: connected or not, how far behind, and what can be known of its clock.
//!
//! # Which producers are shown
//!
//! One that a subscription reads from, or read from last: it goes with the last such subscription, that is when its
//! address leaves the name service, or another producer answers there. The newest durable sequence is shown as long as the
//! store keeps the cursor. In all at most [`PRODUCERS_MAX`] are shown; what is too many is left out, those first that
//! nobody reads from.
//!
//! # Cost
//!
//! One lock for each chunk, that only a scrape and the sink take besides.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus::{
    Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use proto::wire::ChunkHeader;
use runtime::metrics::{Family, Registry};
use tokio::time::{Duration, Instant};

use crate::batch::Cursor;

/// Most producers that are shown.
const PRODUCERS_MAX: usize = 256;

/// The clock skew is the least over one to two of these.
const SKEW_INTERVAL: Duration = Duration::from_secs(60);

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

const FAMILIES: [Family; 4] = [CONNECTED, LAG, SKEW, CURSOR];

/// The series of all producers; clones share them.
#[derive(Debug, Clone)]
pub struct Producers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    descs: Vec<Desc>,
    producers: Mutex<BTreeMap<Arc<str>, Producer>>,
}

/// What is known of one producer.
#[derive(Debug, Default)]
struct Producer {
    /// Subscriptions that read from it, or did last.
    followers: usize,
    /// Streams that are open.
    streams: usize,
    /// The newest sequence that it is known to have.
    newest: Option<Known>,
    /// The newest durable cursor: epoch and sequence.
    durable: Option<(u64, u64)>,
    skew: Skew,
}

/// How far a life of a producer goes, as far as is known.
#[derive(Debug, Clone, Copy)]
struct Known {
    epoch: u64,
    /// Before the first sequence that was asked for.
    from: u64,
    sequence: u64,
}

impl Producers {
    /// Registers them; no producer is known yet.
    ///
    /// # Errors
    /// When a name is taken.
    pub(super) fn register(registry: &Registry) -> Result<Self> {
        let descs = FAMILIES.iter().map(Family::desc).collect::<Result<_>>()?;
        let producers = Self {
            shared: Arc::new(Shared {
                descs,
                producers: Mutex::default(),
            }),
        };
        registry.register(Box::new(producers.clone()))?;
        Ok(producers)
    }

    /// Shows a producer that a subscription begins to read from, until what this returns is dropped.
    #[must_use]
    pub fn follow(&self, producer: &Arc<str>) -> Followed {
        if let Some(entry) = entry(&mut self.lock(), producer) {
            entry.followers += 1;
        }
        Followed {
            producers: self.clone(),
            producer: Arc::clone(producer),
        }
    }

    /// Notes a cursor that is durable.
    pub fn durable(&self, cursor: &Cursor) {
        if let Some(entry) = entry(&mut self.lock(), &cursor.producer) {
            entry.durable = Some((cursor.epoch, cursor.sequence));
        }
    }

    /// Ends the series of a producer whose cursor is no longer kept.
    pub fn forget(&self, producer: &str) {
        let mut producers = self.lock();
        if let Some(entry) = producers.get_mut(producer) {
            entry.durable = None;
        }
        producers.retain(|_, entry| entry.is_shown());
    }

    /// The newest sequence of this life of a producer that is durable here, if any is.
    #[must_use]
    pub fn durable_in(&self, producer: &str, epoch: u64) -> Option<u64> {
        match self.lock().get(producer)?.durable {
            Some((durable, sequence)) if durable == epoch => Some(sequence),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Producer>> {
        let producers = self.shared.producers.lock();
        producers.unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a producer, made room for if that is possible.
fn entry<'a>(
    producers: &'a mut BTreeMap<Arc<str>, Producer>,
    producer: &Arc<str>,
) -> Option<&'a mut Producer> {
    if !producers.contains_key(producer) && producers.len() >= PRODUCERS_MAX {
        let unread = producers.iter().find(|(_, entry)| entry.followers == 0);
        let unread = unread.map(|(name, _)| Arc::clone(name))?;
        producers.remove(&unread);
    }
    Some(producers.entry(Arc::clone(producer)).or_default())
}

impl Producer {
    fn is_shown(&self) -> bool {
        self.followers > 0 || self.durable.is_some()
    }

    /// It is known to have `sequence` in `epoch`, of which everything after `from` was asked for.
    fn has(&mut self, epoch: u64, from: u64, sequence: u64) {
        match &mut self.newest {
            Some(known) if known.epoch == epoch => {
                known.sequence = known.sequence.max(sequence);
            }
            newest => {
                *newest = Some(Known {
                    epoch,
                    from,
                    sequence,
                });
            }
        }
    }

    fn lag(&self) -> Option<u64> {
        let Known {
            epoch,
            from,
            sequence,
        } = self.newest?;
        let stands = match self.durable {
            Some((durable, at)) if durable == epoch => at,
            _ => from,
        };
        Some(sequence.saturating_sub(stands))
    }
}

/// A producer that is shown because a subscription reads from it.
#[derive(Debug)]
pub struct Followed {
    producers: Producers,
    producer: Arc<str>,
}

impl Followed {
    /// Whose series these are.
    #[must_use]
    pub fn producer(&self) -> &Arc<str> {
        &self.producer
    }

    /// A stream began that goes on after `cursor`, of a producer that has everything before `next_sequence`.
    pub fn connected(&self, cursor: &Cursor, next_sequence: u64) {
        self.change(|entry| {
            entry.streams += 1;
            entry.has(
                cursor.epoch,
                cursor.sequence,
                next_sequence.saturating_sub(1),
            );
        });
    }

    /// That stream ended.
    pub fn disconnected(&self) {
        self.change(|entry| entry.streams = entry.streams.saturating_sub(1));
    }

    /// A stream came as far as `cursor`.
    pub fn reached(&self, cursor: &Cursor) {
        self.change(|entry| entry.has(cursor.epoch, cursor.sequence, cursor.sequence));
    }

    /// A chunk was received at `unix_micros` by this machine's clock, which is `now`.
    pub fn received(&self, chunk: &ChunkHeader, unix_micros: u64, now: Instant) {
        let took = i128::from(unix_micros) - i128::from(chunk.accepted_unix_micros);
        let took = i64::try_from(took).unwrap_or(if took < 0 { i64::MIN } else { i64::MAX });
        self.change(|entry| entry.skew.note(took, now));
    }

    fn change(&self, change: impl FnOnce(&mut Producer)) {
        if let Some(entry) = self.producers.lock().get_mut(&self.producer) {
            change(entry);
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let mut producers = self.producers.lock();
        if let Some(entry) = producers.get_mut(&self.producer) {
            entry.followers = entry.followers.saturating_sub(1);
        }
        producers.retain(|_, entry| entry.is_shown());
    }
}

/// The least time from accepted to received, in microseconds by two clocks, over the interval that runs and the one before.
#[derive(Debug, Default)]
struct Skew {
    began: Option<Instant>,
    current: Option<i64>,
    previous: Option<i64>,
}

impl Skew {
    fn note(&mut self, micros: i64, now: Instant) {
        self.turn(now);
        self.current = Some(self.current.map_or(micros, |least| least.min(micros)));
    }

    /// `None` when nothing was received in that time.
    fn least(&mut self, now: Instant) -> Option<i64> {
        self.turn(now);
        let both = [self.current, self.previous];
        both.into_iter().flatten().min()
    }

    /// Begins the interval that `now` lies in.
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began);
        if passed >= SKEW_INTERVAL {
            let is_next = passed < 2 * SKEW_INTERVAL;
            self.previous = self.current.take().filter(|_| is_next);
            self.began = Some(if is_next { began + SKEW_INTERVAL } else { now });
        }
    }
}

impl Collector for Producers {
    fn desc(&self) -> Vec<&Desc> {
        self.shared.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let mut samples: [Vec<([&str; 1], f64)>; FAMILIES.len()] = Default::default();
        let mut producers = self.lock();
        for (name, producer) in &mut *producers {
            let is_followed = producer.followers > 0;
            let [connected, lag, skew, cursor] = [
                is_followed.then(|| f64::from(u8::from(producer.streams > 0))),
                producer.lag().filter(|_| is_followed).map(as_f64),
                producer
                    .skew
                    .least(now)
                    .filter(|_| is_followed)
                    .map(seconds),
                producer.durable.map(|(_, sequence)| as_f64(sequence)),
            ];
            for (samples, value) in samples.iter_mut().zip([connected, lag, skew, cursor]) {
                samples.extend(value.map(|value| ([&**name], value)));
            }
        }
        let families = FAMILIES.iter().zip(samples);
        families
            .map(|(family, samples)| family.with(samples))
            .collect()
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
