//! What a consumer says of the ends of incarnations, held against what its store lacks of them.
//!
//! - At most so many are lost, or exactly: the store lacks no more of that incarnation, and of incarnations since then that the consumer
//!   did not see, but for what was lost in gaps before. None are: it lacks nothing of them.
//! - Nothing is on record that nobody can know: when a producer's machine lost power, its record is gone and there is no
//!   bound. When only its process ended, there is one.
//! - Where something is lacking, something is on record, of a consumer that can have known of the incarnation.
//! - What is on record was counted; by a consumer that was never killed and is at rest, nothing else was.

use std::ops::Range;

use anyhow::{Context as _, ensure};
use launcher::scrape::names;

use super::{Missing, counted_ends, counted_lost, describe, incarnation_of, of_all_incarnations};
use crate::{
    UNPOISONED,
    hosts::{End, Seat},
    load::{History, SyncRequest},
    loss_reports::{self, Loss},
    store::Disk,
    world::World,
};

/// Judges a consumer.
pub(super) fn check(
    world: &World,
    consumer: &Seat,
    history: &History,
    disk: &Disk,
    missing: &Missing,
) -> anyhow::Result<()> {
    let said = loss_reports::losses(&consumer.name);
    let ends: Vec<_> = said.iter().filter_map(Ending::of).collect();
    for (at, producer) in world.producers.iter().enumerate() {
        let lacking = missing.tails.iter().chain(&missing.holes).copied();
        let lacking = lacking.filter(|sync| history.syncs[*sync].producer == at);
        let checker = Checker {
            consumer,
            producer,
            history,
            disk,
            lacking: lacking.collect(),
            gaps: counted_lost(consumer),
        };
        let of_it = ends.iter().filter(|end| end.producer == producer.name);
        let checked = checker.check(&of_it.collect::<Vec<_>>());
        checked.with_context(|| format!("{} of {}", consumer.name, producer.name))?;
    }
    counts(world, consumer, disk, &ends)
}

/// A record of the end of an incarnation.
#[derive(Debug)]
struct Ending<'a> {
    producer: &'a str,
    epoch: u64,
    /// The incarnation that told of it.
    next: u64,
    /// How many are lost, of that incarnation and of those in between if it is the whole.
    lost: Option<u64>,
    exact: bool,
    whole: bool,
    observed_from: u64,
    lost_in_gaps: u64,
}

impl<'a> Ending<'a> {
    fn of(loss: &'a Loss) -> Option<Self> {
        let is_of_one = loss.message.contains("nothing of that epoch lost")
            || loss.message.contains("nothing lost at its end") && !loss.is_tail_known;
        Some(Self {
            producer: &loss.producer,
            epoch: loss.epoch(),
            next: loss.number("new_epoch")?,
            lost: loss.cookies(),
            exact: loss.number("lost").is_some(),
            whole: !is_of_one,
            observed_from: loss.number("observed_from")?,
            lost_in_gaps: loss.number("lost_in_gaps")?,
        })
    }
}

struct Checker<'a> {
    consumer: &'a Seat,
    producer: &'a Seat,
    history: &'a History,
    disk: &'a Disk,
    /// What the consumer's store lacks of the producer's cookies, by number.
    lacking: Vec<usize>,
    /// How many the consumer counts as lost in gaps.
    gaps: u64,
}

