//! Snapshots, and what is restored from one and the journals after it at the start.

use std::{collections::HashMap, fs::File, sync::Arc, time::Duration};

use limits::{Demand, LimitId, RestoreError};

use super::{
    super::clock::AHEAD_MAX,
    Engine, IDLE_LOOKED_AT, Refused, State,
    catalog::{Core, Named},
    counting::CHECKED,
    journal,
    learned::Lesson,
    snapshot::{Head, Reader, SavedLesson, SavedLimit, SavedRule, Unreadable, Writer},
};

/// How often a limiter looks for counters that are idle, in nanoseconds.
const TIDY_INTERVAL: u64 = 200_000_000;

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Counters of the snapshot, each once for each rule.
    pub counters: usize,
    /// Those whose rules are gone.
    pub dropped: usize,
    /// Changes of the journals.
    pub changes: usize,
    /// Bytes of the journals that are not read, as they are damaged.
    pub damaged: usize,
    /// The time that nothing is told before.
    pub clock: u64,
    /// How far the clock of the run before was ahead, if it was too far to be kept; else zero.
    pub ahead: Duration,
}

/// Why a snapshot was not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFailed {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// It has more counters than there may be.
    #[error("it has more counters than there may be")]
    NoRoom,
}

impl Engine {
    /// All that is known, under the lock. What changes from then on is written to the journal of this number: the snapshot has to be on the disk before
    /// earlier journals are removed.
    #[must_use]
    pub fn snapshot(&self, number: u64, journal: File) -> Vec<u8> {
        let mut state = self.state();
        let state = &mut *state;
        let catalog = &state.catalog;
        let places = catalog.all().zip(0..);
        let places: HashMap<u32, usize> =
            places.map(|((place, _), index)| (place, index)).collect();
        let lessons = state.learned.lessons();
        let lessons = lessons.map(|((place, counter), lesson)| SavedLesson {
            limit: places[place],
            counter: counter.to_string(),
            until: lesson.until,
            left: lesson.left,
        });
        let head = Head {
            journal: number,
            clock: state.core.clock(),
            sources: state.sources.to_vec(),
            limits: catalog
                .all()
                .map(|(_, named)| saved(named, &state.core))
                .collect(),
            lessons: lessons.collect(),
        };
        let bytes = state.snapshot_bytes;
        let mut writer = Writer::begin(&head, bytes + bytes / 8);
        let clock = state.core.clock();
        state.core.save(0, usize::MAX, clock, |id, key, counter| {
            let Some((place, named, placed)) = catalog.owner(id) else {
                return;
            };
            let mut rules = named.rules.iter();
            let rule = rules.position(|it| it.id == placed.id).unwrap_or(0);
            writer.counter(places[&place], rule, key, counter);
        });
        let bytes = writer.end();
        state.snapshot_bytes = bytes.len();
        state.journal.begin(journal, bytes.len());
        bytes
    }

    /// Keeps `sources` in every snapshot from now on: whatever says where the limits came from.
    pub fn keep(&self, sources: Arc<[u8]>) {
        self.state().sources = sources;
    }

    /// The newest sources that a snapshot and the journals have, as they were [kept](Self::keep); empty where there are none.
    ///
    /// # Errors
    /// When the snapshot cannot be read.
    pub fn kept_in(snapshot: &[u8], journals: &[(u64, Vec<u8>)]) -> Result<Arc<[u8]>, Unreadable> {
        let (head, _) = Reader::begin(snapshot)?;
        let later = journal::since(head.journal, journals);
        let newest = later.filter_map(|event| event.sources()).last();
        Ok(newest.map_or_else(|| head.sources.into(), Arc::from))
    }

