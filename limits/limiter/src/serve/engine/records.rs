//! Records of the state that outlives the process.
//!
//! Each record is self-contained: the usage of a counter is saved together with the rule that it was computed under.
//! The newest versions of all records, read in any order, are the complete state; there is no history to replay.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use limits::{Demand, Limit, RestoreError};
use serde::{Deserialize, Serialize};

use super::{
    super::clock::AHEAD_MAX, Engine, EngineState, catalog::Core, feedback::CounterFeedback,
};

/// Version of the records, including the saved states of counters.
const VERSION: u8 = 1;

/// New values of records by key; `None` for removed records.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Key of a record. Keys and values are encoded with postcard.
#[derive(Debug, Serialize, Deserialize)]
enum Key<'a> {
    /// The version, and the latest time passed to the limits. Sorts before all other records.
    Head,
    /// The sources of the limits, in the form passed by the caller.
    Sources,
    /// Usage of a counter under a limit and rule, with the rule.
    Usage(&'a str, &'a str, &'a str),
    /// Feedback of a counter of a limit.
    Feedback(&'a str, &'a str),
}

/// Result of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Number of counters in use, one per rule of a limit.
    pub counters: usize,
    /// Number of records of limits and rules that no longer exist.
    pub dropped: usize,
    /// Minimum time for further calls.
    pub clock: u64,
    /// How far the saved time was ahead of the start, if by more than [`AHEAD_MAX`]; otherwise zero.
    pub ahead: Duration,
}

/// Why records cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFailure {
    /// A record is missing or cannot be decoded.
    #[error("a record is corrupt")]
    Corrupt,
    /// A different version of this program wrote the records.
    #[error("the records were written by a different version of the limiter")]
    Version,
    /// The records have more counters than the settings allow.
    #[error("the records contain more counters than --counters or --counters-memory allows")]
    CounterLimit,
}

impl Engine {
    /// Returns the changes since the last call.
    pub fn take_changes(&self) -> Changes {
        let mut state = self.state();
        state.collect_changes();
        let mut changes = std::mem::take(&mut state.changes);
        let head = (VERSION, state.core.clock());
        changes.insert(to_bytes(&Key::Head), Some(to_bytes(&head)));
        changes
    }

    /// Saves the sources of the limits with the next changes.
    pub fn save_sources(&self, sources: Vec<u8>) {
        self.state().save_sources(sources);
    }

    /// Returns the [saved](Self::save_sources) sources; empty if there are none.
    ///
    /// # Errors
    /// When the records are corrupt or of another version.
    pub fn saved_sources<B: AsRef<[u8]>>(records: &[(B, B)]) -> Result<&[u8], RestoreFailure> {
        saved_clock(records)?;
        let key = to_bytes(&Key::Sources);
        let sources = records.iter().find(|(it, _)| it.as_ref() == key);
        Ok(sources.map_or(&[], |(_, sources)| sources.as_ref()))
    }

