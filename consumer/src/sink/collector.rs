//! Collects batches from the buffer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use proto::{
    limits::{AGE_MICROS_MAX, DELETION_HORIZON_MICROS},
    units::{DspId, UnixMicros},
    wire::ChunkRef,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{BatchSender, Failure, write_rate::WriteRate};
use crate::{
    batch::{Batch, BatchCookie, BatchId, DedupDecision, DedupFilter, Fingerprint},
    clock::{self, ClockJumps},
    clock_offset::{CLOCK_AHEAD_MICROS_MAX, ClockOffset},
    deletions::{Arriving, Deletion, Deletions, Request},
    dsp_slots::DspSlots,
    metrics::{self, gauge_value},
    producers::Producers,
    recovery::{Intake, Recovered},
    subscription::buffer::{BufferReader, Item},
    suppression::Suppression,
    ttl::Ttls,
};

/// Number of cookies at which a batch is flushed early. mongod needs 3.5 µs per document in commands of 1,000, and 5 µs in
/// commands of 200. At 40,000 cookies per second, a batch is flushed 75 ms before the default flush interval ends.
const FLUSH_COOKIES: usize = 5_000;

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
    /// Limits how many recovered cookies a live one waits for.
    pub(super) write_rate: WriteRate,
    pub(super) limits: BatchLimits,
    pub(super) suppression: Arc<Mutex<Suppression>>,
    pub(super) metrics: metrics::Sink,
    /// Cancelled to skip the rest of the buffer.
    pub(super) fast_drain: CancellationToken,
    pub(super) clock: ClockJumps,
    pub(super) slots: DspSlots,
    pub(super) ttls: Ttls,
    pub(super) deletions: Deletions,
    pub(super) producers: Producers,
    /// DSPs that the operator rejects.
    pub(super) rejected_dsps: watch::Receiver<BTreeSet<DspId>>,
    /// Holes, and the cookies that are recovered for them.
    pub(super) recovery: Intake,
}

/// Where a chunk comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The stream of its producer.
    Stream,
    /// The archive.
    Archive,
    /// Another node; with the number of copied records up to its end.
    Node(u64),
}

/// Rejects expired cookies and cookies of DSPs that are not accepted, and suppresses duplicates.
struct AdmissionFilter<'a> {
    slots: &'a mut DspSlots,
    ttls: &'a Ttls,
    /// The current time.
    now: UnixMicros,
    deletions: &'a Deletions,
    suppression: &'a mut Suppression,
    /// The producer of the chunk.
    producer: &'a Arc<str>,
    producers: &'a Producers,
    /// The difference of its clock, if known.
    offset: Option<ClockOffset>,
    /// Time of the chunk, and the maximum to which it is clamped.
    accepted: UnixMicros,
    accepted_max: UnixMicros,
    /// Whether the chunk was copied from another node.
    is_copied: bool,
}

impl<'a> AdmissionFilter<'a> {
    /// A cookie of the chunk, whose time is clamped.
    fn arriving(&self, cookie: &BatchCookie<'_>) -> Arriving<'a> {
        let released = self.accepted.min(self.accepted_max);
        Arriving {
            producer: self.producer,
            offset: self.offset,
            accepted: cookie.accepted.after(self.accepted.since(released)),
            is_delayed: cookie.accepted < released,
        }
    }

    /// The request of a deletion, whose time is not clamped.
    fn request(&self, deletion: &Deletion) -> Option<Request> {
        let offset = self.offset?;
        Some(Request::new(self.producer, offset, deletion.until))
    }
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
        cookie: &mut BatchCookie<'_>,
        fingerprint: Fingerprint,
        batch: BatchId,
    ) -> DedupDecision {
        let deleted = if self.is_copied {
            let age = self.accepted.since(cookie.accepted);
            if cookie.accepted > self.accepted_max || age >= AGE_MICROS_MAX {
                return DedupDecision::InvalidTime;
            }
            let deleted = self.deletions.until(cookie.user_id, cookie.dsp_id);
            if cookie.accepted <= deleted {
                return DedupDecision::Deleted;
            }
            deleted
        } else {
            let arriving = self.arriving(cookie);
            let admitted = self
                .deletions
                .admit(cookie.user_id, cookie.dsp_id, &arriving);
            let Some(deleted) = admitted else {
                return DedupDecision::Deleted;
            };
            let accepted = cookie.accepted;
            cookie.accepted = self.deletions.time_after(deleted, &arriving, accepted);
            deleted
        };
        if cookie.accepted < self.ttls.expired_before(cookie.dsp_id, self.now) {
            DedupDecision::Expired
        } else if self.slots.admits(cookie.dsp_id) {
            self.suppression.set_deleted(deleted);
            self.suppression.decide(cookie, fingerprint, batch)
        } else {
            DedupDecision::NoDspSlot
        }
    }

