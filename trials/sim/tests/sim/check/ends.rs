//! What a consumer said of the ends of lives, held against what its store lacks of them.
//!
//! - "At most so many are lost", or exactly: the store lacks no more of that life, and of lives since then that the consumer
//!   did not see, but for what was lost in gaps before. "Nothing was lost": it lacks nothing of them.
//! - Nothing is said that nobody can know: when a producer's machine lost power, its record is gone and there is no
//!   bound. When only its process ended, there is one.
//! - Where something is lacking, something was said, by a consumer that can have known of the life.
//! - What was said is what was counted.

use std::ops::Range;

use anyhow::{Context as _, ensure};
use launcher::scrape::names;

use super::{Missing, counted_ends, counted_lost, describe, life_of, of_all_lives};
use crate::{
    UNPOISONED,
    hosts::{End, Seat},
    load::{History, SyncRequest},
    said::{self, Lacks, Saying},
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
    let said = said::of(&consumer.name);
    for (at, producer) in world.producers.iter().enumerate() {
        let lacking = missing.tails.iter().chain(&missing.holes).copied();
        let lacking = lacking.filter(|sync| history.syncs[*sync].producer == at);
        let judge = Judge {
            consumer,
            producer,
            history,
            disk,
            lacking: lacking.collect(),
            gaps: counted_lost(consumer),
        };
        let said = said.iter().filter(|said| said.producer == producer.name);
        let judged = judge.check(&said.collect::<Vec<_>>());
        judged.with_context(|| format!("{} of {}", consumer.name, producer.name))?;
    }
    counts(consumer, &said)
}

struct Judge<'a> {
    consumer: &'a Seat,
    producer: &'a Seat,
    history: &'a History,
    disk: &'a Disk,
    /// What the consumer's store lacks of the producer's cookies, by number.
    lacking: Vec<usize>,
    /// How many the consumer counts as lost in gaps.
    gaps: u64,
}

impl Judge<'_> {
    fn check(&self, said: &[&Saying]) -> anyhow::Result<()> {
        for saying in said {
            self.is_knowable(saying)
                .with_context(|| format!("{saying:?}"))?;
        }
        let mut covered = Vec::new();
        for saying in said.iter().filter(|saying| saying.counts) {
            covered.push(self.lives(saying));
            self.is_true(saying)
                .with_context(|| format!("{saying:?}"))?;
        }
        let unsaid = self.lacking.iter().copied().filter(|at| {
            let sync = &self.history.syncs[*at];
            let is_said = covered.iter().any(|lives| lives.contains(&sync.life));
            !is_said && self.is_over(sync.life) && self.is_known(sync)
        });
        let unsaid: Vec<_> = unsaid.collect();
        ensure!(
            unsaid.is_empty(),
            "nothing is said of a lost tail: {}",
            describe(self.history, &unsaid)
        );
        Ok(())
    }

    /// The life that a saying is of, and those after it of which the consumer saw nothing.
    fn lives(&self, saying: &Saying) -> Range<usize> {
        life_of(self.producer, saying.epoch)..life_of(self.producer, saying.next)
    }

    fn is_true(&self, saying: &Saying) -> anyhow::Result<()> {
        let lives = self.lives(saying);
        let first = lives.start;
        let (lives, most) = match saying.lacks {
            Lacks::Nothing => (lives, 0),
            Lacks::NothingOfIt => (first..first + 1, 0),
            Lacks::Exactly(most) | Lacks::AtMost(most) => (lives, most),
            Lacks::Unknown => return Ok(()),
        };
        let lacking = self.lacking.iter().copied();
        let lacking = lacking.filter(|at| lives.contains(&self.history.syncs[*at].life));
        let lacking: Vec<_> = lacking.collect();
        ensure!(
            lacking.len() as u64 <= most + self.in_gaps(saying),
            "{} are lacking of lives {lives:?}: {}",
            lacking.len(),
            describe(self.history, &lacking)
        );
        Ok(())
    }

    /// What may be lacking by gaps: a process that saw all of the life has said how much.
    fn in_gaps(&self, saying: &Saying) -> u64 {
        if saying.watched_from <= 1 {
            saying.lost_in_gaps
        } else {
            self.gaps
        }
    }

    fn is_knowable(&self, saying: &Saying) -> anyhow::Result<()> {
        let lives = self.lives(saying);
        let all = self.producer.lives.lock().expect(UNPOISONED);
        let lost_power = all[lives].iter().any(|life| life.end == End::LostPower);
        let has_bound = match saying.lacks {
            Lacks::Nothing | Lacks::Exactly(_) | Lacks::AtMost(_) => true,
            Lacks::Unknown => false,
            // A goodbye says so, whatever came then.
            Lacks::NothingOfIt => return Ok(()),
        };
        ensure!(
            has_bound != lost_power,
            "a machine lost power meanwhile: {lost_power}"
        );
        Ok(())
    }

    fn is_over(&self, life: usize) -> bool {
        life < self.producer.life()
    }

    /// Whether the consumer must have known that there was this life: its store stood there or before, or it has never been restarted
    /// and got something of it.
    fn is_known(&self, sync: &SyncRequest) -> bool {
        let first = self.disk.first_epochs.get(self.producer.name.as_str());
        let stood = first.is_some_and(|epoch| life_of(self.producer, *epoch) <= sync.life);
        stood || self.consumer.life() == 0 && self.received(sync)
    }

    /// Whether the consumer received anything of the life that a sync went to.
    fn received(&self, sync: &SyncRequest) -> bool {
        self.disk.seen.iter().any(|&number| {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            let seen = self.history.syncs.get(at);
            seen.is_some_and(|seen| {
                seen.answered_at.is_some()
                    && (seen.producer, seen.life) == (sync.producer, sync.life)
            })
        })
    }
}

fn counts(consumer: &Seat, said: &[Saying]) -> anyhow::Result<()> {
    let (mut tails, mut at_most, mut exactly) = (0, 0, 0);
    for saying in said {
        match saying.lacks {
            Lacks::Nothing | Lacks::NothingOfIt => {}
            Lacks::Exactly(cookies) => exactly += cookies,
            Lacks::AtMost(cookies) => {
                tails += 1;
                at_most += cookies;
            }
            Lacks::Unknown => tails += 1,
        }
    }
    let count = |name| of_all_lives(consumer, name, &[]);
    let counted = (
        count(names::UNKNOWN_TAILS),
        count(names::UNKNOWN_TAIL_COOKIES),
        counted_ends(consumer),
    );
    ensure!(
        counted == (tails, at_most, exactly),
        "{} counts {counted:?} and says {said:?}",
        consumer.name
    );
    Ok(())
}
