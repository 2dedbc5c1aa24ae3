//! Snapshots: made a part of the counters at a time, so that nobody waits for long, and restored at the start.

use std::{collections::HashMap, sync::Arc, time::Duration};

use limits::{Demand, LimitId, RestoreError};

use super::{
    super::clock::AHEAD_MAX,
    Engine, State,
    catalog::{Core, Named},
    counting::CHECKED,
    learned::Lesson,
    snapshot::{Head, Reader, SavedLesson, SavedLimit, SavedRule, Unreadable, Writer},
};

/// Counters that are saved at once, under the lock: the more, the longer others wait for it.
const PART: usize = 128;

/// A snapshot in memory.
#[derive(Debug)]
pub struct Snapshot {
    /// What to write.
    pub bytes: Vec<u8>,
    /// Counters in it, each once for each rule.
    pub counters: usize,
    number: u64,
    /// Of which limits it is, and when it began.
    version: u64,
    began: u64,
    /// What it charges each place for.
    charges: Vec<u64>,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Counters, each once for each rule.
    pub counters: usize,
    /// Those whose rules are gone.
    pub dropped: usize,
    /// Whether the end was orderly. If not, every counter was charged.
    pub is_clean: bool,
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
    /// All that is known, in parts, each under the lock for a moment. To be told to [`is_saved`](Self::is_saved) when it is on the disk, before
    /// another is made.
    ///
    /// `is_clean` says that nothing is answered from now on, which [`close`](Self::close) sees to.
    #[must_use]
    pub fn snapshot(&self, is_clean: bool, now: u64) -> Snapshot {
        loop {
            if let Some(snapshot) = self.try_snapshot(is_clean, now) {
                return snapshot;
            }
        }
    }

    /// `None` when limits changed meanwhile.
    fn try_snapshot(&self, is_clean: bool, now: u64) -> Option<Snapshot> {
        let (number, version, charges, places, mut head, bytes) = {
            let mut state = self.state();
            let is_new = !std::mem::replace(&mut state.is_failed, true);
            state.unsaved.begin(is_new);
            let places = state.catalog.all().zip(0..);
            let places: HashMap<u32, usize> =
                places.map(|((place, _), index)| (place, index)).collect();
            (
                state.unsaved.epoch(),
                state.version,
                state.worth(),
                places,
                state.head(is_clean),
                state.saved_bytes,
            )
        };
        let mut from = Some(0);
        while let Some(place) = from {
            let state = self.state();
            if state.version != version {
                return None;
            }
            let lessons = &mut head.lessons;
            from = state.learned.each(place, PART, |(place, counter), lesson| {
                lessons.push(SavedLesson {
                    limit: places[place],
                    counter: counter.to_string(),
                    until: lesson.until,
                    left: lesson.left,
                });
            });
        }
        let mut writer = Writer::begin(&head, bytes + bytes / 8);
        let mut counters = 0;
        let mut from = Some(0);
        while let Some(place) = from {
            let state = self.state();
            if state.version != version {
                return None;
            }
            let catalog = &state.catalog;
            from = state.core.save(place, PART, now, |id, key, counter| {
                let Some((place, named, placed)) = catalog.owner(id) else {
                    return;
                };
                let mut rules = named.rules.iter();
                let rule = rules.position(|it| it.id == placed.id).unwrap_or(0);
                writer.counter(places[&place], rule, key, counter);
                counters += 1;
            });
        }
        Some(Snapshot {
            bytes: writer.end(),
            counters,
            number,
            version,
            began: now,
            charges,
        })
    }

    /// Keeps `sources` in every snapshot from now on: whatever says where the limits came from.
    pub fn keep(&self, sources: Arc<[u8]>) {
        self.state().sources = sources;
    }