    /// Restores records, sorted by key, into unused limits.
    ///
    /// If the saved time is ahead of `now` by more than [`AHEAD_MAX`], saved usage counts as usage at `now`. Otherwise the
    /// restored clock continues at the saved time.
    ///
    /// # Errors
    /// When a record is corrupt or of another version, or there are too many counters.
    pub fn restore<B: AsRef<[u8]>>(
        &self,
        records: &[(B, B)],
        now: u64,
    ) -> Result<Restored, RestoreFailure> {
        let saved_at = saved_clock(records)?;
        let ahead = saved_at.saturating_sub(now);
        let is_ahead = Duration::from_nanos(ahead) > AHEAD_MAX;
        let now = if is_ahead { now } else { saved_at };
        let mut restored = Restored {
            counters: 0,
            dropped: 0,
            clock: now,
            ahead: Duration::from_nanos(if is_ahead { ahead } else { 0 }),
        };
        let mut state = self.state();
        for (key, _) in records {
            if let Key::Usage(limit, ..) | Key::Feedback(limit, _) = read(key.as_ref())? {
                state.restore_call_limit(limit);
            }
        }
        if !state.call_limits.is_empty() {
            state.apply(now);
        }
        for (key, value) in records {
            let (key, value) = (key.as_ref(), value.as_ref());
            let is_kept = match read(key)? {
                Key::Head | Key::Sources => true,
                Key::Usage(limit, rule, counter) => {
                    let is_used = state.restore((limit, rule), counter, value, saved_at, now)?;
                    restored.counters += usize::from(is_used == Some(true));
                    restored.dropped += usize::from(is_used.is_none());
                    is_used == Some(true)
                }
                Key::Feedback(limit, counter) => {
                    let mut feedback: CounterFeedback = read(value)?;
                    feedback.set_back(saved_at - now);
                    let counter = (Arc::from(limit), Arc::from(counter));
                    let is_active = state.catalog.get(limit).is_some();
                    restored.dropped += usize::from(!is_active);
                    is_active && state.feedback.restore(&counter, feedback)
                }
            };
            if !is_kept {
                state.changes.insert(key.to_vec(), None);
            }
        }
        Ok(restored)
    }
}

impl EngineState {
    pub(super) fn save_sources(&mut self, sources: Vec<u8>) {
        self.changes.insert(to_bytes(&Key::Sources), Some(sources));
    }

    /// Encodes pending changes under the current names of limits and rules.
    pub(super) fn collect_changes(&mut self) {
        let (catalog, changes) = (&self.catalog, &mut self.changes);
        self.core.take_changes(|id, limit, counter, state| {
            if let Some((owner, rule)) = catalog.owner(id) {
                let key = Key::Usage(&owner.name, &rule.rule.id, counter);
                let value = state.map(|state| to_bytes(&(limit, state)));
                changes.insert(to_bytes(&key), value);
            }
        });
        self.feedback.take_changes(|(limit, counter), feedback| {
            let key = Key::Feedback(limit, counter);
            changes.insert(to_bytes(&key), feedback.map(to_bytes));
        });
    }

    /// Restores the usage of a counter saved at `saved_at`. Returns whether it is still in use, or `None` if its rule no
    /// longer exists.
    fn restore(
        &mut self,
        (limit, rule): (&str, &str),
        counter: &str,
        saved: &[u8],
        saved_at: u64,
        now: u64,
    ) -> Result<Option<bool>, RestoreFailure> {
        let (was, saved): (Limit, limits::KeyState) = read(saved)?;
        let rules = self.catalog.get(limit).map(|limit| limit.rules.iter());
        let Some(rule) = rules.and_then(|mut rules| rules.find(|it| it.rule.id == rule)) else {
            return Ok(None);
        };
        let (id, key) = (rule.id, Arc::from(counter));
        let restored = if saved_at > now {
            Core::saved_usage(&was, &saved, saved_at).and_then(|requests| {
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
            RestoreError::Mismatch => RestoreFailure::Corrupt,
            RestoreError::TableFull => RestoreFailure::CounterLimit,
        })
    }
}

/// Latest time passed to the limits; zero without records.
fn saved_clock<B: AsRef<[u8]>>(records: &[(B, B)]) -> Result<u64, RestoreFailure> {
    let Some((key, value)) = records.first() else {
        return Ok(0);
    };
    if key.as_ref() != to_bytes(&Key::Head) {
        return Err(RestoreFailure::Corrupt);
    }
    match read(value.as_ref())? {
        (VERSION, clock) => Ok(clock),
        _ => Err(RestoreFailure::Version),
    }
}

fn to_bytes(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    postcard::to_allocvec(value).expect("encoding into memory does not fail")
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RestoreFailure> {
    postcard::from_bytes(bytes).map_err(|_| RestoreFailure::Corrupt)
}