impl Checker<'_> {
    fn check(&self, ends: &[&Ending<'_>]) -> anyhow::Result<()> {
        let mut covered = Vec::new();
        for end in ends {
            covered.push(self.incarnations(end));
            let checked = self.is_knowable(end).and_then(|()| self.is_true(end));
            checked.with_context(|| format!("{end:?}"))?;
        }
        let unsaid = self.lacking.iter().copied().filter(|at| {
            let sync = &self.history.syncs[*at];
            let is_said = covered
                .iter()
                .any(|incarnations| incarnations.contains(&sync.incarnation));
            !is_said && self.is_over(sync.incarnation) && self.is_known(sync)
        });
        let unsaid: Vec<_> = unsaid.collect();
        ensure!(
            unsaid.is_empty(),
            "nothing is on record of a lost tail: {}",
            describe(self.history, &unsaid)
        );
        Ok(())
    }

    /// The incarnation that a record is of, and those after it of which the consumer saw nothing.
    fn incarnations(&self, end: &Ending<'_>) -> Range<usize> {
        incarnation_of(self.producer, end.epoch)..incarnation_of(self.producer, end.next)
    }

    fn is_true(&self, end: &Ending<'_>) -> anyhow::Result<()> {
        let Some(most) = end.lost else {
            return Ok(());
        };
        let all = self.incarnations(end);
        let incarnations = if end.whole {
            all
        } else {
            all.start..all.start + 1
        };
        let lacking = self.lacking.iter().copied();
        let lacking =
            lacking.filter(|at| incarnations.contains(&self.history.syncs[*at].incarnation));
        let lacking: Vec<_> = lacking.collect();
        ensure!(
            lacking.len() as u64 <= most + self.in_gaps(end),
            "{} are lacking of incarnations {incarnations:?}: {}",
            lacking.len(),
            describe(self.history, &lacking)
        );
        Ok(())
    }

    /// What may be lacking by gaps: a process that saw all of the incarnation knows how much.
    fn in_gaps(&self, end: &Ending<'_>) -> u64 {
        if end.observed_from <= 1 {
            end.lost_in_gaps
        } else {
            self.gaps
        }
    }

    fn is_knowable(&self, end: &Ending<'_>) -> anyhow::Result<()> {
        // A goodbye tells it, whatever came then.
        if !end.whole {
            return Ok(());
        }
        let incarnations = self.incarnations(end);
        let all = self.producer.incarnations.lock().expect(UNPOISONED);
        let lost_power = all[incarnations]
            .iter()
            .any(|incarnation| incarnation.end == End::LostPower);
        ensure!(
            end.lost.is_some() != lost_power,
            "a machine lost power meanwhile: {lost_power}"
        );
        Ok(())
    }

    fn is_over(&self, incarnation: usize) -> bool {
        incarnation < self.producer.incarnation()
    }

    /// Whether the consumer must have known that there was this incarnation: its store stood there or before, or it has never been restarted
    /// and got something of it.
    fn is_known(&self, sync: &SyncRequest) -> bool {
        let first = self.disk.first_epochs.get(self.producer.name.as_str());
        let stood =
            first.is_some_and(|epoch| incarnation_of(self.producer, *epoch) <= sync.incarnation);
        stood || self.consumer.incarnation() == 0 && self.received(sync)
    }

    /// Whether the consumer received anything of the incarnation that a sync went to.
    fn received(&self, sync: &SyncRequest) -> bool {
        self.disk.seen.iter().any(|&number| {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            let seen = self.history.syncs.get(at);
            seen.is_some_and(|seen| {
                seen.answered_at.is_some()
                    && (seen.producer, seen.incarnation) == (sync.producer, sync.incarnation)
            })
        })
    }
}

fn counts(world: &World, consumer: &Seat, disk: &Disk, ends: &[Ending<'_>]) -> anyhow::Result<()> {
    let (mut tails, mut at_most, mut exactly) = (0, 0, 0);
    for end in ends {
        match end.lost {
            Some(cookies) if end.exact => exactly += cookies,
            Some(cookies) => {
                tails += 1;
                at_most += cookies;
            }
            None => tails += 1,
        }
    }
    let count = |name| of_all_incarnations(consumer, name, &[]);
    let counted = [
        count(names::UNCERTAIN_RESTARTS),
        count(names::UNCERTAIN_LOSS_COOKIES),
        counted_ends(consumer),
    ];
    let recorded = [tails, at_most, exactly];
    // What a process had counted and not committed, the next one counts again; and what was counted a moment ago is not yet
    // durable, nor is then the cursor that follows it.
    let mut both = counted.iter().zip(&recorded);
    let is_at_rest = world.producers.iter().all(|producer| {
        let cursor = disk.cursors.get(producer.name.as_str());
        cursor.is_none_or(|cursor| incarnation_of(producer, cursor.epoch) == producer.incarnation())
    });
    let is_right = if consumer.incarnation() == 0 && is_at_rest {
        counted == recorded
    } else {
        both.all(|(counted, recorded)| counted >= recorded)
    };
    ensure!(
        is_right,
        "{} counts {counted:?} and has {ends:?} on record",
        consumer.name
    );
    Ok(())
}