    /// The sources that a snapshot has, as they were [kept](Self::keep); empty of one that has none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn kept_in(snapshot: &[u8]) -> Result<Arc<[u8]>, Unreadable> {
        Ok(Reader::begin(snapshot)?.0.sources.into())
    }

    /// A snapshot is on the disk since `now`: answers that waited for it go out.
    pub fn is_saved(&self, snapshot: &Snapshot, now: u64) {
        {
            let mut state = self.state();
            // One from before a change charges for none of the limits that are in force.
            let is_of_these = state.version == snapshot.version;
            let worth = state.worth().into_iter().filter(|_| is_of_these);
            let worth: Vec<u64> = worth.collect();
            let of_place = |place: usize| worth.get(place).copied().unwrap_or(0);
            state.unsaved.saved(&snapshot.charges, of_place);
            state.saved_at = now;
            state.saving_took = now.saturating_sub(snapshot.began);
            state.is_failed = false;
            state.saved_bytes = snapshot.bytes.len();
        }
        self.saved.send_replace(snapshot.number);
    }

    /// Restores what a snapshot has, into limits of which nothing has been used. Where its clock is ahead of `now` by more than
    /// [`AHEAD_MAX`], what was used then counts as used now, in requests; else the restored clock is not before it.
    ///
    /// # Errors
    /// When it cannot be read, or has too many counters.
    pub fn restore(&self, bytes: &[u8], now: u64) -> Result<Restored, RestoreFailed> {
        let (head, mut reader) = Reader::begin(bytes)?;
        let mut state = self.state();
        let state = &mut *state;
        let ahead = head.clock.saturating_sub(now);
        let is_too_far = Duration::from_nanos(ahead) > AHEAD_MAX;
        let system = now;
        let mut now = now.max(head.clock);
        let mut restored = Restored {
            counters: 0,
            dropped: 0,
            is_clean: head.is_clean,
            clock: head.clock,
            ahead: Duration::ZERO,
        };
        for limit in &head.limits {
            state.make_again(&limit.name, now);
        }
        if !state.of_calls.is_empty() {
            state.apply(now);
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
            match core.restore(id, key, &rule.limit, counter.state, now) {
                Ok(()) => restored.counters += 1,
                Err(RestoreError::Unfit) => return Err(Unreadable::Damaged.into()),
                Err(RestoreError::NoRoom) => return Err(RestoreFailed::NoRoom),
            }
        }
        let mut charges = Vec::new();
        for limit in &head.limits {
            for rule in &limit.rules {
                let Some(id) = state.id_of(&limit.name, &rule.name) else {
                    continue;
                };
                if let Some(unseen) = rule.unseen.clone() {
                    let restored = state.core.restore_unseen(id, &rule.limit, unseen, now);
                    restored.map_err(|_| Unreadable::Damaged)?;
                }
                if !head.is_clean || (is_too_far && rule.unseen.is_some()) {
                    charges.push((id, limit.worth));
                }
            }
        }
        if is_too_far {
            let fresh =
                Core::with_memory(self.options.counters_max, self.options.counters_bytes_max);
            state.move_to(system, now, fresh)?;
            (now, restored.clock) = (system, system);
            restored.ahead = Duration::from_nanos(ahead);
        }
        // Lessons last as long from now on as they would have then.
        let ahead = if is_too_far { ahead } else { 0 };
        state.core.charge_all(&charges, now);
        for lesson in head.lessons {
            let limit = head.limits.get(lesson.limit).ok_or(Unreadable::Damaged)?;
            if let Some(place) = state.catalog.place(&limit.name) {
                let lost = if head.is_clean { 0 } else { limit.worth };
                let known = Lesson {
                    until: lesson.until.saturating_sub(ahead),
                    left: lesson.left.saturating_sub(lost),
                };
                let counter = Arc::from(lesson.counter);
                state.learned.put(&(place, counter), known, now);
            }
        }
        Ok(restored)
    }
}

fn at(head: &Head, limit: usize, rule: usize) -> Option<(&SavedLimit, &SavedRule)> {
    let limit = head.limits.get(limit)?;
    Some((limit, limit.rules.get(rule)?))
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

    /// The head of a snapshot, but for what was learned.
    fn head(&self, is_clean: bool) -> Head {
        let saved = |named: &Named| SavedLimit {
            name: named.name.to_string(),
            worth: named.worth,
            rules: named
                .rules
                .iter()
                .map(|placed| SavedRule {
                    name: placed.name.to_string(),
                    limit: *self.core.limit(placed.id),
                    unseen: self.core.unseen(placed.id).cloned(),
                })
                .collect(),
        };
        Head {
            is_clean,
            clock: self.core.clock(),
            sources: self.sources.to_vec(),
            limits: self.catalog.all().map(|(_, named)| saved(named)).collect(),
            lessons: Vec::new(),
        }
    }
}
