//! What must hold in the end: what an edge acknowledged is in every store with its newest value, unless a counted
//! loss covers it; nothing else is there; and the counts of both sides add up.
//!
//! What may be missing, by the incarnation of the producer that acknowledged it:
//!
//! - an incarnation that goes on, or one whose goodbye a store has: only what that consumer counted as lost, and nothing where
//!   queues are large enough;
//! - an incarnation that ended otherwise: its tail alone, after everything that the consumer received of it, and no more than the
//!   consumer said (see [`ends`]);
//! - what waited for its limits when an incarnation of its producer ended without a word: no more pairs than waited, but for the tail.
//!
//! "Newest" is checked where it is certain: on one connection by order, otherwise when the one was answered before
//! the other was sent; one that came into the log late counts as sent and answered when it was accepted. A request without an answer may have been accepted at any time, so its value is right wherever
//! it is found.

mod ends;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use launcher::{
    ledger,
    scrape::{Samples, names},
};
use metric_defs::equations;
use prometheus::TextEncoder;

use crate::{
    UNPOISONED,
    hosts::{End, Seat},
    load::{History, Pair, SyncRequest},
    loss_reports,
    plan::{Kind, Limits, millis},
    store::Disk,
    world::World,
};

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) sent: usize,
    pub(crate) answered: usize,
    /// Values that all stores lack, lost with an incarnation of a producer.
    pub(crate) tails: usize,
    /// Values that all stores lack, counted as lost.
    pub(crate) holes: usize,
    pub(crate) counted_lost: u64,
}

/// What one consumer lacks.
#[derive(Debug, Default)]
struct Missing {
    /// Lost with an incarnation of a producer, by producer.
    tails: Vec<usize>,
    /// Lost in the midst of one.
    holes: Vec<usize>,
    /// Pairs whose last value may have waited when a producer crashed, by producer.
    held: BTreeMap<usize, BTreeSet<Pair>>,
}

/// Judges all stores.
pub(crate) fn stores(world: &World) -> anyhow::Result<()> {
    let history = world.history.lock().expect(UNPOISONED);
    ensure!(history.refused.is_empty(), "{:?}", history.refused);
    for (seat, disk) in world.consumers.iter().zip(&world.disks) {
        let disk = disk.lock().expect(UNPOISONED);
        let checked = Checker::new(world, &history, &disk).missing();
        let missing = checked.with_context(|| seat.name.clone())?;
        let lost = counted_lost(seat);
        if world.plan.queue_cookies.is_none() {
            ensure!(lost == 0, "{} counts {lost} lost", seat.name);
        }
        ensure!(
            missing.holes.len() as u64 <= lost,
            "{} lacks {} and counts {lost} lost: {}",
            seat.name,
            missing.holes.len(),
            describe(&history, &missing.holes)
        );
        held(world, seat, &disk, &missing)?;
        ends::check(world, seat, &history, &disk, &missing)?;
    }
    Ok(())
}

/// Judges what a store lacks that may have waited for its limits.
fn held(world: &World, consumer: &Seat, disk: &Disk, missing: &Missing) -> anyhow::Result<()> {
    for (at, pairs) in &missing.held {
        let producer = &world.producers[*at];
        let incarnations = producer.incarnations.lock().expect(UNPOISONED);
        let waited: u64 = incarnations
            .iter()
            .map(|incarnation| incarnation.held)
            .sum();
        // With the machine goes the record of how long the tail was.
        let is_on_record = incarnations
            .iter()
            .all(|incarnation| incarnation.end != End::LostPower);
        drop(incarnations);
        // Of an incarnation that it never knew of a consumer tells nothing.
        let first = disk.first_epochs.get(producer.name.as_str());
        let is_known = first.is_some_and(|epoch| incarnation_of(producer, *epoch) == 0);
        let lacking = pairs.len() as u64;
        // In gaps, and with the ends of incarnations: at most, or exactly, or nobody knows.
        let said = loss_reports::losses(&consumer.name);
        let of_it = said.iter().filter(|loss| loss.producer == producer.name);
        let told = of_it.fold(0, |told: u64, loss| {
            told.saturating_add(loss.cookies().unwrap_or(u64::MAX))
        });
        ensure!(
            !is_on_record || !is_known || lacking <= told.saturating_add(waited),
            "{} lacks {lacking} pairs of {}, where {waited} waited and it tells of {told} lost: {pairs:?}",
            consumer.name,
            producer.name
        );
    }
    Ok(())
}