    /// Extends the deletion to the latest time of a cookie that any producer accepted before it.
    fn delete(&mut self, deletion: &mut Deletion) {
        if self.is_copied {
            let latest = self.accepted_max.after(DELETION_HORIZON_MICROS);
            deletion.until = deletion.until.min(latest);
            self.deletions.add_copied(deletion);
            return;
        }
        let request = self.request(deletion);
        let requested = deletion.until;
        let latest = self.producers.latest_anywhere(self.producer, requested);
        let increased = request.as_ref().map_or(UnixMicros::NONE, |request| {
            self.deletions.increased_until(request.latest_here())
        });
        deletion.until = latest.min(self.accepted_max).max(requested).max(increased);
        self.deletions.add_received(deletion, request);
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
        let mut has_recovered = false;
        loop {
            let is_old = due_at.is_some_and(|due_at| due_at <= Instant::now());
            let recovered_max = self.write_rate.cookies();
            let flush_at = if has_recovered {
                recovered_max
            } else {
                FLUSH_COOKIES
            };
            let is_due = is_old || batch.is_full() || batch.len() >= flush_at;
            tokio::select! {
                idle = batch_sender.wait_idle(), if is_due => {
                    (due_at, has_recovered) = (None, false);
                    let next = batch.next();
                    self.update_slot_metrics();
                    let mut full = std::mem::replace(&mut batch, next);
                    self.recovery.hold(&mut full);
                    batch_sender.send(full, idle).await?;
                }
                Some(recovered) = self.recovery.next(), if batch.len() < recovered_max && buffer.is_empty() => {
                    has_recovered = true;
                    due_at.get_or_insert_with(|| Instant::now() + limits.flush_interval);
                    self.add_recovered(&mut batch, recovered);
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
            self.recovery.hold(&mut batch);
            let idle = batch_sender.wait_idle().await;
            batch_sender.send(batch, idle).await?;
        }
        Ok(())
    }

    fn add(&mut self, batch: &mut Batch, item: Item) {
        match item {
            Item::Chunk(producer, chunk) => self.push(batch, &producer, &chunk, Source::Stream),
            Item::Late(producer, chunk) => self.push(batch, &producer, &chunk, Source::Archive),
            Item::Copied(chunk, copied) => {
                self.push(batch, &Arc::default(), &chunk, Source::Node(copied));
            }
            Item::Cursor(cursor) => batch.advance(&cursor),
            Item::Hole(hole, cursor) => {
                self.recovery.open(hole);
                batch.advance(&cursor);
            }
        }
    }

    fn add_recovered(&mut self, batch: &mut Batch, recovered: Recovered) {
        match recovered {
            Recovered::Chunk(producer, chunk) => {
                self.metrics.ledger.received(chunk.header().count.into());
                self.push(batch, &producer, &chunk, Source::Archive);
            }
            Recovered::Closed(id) => self.recovery.close(id, batch),
            Recovered::Advanced(before, after) => {
                // Otherwise the producer has returned, and sends these cookies again.
                if self.producers.advance_absent(&before, &after) {
                    batch.advance(&after);
                }
            }
        }
    }

    /// Adds the cookies of a chunk. Only a chunk of a stream advances the cursor.
    fn push(&mut self, batch: &mut Batch, producer: &Arc<str>, chunk: &ChunkRef, source: Source) {
        let (now, at) = (clock::now(), Instant::now());
        let latest = self.clock.steady(now, at).after(CLOCK_AHEAD_MICROS_MAX);
        let header = chunk.header();
        let is_copied = matches!(source, Source::Node(_));
        if header.accepted > latest && !is_copied {
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
            producer,
            producers: &self.producers,
            offset: self.producers.clock_offset(producer),
            accepted: header.accepted,
            accepted_max: latest,
            is_copied,
        };
        match source {
            Source::Stream => batch.push_filtered(producer, chunk, latest, &mut filter),
            Source::Archive => batch.push_recovered(chunk, latest, &mut filter),
            Source::Node(copied) => batch.push_copied(chunk, copied, &mut filter),
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
    pub(super) fn load(&mut self, stored: &[DspId]) {
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
            if let Item::Chunk(_, chunk) | Item::Late(_, chunk) | Item::Copied(chunk, _) = item {
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
    use proto::{
        units::{Epoch, Sequence},
        wire::Scope,
    };

    use super::*;
    use crate::{
        batch::{
            Cursor,
            tests::{chunk, empty},
        },
        store::WriteOutcome,
        suppression::outcomes,
    };

    #[test]
    fn cookie_is_stored_again_after_its_deletion_left_the_table() {
        let began = clock::now();
        let after = |seconds: u64| began.after(seconds * 1_000_000);
        let deletion = |user: &str, seconds| Deletion {
            scope: Scope::User(user.as_bytes().into()),
            until: after(seconds),
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
                producer: &"p".into(),
                producers: &Producers::default(),
                offset: None,
                accepted: after(seconds),
                accepted_max: UnixMicros::MAX,
                is_copied: false,
            };
            let chunk = chunk(1, after(seconds).0, &[("u", 1, "b")]);
            batch.push_filtered(&"p".into(), &chunk, UnixMicros::MAX, &mut filter);
            suppression.record(batch.id(), outcomes(&batch, &WriteOutcome::default()));
            batch.len()
        };
        assert_eq!([stored(0), stored(1)], [1, 0], "the second is a duplicate");
        deletions.add(&deletion("u", 2));
        deletions.add(&deletion("v", 3));
        assert_eq!(stored(4), 1);
    }

    const SECOND: u64 = 1_000_000;

    /// A node with two producers. The clock of `ahead` is 30 s ahead of that of this host, and the clock of `behind` 10 s behind.
    struct Node {
        producers: Producers,
        deletions: Deletions,
        now: UnixMicros,
    }

    impl Node {
        fn new() -> Self {
            let producers = Producers::default();
            let now = producers.steady_now();
            let node = Self {
                producers,
                deletions: Deletions::default(),
                now,
            };
            for producer in ["ahead", "behind"] {
                let cursor = Cursor {
                    producer: producer.into(),
                    epoch: Epoch(1),
                    sequence: Sequence(0),
                    complete: false,
                };
                node.producers.load(vec![cursor]);
                let here = node.producers.steady_now();
                node.producers.measure_clock(
                    producer,
                    here,
                    here.after(clock(producer, 0)).before(OFFSET),
                );
            }
            node
        }

        /// Receives a record of user `u` at DSP 1 that `producer` accepted at this time; returns the time that is stored. An empty
        /// buyer uid means a deletion.
        fn receive(&self, producer: &str, buyer_uid: &str, seconds: u64) -> Option<UnixMicros> {
            let hour = Duration::from_secs(3600);
            let ttls = Ttls::new(24 * hour, [].into());
            let mut suppression = Suppression::new(Duration::ZERO, 1 << 20, ttls.clone());
            let mut slots = DspSlots::new(BTreeSet::new(), 512);
            let accepted = self.now.after(clock(producer, seconds)).before(OFFSET);
            let producer: Arc<str> = producer.into();
            let mut filter = AdmissionFilter {
                slots: &mut slots,
                ttls: &ttls,
                now: self.now,
                deletions: &self.deletions,
                suppression: &mut suppression,
                producer: &producer,
                producers: &self.producers,
                offset: self.producers.clock_offset(&producer),
                accepted,
                accepted_max: self.now.after(CLOCK_AHEAD_MICROS_MAX),
                is_copied: false,
            };
            let mut batch = empty(BatchId(0));
            let chunk = chunk(1, accepted.0, &[("u", 1, buyer_uid)]);
            let max = self.now.after(CLOCK_AHEAD_MICROS_MAX);
            batch.push_filtered(&producer, &chunk, max, &mut filter);
            let deleted = batch.deletions().first().map(|it| it.until);
            let stored = batch.cookies().next().map(|it| it.accepted);
            deleted.or(stored)
        }
    }

    const OFFSET: u64 = 10 * SECOND;

    /// The clock of a producer this time after the start, plus [`OFFSET`].
    fn clock(producer: &str, seconds: u64) -> u64 {
        let ahead = if producer == "ahead" { 40 } else { 0 };
        (ahead + seconds) * SECOND
    }

    #[test]
    fn deletion_covers_what_any_producer_accepted_before_it() {
        for (deleter, other) in [("behind", "ahead"), ("ahead", "behind")] {
            let node = Node::new();
            let before = node.receive(other, "b", 4).expect("no deletion");
            let until = node.receive(deleter, "", 5).expect("a deletion");
            assert!(before <= until, "stored before the deletion at {deleter}");
            assert_eq!(node.receive(other, "b", 4), None, "delayed");
            assert_eq!(node.receive(deleter, "b", 5), None);
            let fresh = [other, deleter].map(|producer| node.receive(producer, "b", 6));
            for stored in fresh {
                assert!(
                    stored > Some(until),
                    "accepted after the deletion: {stored:?}"
                );
            }
            // A restart keeps only the time of the deletion.
            let restarted = Node::new();
            let time = restarted.now.since(node.now);
            restarted.deletions.add(&Deletion {
                scope: Scope::Match(b"u"[..].into(), DspId(1)),
                until: until.after(time),
            });
            assert_eq!(restarted.receive(other, "b", 4), None);
            assert_eq!(restarted.receive(deleter, "b", 4), None);
            let later = [other, deleter].map(|producer| restarted.receive(producer, "b", 80));
            assert!(later.iter().all(Option::is_some), "{later:?}");
        }
    }

    #[test]
    fn deletion_covers_stored_cookies_of_a_producer_whose_clock_is_not_known_since_the_start() {
        let node = Node::new();
        let known = node.receive("behind", "", 5);
        let gone = Cursor {
            producer: "gone".into(),
            epoch: Epoch(1),
            sequence: Sequence(0),
            complete: false,
        };
        node.producers.load(vec![gone]);
        let until = node.receive("behind", "", 5);
        assert!(until > known);
        // The node was made moments after the start.
        assert!(until > Some(node.now.after(CLOCK_AHEAD_MICROS_MAX - SECOND)));
    }
}
