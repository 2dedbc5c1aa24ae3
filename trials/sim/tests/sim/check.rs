//! Checks after a run. Every store must contain the newest acknowledged value of each pair of user and DSP, unless a counted loss covers
//! it. A store must contain nothing else. The metrics of both programs must balance.
//!
//! The cookies that a store may lack depend on the incarnation of the producer (one run of its process) that acknowledged them:
//!
//! - If the incarnation still runs, or has sent the consumer its final message (goodbye), the store may lack only cookies that the
//!   consumer counts as lost, and none if queues are large enough.
//! - If the incarnation ended otherwise, the store may lack only cookies after the last one that the consumer received from it, and no
//!   more of them than the consumer reported (see [`ends`]).
//! - If cookies may have been queued for their limits when an incarnation crashed, the store may lack no more of their pairs than were
//!   queued or reported as lost.
//!
//! Order is checked only if it is certain. On one connection, requests are in the order of sending. Otherwise, a request is earlier if
//! its response arrived before the other request was sent, according to the clocks of their producers. For a delayed cookie, its
//! acceptance time replaces both times. A request without a response may have been accepted at any time, so a store may have its value.
//!
//! A store may lack a cookie that a [deletion](deletions) may cover. It may lack a deletion only under the conditions under which it may
//! lack a cookie.

pub(crate) mod deletions;
mod ends;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use prometheus::TextEncoder;
use proto::units::{Epoch, UnixMicros};
use testkit::{
    ledger,
    scrape::{Samples, names},
};

use self::deletions::{DeletionIndex, UNKNOWN_DIFFERENCE};
use crate::{
    UNPOISONED,
    hosts::{IncarnationState, Process},
    load::{AcceptanceWindow, History, Pair, SyncRequest},
    loss_reports,
    plan::{FaultClass, Limits, millis},
    store::{Disk, StoredValue},
    world::World,
};

/// Time by which a stored cookie is after an earlier deletion, if its own time is not.
const AFTER_DELETION_MICROS: u64 = 2_000;

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunSummary {
    pub(crate) sent: usize,
    pub(crate) answered: usize,
    /// Values missing in stores, from the tails of ended incarnations.
    pub(crate) tails: usize,
    /// Values missing in stores, counted as lost in gaps.
    pub(crate) gaps: usize,
    pub(crate) counted_gap_losses: u64,
}

/// Numbers of the syncs whose values a store lacks.
#[derive(Debug, Default)]
struct MissingCookies {
    /// Syncs that may be in the tail of an ended incarnation.
    tails: Vec<usize>,
    /// Syncs that are certainly before the tail.
    gaps: Vec<usize>,
    /// Pairs whose last value may have been queued when a producer crashed, by producer.
    queued: BTreeMap<usize, BTreeSet<Pair>>,
    /// Numbers of the syncs that the store received.
    received: BTreeSet<usize>,
}

/// Checks the contents of all stores.
pub(crate) fn stores(world: &World) -> anyhow::Result<()> {
    let history = world.history.lock().expect(UNPOISONED);
    ensure!(history.rejections.is_empty(), "{:?}", history.rejections);
    for (process, disk) in world.consumers.iter().zip(&world.disks) {
        let disk = disk.lock().expect(UNPOISONED);
        let checked = Checker::new(world, &history, &disk, process).missing();
        let missing = checked.with_context(|| process.name.clone())?;
        let counters = Counters::of(process);
        let lost = counters.gap_losses();
        if world.plan.queue_cookies.is_none() || world.plan.has_archive {
            let unarchived = unarchived(world);
            ensure!(
                lost <= unarchived,
                "{} counts {lost} as lost, of {unarchived} that only crashed producers had",
                process.name
            );
        }
        ensure!(
            missing.gaps.len() as u64 <= lost,
            "{} lacks {} cookies, but counts {lost} as lost: {}",
            process.name,
            missing.gaps.len(),
            describe(&history, &missing.gaps)
        );
        let deleted = deletions::nothing_is_back(&disk);
        deleted.with_context(|| process.name.clone())?;
        let survives = deletions::none_survives(world, &history, &disk);
        survives.with_context(|| process.name.clone())?;
        check_queued(world, process, &disk, &missing)?;
        ends::check(world, process, &counters, &history, &disk, &missing)?;
    }
    Ok(())
}

