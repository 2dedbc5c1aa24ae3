//! Compares the losses that a consumer reports for ended runs of a producer (incarnations) with the cookies that its store lacks.
//!
//! - A report of an exact number, a maximum or no loss is correct: apart from earlier gaps, the store lacks no more
//!   cookies of that incarnation and of later incarnations that the consumer missed.
//! - A report has a number unless the producer's machine lost power, and with it the epoch history.
//! - If a store lacks cookies of an ended incarnation that its consumer must have known, the consumer has reported a loss.
//! - All reports are counted in the metrics. If the consumer was never killed and is settled, the metrics count nothing else.

use std::{collections::BTreeSet, ops::Range};

use anyhow::{Context as _, ensure};
use proto::units::Epoch;
use testkit::scrape::names;

use super::{Counters, MissingCookies, describe, incarnation_of};
use crate::{
    UNPOISONED,
    hosts::{IncarnationState, Process},
    load::{History, SyncRequest},
    loss_reports::{self, LossReport},
    store::Disk,
    world::World,
};

/// Checks the reports of one consumer.
pub(super) fn check(
    world: &World,
    consumer: &Process,
    counters: &Counters,
    history: &History,
    disk: &Disk,
    missing: &MissingCookies,
) -> anyhow::Result<()> {
    let reports = loss_reports::losses(&consumer.name);
    let ends: Vec<_> = reports.iter().filter_map(EndReport::of).collect();
    for (at, producer) in world.producers.iter().enumerate() {
        let lacking = missing.tails.iter().chain(&missing.gaps).copied();
        let lacking = lacking.filter(|sync| history.syncs[*sync].producer == at);
        let checker = Checker {
            consumer,
            producer,
            history,
            disk,
            lacking: lacking.collect(),
            received: &missing.received,
            gaps: counters.gap_losses(),
        };
        let of_producer = ends.iter().filter(|end| end.producer == producer.name);
        let checked = checker.check(&of_producer.collect::<Vec<_>>());
        checked.with_context(|| format!("{} of {}", consumer.name, producer.name))?;
    }
    check_counts(world, consumer, counters, disk, &ends)
}

/// A report about the end of an incarnation.
#[derive(Debug)]
struct EndReport<'a> {
    producer: &'a str,
    epoch: u64,
    /// The epoch that the consumer received next.
    next: u64,
    /// Exact or maximum number of lost cookies, if known.
    lost: Option<u64>,
    exact: bool,
    /// Whether the report also covers the incarnations up to `next`.
    covers_missed: bool,
    observed_from: u64,
    lost_in_gaps: u64,
}

impl<'a> EndReport<'a> {
    fn of(loss: &'a LossReport) -> Option<Self> {
        let is_of_one = loss.message.contains("nothing lost in `epoch`")
            || loss.message.contains("at the end of `epoch`") && !loss.is_tail_known;
        Some(Self {
            producer: &loss.producer,
            epoch: loss.epoch(),
            next: loss.number("new_epoch")?,
            lost: loss.cookies(),
            exact: loss.number("lost").is_some(),
            covers_missed: !is_of_one,
            observed_from: loss.number("observed_from")?,
            lost_in_gaps: loss.number("lost_in_gaps")?,
        })
    }
}

struct Checker<'a> {
    consumer: &'a Process,
    producer: &'a Process,
    history: &'a History,
    disk: &'a Disk,
    /// Numbers of the producer's syncs that the consumer's store lacks.
    lacking: Vec<usize>,
    /// Numbers of all syncs that the store received.
    received: &'a BTreeSet<usize>,
    /// Number of cookies that the consumer counts as lost in gaps.
    gaps: u64,
}