    /// Restores a snapshot and the journals, each with its number, into limits of which nothing has been used. Where their clock is ahead of `now` by
    /// more than [`AHEAD_MAX`], what was used then counts as used now, in requests; else the restored clock is not before it.
    ///
    /// # Errors
    /// When the snapshot cannot be read, or has too many counters.
    pub fn restore(
        &self,
        snapshot: &[u8],
        journals: &[(u64, Vec<u8>)],
        now: u64,
    ) -> Result<Restored, RestoreFailed> {
        let (head, mut reader) = Reader::begin(snapshot)?;
        let mut state = self.state();
        let state = &mut *state;
        let mut restored = Restored {
            counters: 0,
            dropped: 0,
            changes: 0,
            damaged: journal::damaged(head.journal, journals),
            clock: head.clock,
            ahead: Duration::ZERO,
        };
        for limit in &head.limits {
            state.make_again(&limit.name);
        }
        if !state.of_calls.is_empty() {
            state.apply(head.clock);
        }
        while let Some(counter) = reader.counter()? {
            let of = at(&head, counter.limit, counter.rule);
            let (limit, rule) = of.ok_or(Unreadable::Damaged)?;
            let Some(id) = state.id_of(&limit.name, &rule.name) else {
                restored.dropped += 1;
                continue;
            };
            let core = &mut state.core;
            let key = Arc::from(counter.counter);
            match core.restore(id, key, &rule.limit, counter.state, head.clock) {
                Ok(()) => restored.counters += 1,
                Err(RestoreError::Unfit) => return Err(Unreadable::Damaged.into()),
                Err(RestoreError::NoRoom) => return Err(RestoreFailed::NoRoom),
            }
        }
        for lesson in &head.lessons {
            let limit = head.limits.get(lesson.limit).ok_or(Unreadable::Damaged)?;
            if let Some(place) = state.catalog.place(&limit.name) {
                let known = Lesson {
                    until: lesson.until,
                    left: lesson.left,
                };
                let counter = Arc::from(&*lesson.counter);
                state.learned.put(&(place, counter), known, head.clock);
            }
        }
        let (mut tidied_at, mut cleared_at) = (head.clock, 0);
        for event in journal::since(head.journal, journals) {
            // What makes room all the time while a limiter runs.
            let now = event.now;
            restored.clock = restored.clock.max(now);
            let times = now.saturating_sub(tidied_at) / TIDY_INTERVAL;
            if times > 0 {
                tidied_at = now;
                let times = usize::try_from(times).unwrap_or(usize::MAX);
                state.tidy(IDLE_LOOKED_AT.saturating_mul(times), now);
            }
            let mut done = state.replay(&event);
            if done.is_err() && now > cleared_at {
                cleared_at = now;
                state.core.forget_idle(usize::MAX, now);
                state.learned.forget(now);
                state.let_rules_be_replaced();
                done = state.replay(&event);
            }
            match done {
                Ok(()) => restored.changes += 1,
                Err(Refused::NoRoom) => return Err(RestoreFailed::NoRoom),
                // It was under limits that are gone.
                Err(_) => {}
            }
        }
        restored.clock = restored.clock.max(state.core.clock());
        let ahead = restored.clock.saturating_sub(now);
        if Duration::from_nanos(ahead) > AHEAD_MAX {
            let fresh =
                Core::with_memory(self.options.counters_max, self.options.counters_bytes_max);
            state.move_to(now, restored.clock, fresh)?;
            state.learned.set_back(ahead);
            restored.clock = now;
            restored.ahead = Duration::from_nanos(ahead);
        }
        Ok(restored)
    }
}

fn at(head: &Head, limit: usize, rule: usize) -> Option<(&SavedLimit, &SavedRule)> {
    let limit = head.limits.get(limit)?;
    Some((limit, limit.rules.get(rule)?))
}

fn saved(named: &Named, core: &Core) -> SavedLimit {
    let rules = named.rules.iter().map(|placed| SavedRule {
        name: placed.name.to_string(),
        limit: *core.limit(placed.id),
    });
    SavedLimit {
        name: named.name.to_string(),
        rules: rules.collect(),
    }
}

impl State {
    /// Counts what is used at `before` as used at `now`, in a core of which nothing is used.
    fn move_to(&mut self, now: u64, before: u64, mut fresh: Core) -> Result<(), RestoreFailed> {
        let mut used = Vec::new();
        let each = |id, key: &Arc<str>, requests, _| {
            used.push(Demand {
                limit: id,
                key: Arc::clone(key),
                requests,
            });
        };
        self.core.each_key(0, usize::MAX, before, each);
        let rules = self.catalog.all().flat_map(|(_, named)| &named.rules);
        let mut ids: Vec<LimitId> = rules.map(|placed| placed.id).collect();
        ids.sort_unstable_by_key(|id| id.index());
        for id in ids {
            let added = fresh.add(*self.core.limit(id)).expect(CHECKED);
            assert_eq!(added, id, "no limit has gone since the start");
        }
        self.core = fresh;
        for demand in used.into_iter().filter(|it| it.requests > 0) {
            let recorded = self.core.record_all(&[demand], now, now);
            recorded.map_err(|_| RestoreFailed::NoRoom)?;
        }
        Ok(())
    }

    fn id_of(&self, limit: &str, rule: &str) -> Option<limits::LimitId> {
        let named = self.catalog.get(self.catalog.place(limit)?);
        let placed = named.rules.iter().find(|placed| &*placed.name == rule);
        placed.map(|placed| placed.id)
    }
}