/// Number of cookies that crashed producers had in their logs, and not in the archive.
fn unarchived(world: &World) -> u64 {
    let of = |producer: &Arc<Process>| {
        let incarnations = producer.incarnations.lock().expect(UNPOISONED);
        incarnations.iter().map(|it| it.unarchived).sum::<u64>()
    };
    world.producers.iter().map(of).sum()
}

/// Checks that a store lacks no more pairs than were queued or reported as lost.
fn check_queued(
    world: &World,
    consumer: &Process,
    disk: &Disk,
    missing: &MissingCookies,
) -> anyhow::Result<()> {
    for (at, pairs) in &missing.queued {
        let producer = &world.producers[*at];
        let incarnations = producer.incarnations.lock().expect(UNPOISONED);
        let queued: u64 = incarnations
            .iter()
            .map(|incarnation| incarnation.queued)
            .sum();
        // A power loss also loses the epoch history, so the length of the tail is unknown.
        let has_history = incarnations
            .iter()
            .all(|incarnation| incarnation.state != IncarnationState::PowerLost);
        drop(incarnations);
        // A consumer reports nothing about incarnations before its first stored cursor.
        let first = disk.first_epochs.get(producer.name.as_str());
        let is_known = first.is_some_and(|epoch| incarnation_of(producer, *epoch) == 0);
        let lacking = pairs.len() as u64;
        // Losses in gaps and at the ends of incarnations: exact, bounded or unknown.
        let reports = loss_reports::losses(&consumer.name);
        let of_producer = reports.iter().filter(|loss| loss.producer == producer.name);
        let reported = of_producer.fold(0, |reported: u64, loss| {
            reported.saturating_add(loss.cookies().unwrap_or(u64::MAX))
        });
        ensure!(
            !has_history || !is_known || lacking <= reported.saturating_add(queued),
            "{} lacks {lacking} pairs of {}, but {queued} were queued and {reported} reported as lost: {pairs:?}",
            consumer.name,
            producer.name
        );
    }
    Ok(())
}

/// Checks the metrics of all processes, and that every consumer has received everything.
pub(crate) fn metrics(world: &World) -> anyhow::Result<RunSummary> {
    let pages = world.metrics.lock().expect(UNPOISONED);
    let samples = |process: &Process| -> anyhow::Result<Samples> {
        let page = pages
            .get(&process.name)
            .context("no metrics were scraped")?;
        Ok(Samples::parse(page))
    };
    for producer in &world.producers {
        let samples = samples(producer)?;
        let appended = samples.count(names::APPENDED, &[]);
        let pending = [
            names::DSP_LIMITS_QUEUED,
            names::DSP_LIMITS_OVERDUE,
            names::DSP_LIMITS_PARKED,
        ];
        let waiting: u64 = pending.map(|it| samples.count(it, &[])).iter().sum();
        ensure!(waiting == 0, "{waiting} wait at {}", producer.name);
        let deletion = samples.count(names::LAST_DELETION, &[]);
        for (at, (consumer, disk)) in world.consumers.iter().zip(&world.disks).enumerate() {
            let disk = disk.lock().expect(UNPOISONED);
            let cursor = disk.cursors.get(producer.name.as_str());
            let current = cursor
                .filter(|cursor| incarnation_of(producer, cursor.epoch) == producer.incarnation());
            let received = current.map_or(0, |cursor| cursor.sequence.0);
            let (from, to) = (&producer.name, &consumer.name);
            let applied = samples.count(names::APPLIED, &[("subscriber", to.as_str())]);
            // A follower reports its position only with `--node-reports`.
            ensure!(
                applied >= deletion || world.plan.follower == Some(at),
                "{to} has confirmed {applied} of {from}, not the deletion {deletion}"
            );
            ensure!(
                received == appended,
                "{to} has received {received} of {appended} cookies of {from}"
            );
        }
    }
    for process in world.producers.iter().chain(&world.consumers) {
        ledger::check(&samples(process)?).with_context(|| process.name.clone())?;
    }
    for consumer in &world.consumers {
        let samples = samples(consumer)?;
        let count = |name| samples.count(name, &[]);
        let state = [
            count(names::STORE_UP),
            count(names::DELETION_JOBS),
            count(names::RETRY_QUEUE_COOKIES),
        ];
        ensure!(
            state == [1, 0, 0],
            "{}: store, deletion jobs and retry queue are {state:?}",
            consumer.name
        );
    }
    summarize(world)
}