/// Judges what the processes say of themselves.
pub(crate) fn figures(world: &World) -> anyhow::Result<Figures> {
    let pages = world.metrics.lock().expect(UNPOISONED);
    let samples = |seat: &Seat| -> anyhow::Result<Samples> {
        let page = pages.get(&seat.name).context("no metrics")?;
        Ok(Samples::parse(page))
    };
    for producer in &world.producers {
        let samples = samples(producer)?;
        let appended = samples.count(names::APPENDED, &[]);
        let pending = equations::SHAPING.pending.iter();
        let waiting: u64 = pending.map(|term| samples.count(term.count, &[])).sum();
        ensure!(waiting == 0, "{waiting} wait at {}", producer.name);
        for (consumer, disk) in world.consumers.iter().zip(&world.disks) {
            let disk = disk.lock().expect(UNPOISONED);
            let cursor = disk.cursors.get(producer.name.as_str());
            let stands = cursor
                .filter(|cursor| incarnation_of(producer, cursor.epoch) == producer.incarnation());
            let stands = stands.map_or(0, |cursor| cursor.sequence);
            let (from, to) = (&producer.name, &consumer.name);
            ensure!(
                stands == appended,
                "{to} stands at {stands} of {appended} from {from}"
            );
        }
    }
    for seat in world.producers.iter().chain(&world.consumers) {
        ledger::check(&samples(seat)?).with_context(|| seat.name.clone())?;
    }
    for consumer in &world.consumers {
        let up = samples(consumer)?.count(names::STORE_UP, &[]);
        ensure!(up == 1, "{} says that its store is down", consumer.name);
    }
    sums(world)
}

fn sums(world: &World) -> anyhow::Result<Figures> {
    let history = world.history.lock().expect(UNPOISONED);
    let answered = history.syncs.iter().filter(|s| s.answered_at.is_some());
    let mut figures = Figures {
        sent: history.syncs.len(),
        answered: answered.count(),
        ..Figures::default()
    };
    for (seat, disk) in world.consumers.iter().zip(&world.disks) {
        let missing = Checker::new(world, &history, &disk.lock().expect(UNPOISONED)).missing()?;
        figures.tails += missing.tails.len();
        figures.holes += missing.holes.len();
        figures.counted_lost += counted_lost(seat);
    }
    Ok(figures)
}

struct Checker<'a> {
    world: &'a World,
    history: &'a History,
    disk: &'a Disk,
    /// How far apart two clocks may be when a time is compared with a chunk's.
    margin: Duration,
}

impl<'a> Checker<'a> {
    fn new(world: &'a World, history: &'a History, disk: &'a Disk) -> Self {
        let margin = 2 * world.plan.tick + 4 * world.plan.chunk_age + millis(20);
        Self {
            world,
            history,
            disk,
            margin,
        }
    }

    fn missing(&self) -> anyhow::Result<Missing> {
        let (disk, syncs) = (self.disk, &self.history.syncs);
        ensure!(disk.foreign.is_empty(), "nobody sent {:?}", disk.foreign);
        for (pair, value) in &disk.durable {
            let sync = usize::try_from(value.number)
                .ok()
                .and_then(|at| syncs.get(at));
            let is_right = sync.is_some_and(|sync| sync.pair == *pair);
            ensure!(is_right, "{pair:?} has {value:?}, which is {sync:?}");
        }
        let mut pairs: BTreeMap<Pair, Vec<usize>> = BTreeMap::new();
        for (at, sync) in syncs.iter().enumerate() {
            if sync.answered_at.is_some() {
                pairs.entry(sync.pair).or_default().push(at);
            }
        }
        let last_seen = self.last_seen();
        let mut missing = Missing::default();
        for (pair, numbers) in pairs {
            let stored = disk.durable.get(&pair);
            let stored = stored.and_then(|value| usize::try_from(value.number).ok());
            for &at in &numbers {
                if stored.is_some_and(|stored| !self.is_surely_after(at, stored)) {
                    continue;
                }
                if self.may_have_waited(&syncs[at]) {
                    let held = missing.held.entry(syncs[at].producer);
                    held.or_default().insert(pair);
                    continue;
                }
                // What was received once lost against a newer one in its batch, or with the store's memory.
                let was_received = numbers
                    .iter()
                    .any(|other| *other >= at && disk.seen.contains(&(*other as u64)));
                // What waited may have come into the log behind anything, or have given its place to a later one.
                let is_late = self.is_under_limits(&syncs[at]);
                let log = |sync: &SyncRequest| (sync.producer, sync.incarnation);
                let gave_place = |other: &usize| {
                    let later = &syncs[*other];
                    *other > at && log(later) == log(&syncs[at]) && self.is_under_limits(later)
                };
                if is_late && numbers.iter().any(gave_place) {
                    continue;
                }
                let is_tail = was_received
                    || is_late
                    || !last_seen.iter().any(|&seen| self.follows(seen, at));
                if is_tail && self.may_lack_tail(&syncs[at])? {
                    missing.tails.push(at);
                } else {
                    missing.holes.push(at);
                }
            }
        }
        Ok(missing)
    }

