//! Collects batches from the buffer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use runtime::unix_micros;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{BatchSender, Failure};
use crate::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    clock::ClockJumps,
    deletions::{Deletion, Deletions},
    dsp_slots::DspSlots,
    metrics::{self, gauge_value},
    subscription::buffer::{BufferReader, Item},
    suppression::Suppression,
    ttl::Ttls,
};

/// Number of cookies at which a batch is flushed early. mongod needs 3.5 µs per document in commands of 1,000, and 5 µs in
/// commands of 200. At 40,000 cookies per second, a batch is flushed 75 ms before the default flush interval ends.
const FLUSH_COOKIES: usize = 5_000;

/// Maximum time that a producer's clock may be ahead of this host's; later times are clamped.
const CLOCK_AHEAD_MICROS_MAX: u64 = 5 * 60 * 1_000_000;

/// When a batch is passed to the writer.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// Time after the first cookie of the batch, if the writer is idle.
    pub(super) flush_interval: Duration,
    /// Number of distinct cookies at which a batch is full.
    pub(super) cookies_max: usize,
    /// Bytes of chunks at which a batch is full.
    pub(super) bytes_max: usize,
}

/// Collects the batches of one sink.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) limits: BatchLimits,
    pub(super) suppression: Arc<Mutex<Suppression>>,
    pub(super) metrics: metrics::Sink,
    /// Cancelled to skip the rest of the buffer.
    pub(super) fast_drain: CancellationToken,
    pub(super) clock: ClockJumps,
    pub(super) slots: DspSlots,
    pub(super) ttls: Ttls,
    pub(super) deletions: Deletions,
    /// DSPs that the operator rejects.
    pub(super) rejected_dsps: watch::Receiver<BTreeSet<u32>>,
}

/// Rejects expired cookies and cookies of DSPs that are not accepted, and suppresses duplicates.
struct AdmissionFilter<'a> {
    slots: &'a mut DspSlots,
    ttls: &'a Ttls,
    /// The current time in microseconds since the Unix epoch.
    now: u64,
    deletions: &'a Deletions,
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
        let deleted = self.deletions.until(cookie.user_id, cookie.dsp_id);
        if cookie.accepted_unix_micros <= deleted {
            DedupDecision::Deleted
        } else if cookie.accepted_unix_micros < self.ttls.expired_before(cookie.dsp_id, self.now) {
            DedupDecision::Expired
        } else if self.slots.admits(cookie.dsp_id) {
            self.suppression.set_deleted(deleted);
            self.suppression.decide(cookie, fingerprint, batch)
        } else {
            DedupDecision::NoDspSlot
        }
    }

    fn delete(&mut self, deletion: &Deletion) {
        self.deletions.add(deletion);
    }
}

impl Collector {
    /// Collects batches until the buffer ends.
    ///
    /// In a fast drain, sends the current batch to the writer and skips the rest of the buffer. Producers send skipped cookies
    /// again, because their cursors were not committed.
    ///
    /// # Errors
    /// When the writer has ended.
    pub(super) async fn run(
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
                idle = batch_sender.wait_idle(), if is_due => {
                    due_at = None;
                    let next = batch.next();
                    self.update_slot_metrics();
                    let full = std::mem::replace(&mut batch, next);
                    batch_sender.send(full, idle).await?;
                }
                item = buffer.pop(), if !batch.is_full() => {
                    let Some(item) = item else { break };
                    if due_at.is_none() {
                        due_at = Some(Instant::now() + limits.flush_interval);
                        self.update_rejected_dsps();
                    }
                    self.add(&mut batch, item);
                }
                () = sleep_until(due_at.unwrap_or_else(Instant::now)), if due_at.is_some() && !is_due => {}
                () = self.fast_drain.cancelled() => {
                    self.skip_buffered(&mut buffer);
                    break;
                }
            }
        }
        if !batch.is_empty() {
            self.update_slot_metrics();
            let idle = batch_sender.wait_idle().await;
            batch_sender.send(batch, idle).await?;
        }
        Ok(())
    }

    fn add(&mut self, batch: &mut Batch, item: Item) {
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
                let mut suppression = self.suppression.lock();
                suppression.set_now(now);
                let mut filter = AdmissionFilter {
                    slots: &mut self.slots,
                    ttls: &self.ttls,
                    // The steady clock is not used: after a jump forward and back, it would expire all cookies.
                    now: self.clock.earlier(now, at),
                    deletions: &self.deletions,
                    suppression: &mut suppression,
                };
                batch.push_filtered(&producer, &chunk, latest, &mut filter);
            }
            Item::Cursor(cursor) => batch.advance(&cursor),
        }
    }

    /// Applies a reload of the rejected DSPs.
    fn update_rejected_dsps(&mut self) {
        let rejected = self.rejected_dsps.borrow();
        if self.slots.set_rejected(&rejected) {
            tracing::info!(dsps = rejected.len(), "list of rejected DSPs updated");
        }
    }

    /// Accepts the DSPs in the store.
    pub(super) fn load(&mut self, stored: &[u32]) {
        self.update_rejected_dsps();
        self.slots.load(stored);
        self.update_slot_metrics();
    }

    fn update_slot_metrics(&self) {
        let (unlisted, max) = self.slots.unlisted();
        self.metrics.dsp_slots.set(gauge_value(unlisted as u64));
        self.metrics.dsp_slots_max.set(gauge_value(max as u64));
    }

    /// Empties the buffer, and counts and logs the skipped cookies.
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
                "half of the drain time has passed; skipping buffered cookies, which producers send again if their logs still contain them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::tests::{chunk, empty},
        store::WriteOutcome,
        suppression::outcomes,
    };

    #[test]
    fn cookie_is_stored_again_after_its_deletion_left_the_table() {
        let began = unix_micros();
        let after = |seconds: u64| began + seconds * 1_000_000;
        let deletion = |user: &str, seconds| Deletion {
            user_id: user.as_bytes().into(),
            dsp_id: 0,
            until_unix_micros: after(seconds),
        };
        let hour = Duration::from_secs(3600);
        let ttls = Ttls::new(24 * hour, [].into());
        let mut suppression = Suppression::new(hour, 1 << 20, ttls.clone());
        // The table has one entry.
        let deletions = Deletions::new(0);
        let mut slots = DspSlots::new(BTreeSet::new(), 512);
        let mut id = BatchId(0);
        let mut stored = |seconds| {
            let mut batch = empty(id);
            id = id.next();
            let mut filter = AdmissionFilter {
                slots: &mut slots,
                ttls: &ttls,
                now: began,
                deletions: &deletions,
                suppression: &mut suppression,
            };
            let chunk = chunk(1, after(seconds), &[("u", 1, "b")]);
            batch.push_filtered(&"p".into(), &chunk, u64::MAX, &mut filter);
            suppression.record(batch.id(), outcomes(&batch, &WriteOutcome::default()));
            batch.len()
        };
        assert_eq!([stored(0), stored(1)], [1, 0], "the second is a duplicate");
        deletions.add(&deletion("u", 2));
        deletions.add(&deletion("v", 3));
        assert_eq!(stored(4), 1);
    }
}
