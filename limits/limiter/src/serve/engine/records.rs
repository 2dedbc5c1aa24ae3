//! Records of what outlives the process: what changed since they were last taken, and what is restored from them at the start.
//!
//! Each record stands for itself: what a rule has used of a counter is saved with the rule that it was reckoned under. So the newest records, in any order, are
//! all that is known, and there is no history to make once more.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use limits::{Demand, Limit, RestoreError};
use serde::{Deserialize, Serialize};

use super::{super::clock::AHEAD_MAX, Engine, State, catalog::Core, learned::Held};

/// The version of the records, the states of counters included.
const VERSION: u8 = 1;

/// Records by their keys; `None` where there is none any more.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a record is of, as its key says in the form of postcard. Its value has that form too.
#[derive(Debug, Serialize, Deserialize)]
enum Key<'a> {
    /// The version, and the latest time that the limits were told. The first of all records.
    Head,
    /// Whatever says where the limits came from, as it was given.
    Sources,
    /// The limit that a rule was, and the state of a counter under it.
    Used(&'a str, &'a str, &'a str),
    /// What is learned of a counter of a limit.
    Learned(&'a str, &'a str),
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Counters that are in use, each once for each rule.
    pub counters: usize,
    /// Records of rules and limits that are gone.
    pub dropped: usize,
    /// The time that nothing is told before.
    pub clock: u64,
    /// How far the clock of the run before was ahead, if it was too far to be kept; else zero.
    pub ahead: Duration,
}

/// Why records were not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFailed {
    /// They are not what was written.
    #[error("it is damaged")]
    Damaged,
    /// They were written by another version of this program.
    #[error("it is of another version of this program")]
    Version,
    /// There are more counters than there may be.
    #[error("it has more counters than there may be")]
    NoRoom,
}

impl Engine {
    /// What changed since the last time. What was answered before is in it, or was in an earlier one.
    #[must_use]
    pub fn take_changes(&self) -> Changes {
        let mut state = self.state();
        state.collect_changes();
        let mut changes = std::mem::take(&mut state.changes);
        let head = (VERSION, state.core.clock());
        changes.insert(to_bytes(&Key::Head), Some(to_bytes(&head)));
        changes
    }

    /// Saves `sources` from now on: whatever says where the limits came from.
    pub fn keep(&self, sources: Vec<u8>) {
        self.state().keep(sources);
    }

    /// The sources that were [kept](Self::keep); empty where there are none.
    ///
    /// # Errors
    /// When these are not the records of this version.
    pub fn kept_in<B: AsRef<[u8]>>(records: &[(B, B)]) -> Result<&[u8], RestoreFailed> {
        head(records)?;
        let key = to_bytes(&Key::Sources);
        let kept = records.iter().find(|(it, _)| it.as_ref() == key);
        Ok(kept.map_or(&[], |(_, sources)| sources.as_ref()))
    }

    /// Restores all records, in the order of their keys, into limits of which nothing has been used. Where their clock is ahead of `now` by more than
    /// [`AHEAD_MAX`], what was used then counts as used now, in requests; else the restored clock is not before it.
    ///
    /// # Errors
    /// When they cannot be read, or have too many counters.
    pub fn restore<B: AsRef<[u8]>>(
        &self,
        records: &[(B, B)],
        now: u64,
    ) -> Result<Restored, RestoreFailed> {
        let before = head(records)?;
        let ahead = before.saturating_sub(now);
        let is_ahead = Duration::from_nanos(ahead) > AHEAD_MAX;
        let now = if is_ahead { now } else { before };
        let mut restored = Restored {
            counters: 0,
            dropped: 0,
            clock: now,
            ahead: Duration::from_nanos(if is_ahead { ahead } else { 0 }),
        };
        let mut state = self.state();
        for (key, _) in records {
            if let Key::Used(limit, ..) | Key::Learned(limit, _) = read(key.as_ref())? {
                state.make_again(limit);
            }
        }
        if !state.of_calls.is_empty() {
            state.apply(now);
        }
        for (key, value) in records {
            let (key, value) = (key.as_ref(), value.as_ref());
            let is_kept = match read(key)? {
                Key::Head | Key::Sources => true,
                Key::Used(limit, rule, counter) => {
                    let is_used = state.restore((limit, rule), counter, value, before, now)?;
                    restored.counters += usize::from(is_used == Some(true));
                    restored.dropped += usize::from(is_used.is_none());
                    is_used == Some(true)
                }
                Key::Learned(limit, counter) => {
                    let mut held: Held = read(value)?;
                    held.set_back(before - now);
                    let counter = (Arc::from(limit), Arc::from(counter));
                    let is_there = state.catalog.get(limit).is_some();
                    restored.dropped += usize::from(!is_there);
                    is_there && state.learned.put(counter, held)
                }
            };
            if !is_kept {
                state.changes.insert(key.to_vec(), None);
            }
        }
        Ok(restored)
    }
}

