//! From the buffer to batches.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use runtime::unix_micros;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{BatchLimits, BatchSender, Failure, lock};
use crate::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    clock::ClockJumps,
    dsp_slots::DspSlots,
    metrics::{self, gauge_value},
    subscription::buffer::{BufferReader, Item},
    suppression::Suppression,
    ttl::Ttls,
};

/// Cookies that need not wait for more. A document costs mongod 3.5 µs in commands of 1,000, and 5 µs in commands of 200
/// still; at 40,000 a second these come 75 ms before the default flush interval ends.
const FLUSH_COOKIES: usize = 5_000;

/// How far ahead of this machine's clock a producer's is believed.
const CLOCK_AHEAD_MICROS_MAX: u64 = 5 * 60 * 1_000_000;

/// What a collector has beside its two ends.
#[derive(Debug)]
pub struct Collector {
    limits: BatchLimits,
    suppression: Arc<Mutex<Suppression>>,
    metrics: metrics::Sink,
    /// What is left in the buffer is left out when this is cancelled.
    fast_drain: CancellationToken,
    clock: ClockJumps,
    slots: DspSlots,
    ttls: Ttls,
    /// DSPs that the operator refuses.
    refused: watch::Receiver<BTreeSet<u32>>,
}

/// Refuses cookies that have expired and those of DSPs without a slot, and filters the others by what is stored.
struct AdmissionFilter<'a> {
    slots: &'a mut DspSlots,
    ttls: &'a Ttls,
    /// In microseconds since the Unix epoch.
    now: u64,
    suppression: &'a mut Suppression,
}

impl DedupFilter for AdmissionFilter<'_> {
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint {
        self.suppression.fingerprint(cookie)
    }

    fn prefetch(&mut self, fingerprints: &[Fingerprint]) {
        self.suppression.prefetch(fingerprints);
    }

    fn decide(
        &mut self,
        cookie: &BatchCookie<'_>,
        fingerprint: Fingerprint,
        batch: BatchId,
    ) -> DedupDecision {
        if cookie.accepted_unix_micros < self.ttls.expired_before(cookie.dsp_id, self.now) {
            DedupDecision::Expired
        } else if self.slots.admits(cookie.dsp_id) {
            self.suppression.decide(cookie, fingerprint, batch)
        } else {
            DedupDecision::NoDspSlot
        }
    }
}

impl Collector {
    /// A collector that ends early when `fast_drain` is cancelled.
    #[must_use]
    pub fn new(
        limits: BatchLimits,
        suppression: Arc<Mutex<Suppression>>,
        slots: DspSlots,
        ttls: Ttls,
        mut refused: watch::Receiver<BTreeSet<u32>>,
        metrics: metrics::Sink,
        fast_drain: CancellationToken,
    ) -> Self {
        refused.mark_changed();
        Self {
            limits,
            suppression,
            metrics,
            fast_drain,
            clock: ClockJumps::new(unix_micros(), Instant::now()),
            slots,
            ttls,
            refused,
        }
    }

    /// Collects batches until the buffer ends.
    ///
    /// In a fast drain it hands over what it has and leaves the rest of the buffer out. No cursor of that was committed,
    /// so the producers send it again.
    ///
    /// # Errors
    /// When the writer is gone.
    pub async fn run(
        mut self,
        mut buffer: BufferReader,
        batch_sender: BatchSender,
    ) -> Result<(), Failure> {
        let limits = self.limits;
        let mut batch = Batch::new(limits.cookies_max, limits.bytes_max);
        let mut due_at: Option<Instant> = None;
        loop {
            let is_old = due_at.is_some_and(|due_at| due_at <= Instant::now());
            let is_due = is_old || batch.is_full() || batch.len() >= FLUSH_COOKIES;
            tokio::select! {
                idle = batch_sender.idle(), if is_due => {
                    due_at = None;
                    let next = batch.next();
                    self.show_slots();
                    batch_sender.give(std::mem::replace(&mut batch, next), idle).await?;
                }
                item = buffer.pop(), if !batch.is_full() => {
                    let Some(item) = item else { break };
                    if due_at.is_none() {
                        due_at = Some(Instant::now() + limits.flush_interval);
                        self.refuse();
                    }
                    self.take(&mut batch, item);
                }
                () = sleep_until(due_at.unwrap_or_else(Instant::now)), if due_at.is_some() && !is_due => {}
                () = self.fast_drain.cancelled() => {
                    self.skip_buffered(&mut buffer);
                    break;
                }
            }
        }
        if !batch.is_empty() {
            self.show_slots();
            let idle = batch_sender.idle().await;
            batch_sender.give(batch, idle).await?;
        }
        Ok(())
    }

    fn take(&mut self, batch: &mut Batch, item: Item) {
        match item {
            Item::Chunk(producer, chunk) => {
                let (now, at) = (unix_micros(), Instant::now());
                let latest = self
                    .clock
                    .steady(now, at)
                    .saturating_add(CLOCK_AHEAD_MICROS_MAX);
                let header = chunk.header();
                if header.accepted_unix_micros > latest {
                    self.metrics.clock_clamped.inc_by(header.count.into());
                }
                let mut suppression = lock(&self.suppression);
                suppression.set_now(now);
                let mut gate = AdmissionFilter {
                    slots: &mut self.slots,
                    ttls: &self.ttls,
                    // Not the steady one: after a jump ahead and back, that would take everything for expired.
                    now: self.clock.earlier(now, at),
                    suppression: &mut suppression,
                };
                batch.push_filtered(&producer, &chunk, latest, &mut gate);
            }
            Item::Cursor(cursor) => batch.advance(&cursor),
        }
    }

    /// Takes over what the operator refuses, if that has changed.
    fn refuse(&mut self) {
        if self.refused.has_changed().unwrap_or(false) {
            let refused = self.refused.borrow_and_update().clone();
            tracing::info!(dsps = refused.len(), "cookies of these DSPs are refused");
            self.slots.refuse(refused);
        }
    }

    /// Takes in of what the store holds which DSPs have a slot.
    pub fn load(&mut self, held: &[u32]) {
        self.refuse();
        self.slots.load(held);
        self.show_slots();
    }

    fn show_slots(&self) {
        let (taken, max) = self.slots.taken();
        self.metrics.dsp_slots.set(gauge_value(taken as u64));
        self.metrics.dsp_slots_max.set(gauge_value(max as u64));
    }

    /// Empties the buffer, and counts and says how much is left out.
    fn skip_buffered(&self, buffer: &mut BufferReader) {
        let mut cookies = 0;
        while let Some(item) = buffer.try_pop() {
            if let Item::Chunk(_, chunk) = item {
                cookies += u64::from(chunk.header().count);
            }
        }
        self.metrics.ledger.drain_skipped(cookies);
        if cookies > 0 {
            tracing::warn!(
                cookies,
                "drain deadline reached; cookies not yet stored will be redelivered after restart if producers still retain them"
            );
        }
    }
}