fn summarize(world: &World) -> anyhow::Result<RunSummary> {
    let history = world.history.lock().expect(UNPOISONED);
    let answered = history.syncs.iter().filter(|s| s.answered_at.is_some());
    let mut summary = RunSummary {
        sent: history.syncs.len(),
        answered: answered.count(),
        ..RunSummary::default()
    };
    for (process, disk) in world.consumers.iter().zip(&world.disks) {
        let disk = disk.lock().expect(UNPOISONED);
        let missing = Checker::new(world, &history, &disk, process).missing()?;
        summary.tails += missing.tails.len();
        summary.gaps += missing.gaps.len();
        summary.counted_gap_losses += Counters::of(process).gap_losses();
    }
    Ok(summary)
}

struct Checker<'a> {
    world: &'a World,
    history: &'a History,
    disk: &'a Disk,
    /// Tolerance in comparisons of times.
    margin: Duration,
    /// Whether the consumer was restarted.
    was_restarted: bool,
    /// Whether it only reads the archive.
    is_follower: bool,
}

impl<'a> Checker<'a> {
    fn new(world: &'a World, history: &'a History, disk: &'a Disk, consumer: &Process) -> Self {
        let margin = 2 * world.plan.tick + 4 * world.plan.chunk_age + millis(20);
        Self {
            world,
            history,
            disk,
            margin,
            was_restarted: consumer.incarnation() > 0,
            is_follower: (world.plan.follower)
                .is_some_and(|at| world.consumers[at].name == consumer.name),
        }
    }

    fn missing(&self) -> anyhow::Result<MissingCookies> {
        let (disk, syncs) = (self.disk, &self.history.syncs);
        let violations = &disk.record.violations;
        ensure!(violations.is_empty(), "{violations:?}");
        let repeats = self.repeats();
        for (pair, value) in &disk.durable {
            let members = self.members(&repeats, value);
            let is_valid = members.iter().any(|at| syncs[*at].pair == *pair);
            let number = usize::try_from(value.number).unwrap_or(usize::MAX);
            let first = syncs.get(number);
            ensure!(
                is_valid,
                "{pair:?} has {value:?}, which belongs to {first:?}"
            );
        }
        let mut pairs: BTreeMap<Pair, Vec<usize>> = BTreeMap::new();
        for (at, sync) in syncs.iter().enumerate() {
            if sync.answered_at.is_some() && !sync.is_deletion {
                pairs.entry(sync.pair).or_default().push(at);
            }
        }
        let received = disk.record.received.iter();
        let received = received.flat_map(|value| self.members(&repeats, value));
        let mut missing = MissingCookies {
            received: received.collect(),
            ..MissingCookies::default()
        };
        let last_received = self.last_received(&missing.received);
        let deletions = DeletionIndex::new(self.history, |it| self.window(it), self.was_restarted);
        let floor = deletions::floor(disk, self.world.plan.floods);
        for (pair, numbers) in pairs {
            let stored = disk.durable.get(&pair);
            for &at in &numbers {
                if stored.is_some_and(|stored| !self.is_certainly_later(at, stored)) {
                    continue;
                }
                let window = self.window(&syncs[at]);
                if deletions.may_cover(&syncs[at], window)
                    || window.earliest <= floor.max(self.start(&syncs[at]))
                {
                    continue;
                }
                if syncs[at].value != at {
                    let earlier = repeats[&syncs[at].value].iter().filter(|it| **it < at);
                    let earlier = earlier.map(|it| (&syncs[*it], self.window(&syncs[*it])));
                    let earlier: Vec<_> = earlier.collect();
                    if !deletions.is_stored_again(disk, &syncs[at], &earlier) {
                        continue;
                    }
                }
                if self.may_have_been_queued(&syncs[at]) {
                    let queued = missing.queued.entry(syncs[at].producer);
                    queued.or_default().insert(pair);
                    continue;
                }
                // A received value was superseded in its batch, or lost with uncommitted writes.
                let was_received = numbers
                    .iter()
                    .any(|other| *other >= at && missing.received.contains(other));
                // A queued cookie may have been appended at any later time, or superseded in the queue.
                let is_limited = self.is_under_limits(&syncs[at]);
                let log = |sync: &SyncRequest| (sync.producer, sync.incarnation);
                let supersedes = |other: &usize| {
                    let later = &syncs[*other];
                    *other > at && log(later) == log(&syncs[at]) && self.is_under_limits(later)
                };
                if is_limited && numbers.iter().any(supersedes) {
                    continue;
                }
                let is_tail = was_received || is_limited;
                self.add_missing(&mut missing, at, is_tail, &last_received)?;
            }
        }
        for (at, deletion) in syncs.iter().enumerate() {
            let until = |known: &BTreeMap<Pair, UnixMicros>| known.get(&deletion.pair).copied();
            let window = self.window(deletion);
            let has = |known| until(known).is_some_and(|until| until.0 >= window.earliest);
            let is_answered = deletion.is_deletion && deletion.answered_at.is_some();
            if is_answered && !has(&disk.record.durable_deletions) {
                let was_received = has(&disk.record.deletions);
                self.add_missing(&mut missing, at, was_received, &last_received)?;
            }
        }
        Ok(missing)
    }