impl State {
    pub(super) fn keep(&mut self, sources: Vec<u8>) {
        self.changes.insert(to_bytes(&Key::Sources), Some(sources));
    }

    /// Writes down what changed, by the names that limits and rules have now.
    pub(super) fn collect_changes(&mut self) {
        let (catalog, changes) = (&self.catalog, &mut self.changes);
        self.core.take_changes(|id, limit, counter, state| {
            if let Some((named, placed)) = catalog.owner(id) {
                let key = Key::Used(&named.name, &placed.name, counter);
                let value = state.map(|state| to_bytes(&(limit, state)));
                changes.insert(to_bytes(&key), value);
            }
        });
        self.learned.take_changes(|(limit, counter), held| {
            let key = Key::Learned(limit, counter);
            changes.insert(to_bytes(&key), held.map(to_bytes));
        });
    }

    /// Restores what was used of a counter `before`; whether something of it still is, and `None` where its rule is gone.
    fn restore(
        &mut self,
        (limit, rule): (&str, &str),
        counter: &str,
        saved: &[u8],
        before: u64,
        now: u64,
    ) -> Result<Option<bool>, RestoreFailed> {
        let (was, saved): (Limit, limits::KeyState) = read(saved)?;
        let Some(id) = self.id_of(limit, rule) else {
            return Ok(None);
        };
        let key = Arc::from(counter);
        let restored = if before > now {
            Core::saved_usage(&was, &saved, before).and_then(|requests| {
                let demand = Demand {
                    limit: id,
                    key,
                    requests,
                };
                let recorded = self.core.record(&[demand], now, now);
                recorded.map_err(|_| RestoreError::TableFull)?;
                Ok(requests > 0)
            })
        } else {
            self.core.restore(id, key, &was, saved, now)
        };
        restored.map(Some).map_err(|error| match error {
            RestoreError::Mismatch => RestoreFailed::Damaged,
            RestoreError::TableFull => RestoreFailed::NoRoom,
        })
    }

    fn id_of(&self, limit: &str, rule: &str) -> Option<limits::LimitId> {
        let mut rules = self.catalog.get(limit)?.rules.iter();
        let placed = rules.find(|placed| &*placed.name == rule);
        placed.map(|placed| placed.id)
    }
}

/// The latest time that the limits were told; zero where there is no record yet.
fn head<B: AsRef<[u8]>>(records: &[(B, B)]) -> Result<u64, RestoreFailed> {
    let Some((key, value)) = records.first() else {
        return Ok(0);
    };
    if key.as_ref() != to_bytes(&Key::Head) {
        return Err(RestoreFailed::Damaged);
    }
    match read(value.as_ref())? {
        (VERSION, clock) => Ok(clock),
        _ => Err(RestoreFailed::Version),
    }
}

fn to_bytes(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    postcard::to_allocvec(value).expect("memory takes all")
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RestoreFailed> {
    postcard::from_bytes(bytes).map_err(|_| RestoreFailed::Damaged)
}