    /// Of every connection, the last that the store ever got.
    fn last_seen(&self) -> BTreeSet<usize> {
        let mut last = BTreeMap::new();
        for &number in &self.disk.seen {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            if let Some(sync) = self.history.syncs.get(at) {
                last.insert(sync.connection, at);
            }
        }
        last.into_values().collect()
    }

    /// Whether an incarnation ended such that its last cookies may be missing.
    fn may_lack_tail(&self, sync: &SyncRequest) -> anyhow::Result<bool> {
        let producer = &self.world.producers[sync.producer];
        let incarnations = producer.incarnations.lock().expect(UNPOISONED);
        let Some(incarnation) = incarnations.get(sync.incarnation) else {
            bail!("answered by an incarnation that never was: {sync:?}");
        };
        let ended = incarnation.end != End::NotYet;
        drop(incarnations);
        let mut completed = self.disk.completed.iter();
        let is_complete = completed.any(|(id, epoch)| {
            **id == producer.name && incarnation_of(producer, *epoch) == sync.incarnation
        });
        Ok(ended && !is_complete && self.world.plan.kind == Kind::Everything)
    }

    /// Whether it may have come into the log later than it was accepted.
    fn is_under_limits(&self, sync: &SyncRequest) -> bool {
        let has_limits = self.world.plan.limits.is_some();
        has_limits && Limits::may_hold(sync.pair.dsp) && sync.released_at.is_none()
    }

    /// Whether an incarnation ended, after this was accepted, such that what waited for its limits is missing.
    fn may_have_waited(&self, sync: &SyncRequest) -> bool {
        if !self.is_under_limits(sync) {
            return false;
        }
        let incarnations = self.world.producers[sync.producer].incarnations.lock();
        let mut since = incarnations
            .expect(UNPOISONED)
            .clone()
            .into_iter()
            .skip(sync.incarnation);
        since.any(|incarnation| matches!(incarnation.end, End::Crashed | End::LostPower))
    }

    fn is_surely_after(&self, at: usize, before: usize) -> bool {
        let (after, earlier) = (&self.history.syncs[at], &self.history.syncs[before]);
        let Some(answered_at) = earlier.answered_at else {
            return false;
        };
        if after.connection == earlier.connection {
            at > before
        } else {
            after.sent_at > answered_at + self.margin
        }
    }

    /// Whether `seen` came into the same log after `at`.
    fn follows(&self, seen: usize, at: usize) -> bool {
        let (later, earlier) = (&self.history.syncs[seen], &self.history.syncs[at]);
        let log = |sync: &SyncRequest| (sync.producer, sync.incarnation);
        if log(later) != log(earlier) {
            return false;
        }
        if later.connection == earlier.connection {
            return seen > at;
        }
        let ((from, _), (_, until)) = (later.logged(), earlier.logged());
        until.is_some_and(|until| from > until + self.margin)
    }
}

/// How far an epoch may be from the time at which its incarnation began, in microseconds.
const EPOCH_ABOUT: u64 = 1 << 16;

/// Which incarnation of a producer has this epoch.
fn incarnation_of(producer: &Seat, epoch: u64) -> usize {
    let incarnations = producer.incarnations.lock().expect(UNPOISONED);
    // An epoch is the time of its beginning but for the lowest bits.
    let begun = incarnations
        .iter()
        .rposition(|incarnation| incarnation.began <= epoch + EPOCH_ABOUT);
    begun.unwrap_or_default()
}

/// Cookies of incarnations that went on.
fn counted_lost(consumer: &Seat) -> u64 {
    of_all_incarnations(consumer, names::LOST, &[]) - counted_ends(consumer)
}

/// Cookies known to have been lost with the ends of incarnations.
fn counted_ends(consumer: &Seat) -> u64 {
    of_all_incarnations(consumer, names::LOST, &[("reason", "producer_ended")])
}

/// The sum of a consumer's counter over all its incarnations.
fn of_all_incarnations(
    consumer: &Seat,
    name: impl AsRef<str> + Copy,
    labels: &[(&str, &str)],
) -> u64 {
    let incarnations = consumer.incarnations.lock().expect(UNPOISONED);
    let counts = incarnations.iter().map(|incarnation| {
        let text = TextEncoder::new().encode_to_string(&incarnation.registry.gather());
        Samples::parse(&text.unwrap_or_default()).count(name, labels)
    });
    counts.sum()
}

fn describe(history: &History, numbers: &[usize]) -> String {
    let some = numbers.iter().take(5);
    let some: Vec<_> = some
        .map(|at| format!("b{at}: {:?}", history.syncs[*at]))
        .collect();
    some.join("; ")
}