    /// Adds a sync or a deletion that the store lacks.
    fn add_missing(
        &self,
        missing: &mut MissingCookies,
        at: usize,
        is_tail: bool,
        last_received: &BTreeSet<usize>,
    ) -> anyhow::Result<()> {
        let is_tail = is_tail || !last_received.iter().any(|&last| self.follows(last, at));
        if is_tail && self.may_lack_tail(&self.history.syncs[at])? {
            missing.tails.push(at);
        } else {
            missing.gaps.push(at);
        }
        Ok(())
    }

    /// Acceptance time up to which a follower may lack a sync, because it began at the end of the archive and does not know earlier
    /// deletions. It does not know when exactly a delayed cookie was accepted by its own clock.
    fn start(&self, sync: &SyncRequest) -> u64 {
        let floor = self.disk.floor.0;
        let difference = if sync.released_at.is_some() || self.is_under_limits(sync) {
            UNKNOWN_DIFFERENCE
        } else {
            let difference = self.history.clocks_ahead.iter().max();
            difference.copied().unwrap_or_default()
        };
        let difference = u64::try_from(difference.as_micros()).expect("minutes");
        if self.is_follower && floor > 0 {
            floor + difference
        } else {
            0
        }
    }

    /// The syncs of each buyer uid that occurs more than once.
    fn repeats(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut repeats: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, sync) in self.history.syncs.iter().enumerate() {
            if sync.value != at {
                let first = sync.value;
                repeats.entry(first).or_insert(vec![first]).push(at);
            }
        }
        repeats
    }

    /// The syncs that a received value may come from: syncs with its buyer uid that may have been accepted at its time.
    fn members(&self, repeats: &BTreeMap<usize, Vec<usize>>, value: &StoredValue) -> Vec<usize> {
        let first = usize::try_from(value.number).unwrap_or(usize::MAX);
        let first = [first];
        let members = repeats.get(&first[0]).map_or(&first[..], |all| &all[..]);
        let at = value.accepted;
        // A node stores cookies that it admits after a deletion with a time after that of the deletion.
        let is_raised = at.0.checked_sub(AFTER_DELETION_MICROS);
        let is_raised =
            is_raised.is_some_and(|it| self.disk.record.times.contains(&UnixMicros(it)));
        let is_possible = |number: &&usize| {
            let sync = self.history.syncs.get(**number);
            sync.is_some_and(|sync| {
                let window = self.window(sync);
                let latest = if is_raised { u64::MAX } else { window.latest };
                !sync.is_deletion && (window.earliest..=latest).contains(&at.0)
            })
        };
        members.iter().filter(is_possible).copied().collect()
    }

    /// Acceptance time of a sync or a deletion. A sync has the time of its chunk, which may have begun earlier.
    fn window(&self, sync: &SyncRequest) -> AcceptanceWindow {
        let clock_ahead = self.world.producers[sync.producer].clock_ahead;
        let mut window = sync.acceptance(clock_ahead);
        if !sync.is_deletion {
            let margin = u64::try_from(self.margin.as_micros()).expect("milliseconds");
            window.earliest = window.earliest.saturating_sub(margin);
        }
        window
    }

    /// The last sync of each connection that the store received.
    fn last_received(&self, received: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut last = BTreeMap::new();
        for &at in received {
            last.insert(self.history.syncs[at].connection, at);
        }
        last.into_values().collect()
    }

    /// Whether the last cookies of the sync's incarnation may be missing, because of how it ended.
    fn may_lack_tail(&self, sync: &SyncRequest) -> anyhow::Result<bool> {
        let producer = &self.world.producers[sync.producer];
        let incarnations = producer.incarnations.lock().expect(UNPOISONED);
        let Some(incarnation) = incarnations.get(sync.incarnation) else {
            bail!("unknown incarnation: {sync:?}");
        };
        let ended = incarnation.state != IncarnationState::Running;
        drop(incarnations);
        let mut completed = self.disk.completed.iter();
        let is_complete = completed.any(|(id, epoch)| {
            **id == producer.name && incarnation_of(producer, *epoch) == sync.incarnation
        });
        Ok(ended && !is_complete && self.world.plan.fault_class == FaultClass::All)
    }

    /// Whether the sync may have been appended later than it was accepted.
    fn is_under_limits(&self, sync: &SyncRequest) -> bool {
        let has_limits = self.world.plan.limits.is_some() && !sync.is_deletion;
        has_limits && Limits::may_delay(sync.pair.dsp) && sync.released_at.is_none()
    }

    /// Whether the sync may have been in a queue that was lost in a crash.
    fn may_have_been_queued(&self, sync: &SyncRequest) -> bool {
        if !self.is_under_limits(sync) {
            return false;
        }
        let incarnations = self.world.producers[sync.producer].incarnations.lock();
        let incarnations = incarnations.expect(UNPOISONED);
        let mut since = incarnations.iter().skip(sync.incarnation);
        since.any(|incarnation| {
            matches!(
                incarnation.state,
                IncarnationState::Crashed | IncarnationState::PowerLost
            )
        })
    }

    /// Whether a sync was certainly accepted after a stored value with another buyer uid.
    fn is_certainly_later(&self, at: usize, stored: &StoredValue) -> bool {
        let sync = &self.history.syncs[at];
        let number = usize::try_from(stored.number).unwrap_or(usize::MAX);
        if sync.value == number {
            return false;
        }
        let before = self.history.syncs.get(number);
        if before.is_some_and(|before| before.connection == sync.connection) {
            at > number
        } else {
            self.window(sync).earliest > stored.accepted.0
        }
    }

    /// Whether `later` was certainly appended to the same log after `at`.
    fn follows(&self, later: usize, at: usize) -> bool {
        let (index, later) = (later, &self.history.syncs[later]);
        let earlier = &self.history.syncs[at];
        let log = |sync: &SyncRequest| (sync.producer, sync.incarnation);
        if log(later) != log(earlier) {
            return false;
        }
        if later.connection == earlier.connection {
            return index > at;
        }
        let ((from, _), (_, until)) = (later.append_time(), earlier.append_time());
        until.is_some_and(|until| from > until + self.margin)
    }
}