impl Checker<'_> {
    fn check(&self, ends: &[&EndReport<'_>]) -> anyhow::Result<()> {
        let mut covered = Vec::new();
        for end in ends {
            covered.push(self.incarnations(end));
            let checked = self.check_knowable(end).and_then(|()| self.check_true(end));
            checked.with_context(|| format!("{end:?}"))?;
        }
        let unreported = self.lacking.iter().copied().filter(|at| {
            let sync = &self.history.syncs[*at];
            let is_reported = covered
                .iter()
                .any(|incarnations| incarnations.contains(&sync.incarnation));
            !is_reported && self.is_over(sync.incarnation) && self.is_known(sync)
        });
        let unreported: Vec<_> = unreported.collect();
        ensure!(
            unreported.is_empty(),
            "a lost tail was not reported: {}",
            describe(self.history, &unreported)
        );
        Ok(())
    }

    /// The incarnation of a report, and later incarnations that the consumer missed.
    fn incarnations(&self, end: &EndReport<'_>) -> Range<usize> {
        incarnation_of(self.producer, Epoch(end.epoch))
            ..incarnation_of(self.producer, Epoch(end.next))
    }

    fn check_true(&self, end: &EndReport<'_>) -> anyhow::Result<()> {
        let Some(lost_max) = end.lost else {
            return Ok(());
        };
        let all = self.incarnations(end);
        let incarnations = if end.covers_missed {
            all
        } else {
            all.start..all.start + 1
        };
        let lacking = self.lacking.iter().copied();
        let lacking =
            lacking.filter(|at| incarnations.contains(&self.history.syncs[*at].incarnation));
        let lacking: Vec<_> = lacking.collect();
        ensure!(
            lacking.len() as u64 <= lost_max + self.in_gaps(end),
            "{} cookies of incarnations {incarnations:?} are missing: {}",
            lacking.len(),
            describe(self.history, &lacking)
        );
        Ok(())
    }

    /// Cookies that may be missing because of gaps. A process that observed the whole incarnation knows the number.
    fn in_gaps(&self, end: &EndReport<'_>) -> u64 {
        if end.observed_from <= 1 {
            end.lost_in_gaps
        } else {
            self.gaps
        }
    }

    fn check_knowable(&self, end: &EndReport<'_>) -> anyhow::Result<()> {
        // The goodbye confirms this, regardless of later events.
        if !end.covers_missed {
            return Ok(());
        }
        let incarnations = self.incarnations(end);
        let all = self.producer.incarnations.lock().expect(UNPOISONED);
        let lost_power = all[incarnations]
            .iter()
            .any(|incarnation| incarnation.state == IncarnationState::PowerLost);
        ensure!(
            end.lost.is_some() != lost_power,
            "the number must be unknown if and only if power was lost ({lost_power})"
        );
        Ok(())
    }

    fn is_over(&self, incarnation: usize) -> bool {
        incarnation < self.producer.incarnation()
    }

    /// Whether the consumer must have known the incarnation. Its store had a cursor of this or an earlier incarnation, or the consumer was
    /// never restarted and received a cookie of this incarnation.
    fn is_known(&self, sync: &SyncRequest) -> bool {
        let first = self.disk.first_epochs.get(self.producer.name.as_str());
        let had_cursor =
            first.is_some_and(|epoch| incarnation_of(self.producer, *epoch) <= sync.incarnation);
        had_cursor || self.consumer.incarnation() == 0 && self.received(sync)
    }

    /// Whether the consumer received a cookie of the incarnation of a sync.
    fn received(&self, sync: &SyncRequest) -> bool {
        self.received.iter().any(|&at| {
            let received = &self.history.syncs[at];
            received.answered_at.is_some()
                && (received.producer, received.incarnation) == (sync.producer, sync.incarnation)
        })
    }
}

/// Checks that reports and metrics agree.
fn check_counts(
    world: &World,
    consumer: &Process,
    counters: &Counters,
    disk: &Disk,
    ends: &[EndReport<'_>],
) -> anyhow::Result<()> {
    let (mut uncertain, mut bounded, mut exact) = (0, 0, 0);
    for end in ends {
        match end.lost {
            Some(cookies) if end.exact => exact += cookies,
            Some(cookies) => {
                uncertain += 1;
                bounded += cookies;
            }
            None => uncertain += 1,
        }
    }
    let count = |name| counters.sum(name, &[]);
    let counted = [
        count(names::UNCERTAIN_RESTARTS),
        count(names::UNCERTAIN_LOSS_COOKIES),
        counters.end_losses(),
    ];
    let reported = [uncertain, bounded, exact];
    // Uncommitted counts of a killed process are counted again by the next one. Recent counts and their cursors may not be durable yet.
    let mut both = counted.iter().zip(&reported);
    let is_settled = world.producers.iter().all(|producer| {
        let cursor = disk.cursors.get(producer.name.as_str());
        cursor.is_none_or(|cursor| incarnation_of(producer, cursor.epoch) == producer.incarnation())
    });
    let is_consistent = if consumer.incarnation() == 0 && is_settled {
        counted == reported
    } else {
        both.all(|(counted, reported)| counted >= reported)
    };
    ensure!(
        is_consistent,
        "{} counts {counted:?} but reported {ends:?}",
        consumer.name
    );
    Ok(())
}