/// Maximum difference between an epoch and the start of its incarnation, in microseconds.
const EPOCH_TOLERANCE: u64 = 1 << 16;

/// The incarnation of a producer with this epoch.
fn incarnation_of(producer: &Process, epoch: Epoch) -> usize {
    let incarnations = producer.incarnations.lock().expect(UNPOISONED);
    // An epoch is its start time, except for the lowest bits.
    let index = incarnations
        .iter()
        .rposition(|incarnation| incarnation.began <= epoch.0 + EPOCH_TOLERANCE);
    index.unwrap_or_default()
}

/// The counters of a consumer, summed over all its incarnations.
struct Counters(Vec<Samples>);

impl Counters {
    fn of(consumer: &Process) -> Self {
        let incarnations = consumer.incarnations.lock().expect(UNPOISONED);
        let samples = incarnations.iter().map(|incarnation| {
            let text = TextEncoder::new().encode_to_string(&incarnation.registry.gather());
            Samples::parse(&text.unwrap_or_default())
        });
        Self(samples.collect())
    }

    fn sum(&self, name: impl AsRef<str> + Copy, labels: &[(&str, &str)]) -> u64 {
        let counts = self.0.iter().map(|samples| samples.count(name, labels));
        counts.sum()
    }

    /// Cookies lost in gaps.
    fn gap_losses(&self) -> u64 {
        self.sum(names::LOST, &[]) - self.end_losses()
    }

    /// Cookies lost at the ends of incarnations, if exactly known.
    fn end_losses(&self) -> u64 {
        self.sum(names::LOST, &[("reason", "producer_ended")])
    }
}

fn describe(history: &History, numbers: &[usize]) -> String {
    let some = numbers.iter().take(5);
    let some: Vec<_> = some
        .map(|at| format!("b{at}: {:?}", history.syncs[*at]))
        .collect();
    some.join("; ")
}
