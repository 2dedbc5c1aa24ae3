//! The state of one consumer's store: durable and uncommitted records, and a history of both for the checks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use consumer::{
    batch::{Batch, BatchCookie, Cursor},
    deletions::{Deletion, DspDeletion, StoredDeletion},
    store::FullRetryEntry,
};
use proto::{
    units::{DspId, Epoch, UnixMicros},
    wire::Scope,
};

use super::StoreBehavior;
use crate::load::Pair;

/// The stored value of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredValue {
    /// Number of the sync, from the buyer uid.
    pub(crate) number: u64,
    pub(crate) accepted: UnixMicros,
}

/// The disk and the volatile state of one consumer's store.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Changes when the disk is replaced.
    pub(crate) id: u64,
    /// Committed values.
    pub(crate) durable: BTreeMap<Pair, StoredValue>,
    /// Uncommitted values, and `None` for uncommitted removals.
    volatile: BTreeMap<Pair, Option<StoredValue>>,
    /// Committed cursors.
    pub(crate) cursors: BTreeMap<Arc<str>, Cursor>,
    /// Epoch of the first committed cursor of each producer.
    pub(crate) first_epochs: BTreeMap<Arc<str>, Epoch>,
    /// Producers and epochs with a committed goodbye.
    pub(crate) completed: BTreeSet<(Arc<str>, Epoch)>,
    /// Deletions by scope: committed deletions, and all deletions.
    durable_deletions: BTreeMap<Pair, UnixMicros>,
    deletions: BTreeMap<Pair, UnixMicros>,
    /// Finished deletions of DSPs.
    finished: BTreeMap<DspId, UnixMicros>,
    pub(crate) floor: UnixMicros,
    /// DSPs with a database.
    pub(super) slots: BTreeSet<DspId>,
    pub(super) retry_queue: BTreeMap<u64, FullRetryEntry>,
    /// The DSP whose database fails.
    pub(crate) failing_dsp: Option<DspId>,
    pub(crate) behavior: StoreBehavior,
    /// Number of power losses.
    pub(super) generation: u64,
    pub(super) random: fastrand::Rng,
    /// All cookies and deletions that were ever written. Never lost, because only checks read it.
    pub(crate) record: Record,
}

/// All writes that a store ever received.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// All cookies that were ever written.
    pub(crate) received: BTreeSet<StoredValue>,
    /// Latest deletion of each scope that was ever written.
    pub(crate) deletions: BTreeMap<Pair, UnixMicros>,
    /// Latest deletion of each scope that was ever committed.
    pub(crate) durable_deletions: BTreeMap<Pair, UnixMicros>,
    /// Times of all deletions that were ever written.
    pub(crate) times: BTreeSet<UnixMicros>,
    /// Cookies that must not have been written.
    pub(crate) violations: Vec<String>,
}

impl Record {
    /// All cookies with this number that were ever written.
    pub(crate) fn received_values(&self, number: u64) -> impl Iterator<Item = &StoredValue> {
        let value = |accepted| StoredValue { number, accepted };
        self.received
            .range(value(UnixMicros::NONE)..=value(UnixMicros::MAX))
    }

    /// Time up to which durable deletions cover the cookies of a pair.
    pub(crate) fn deleted_until(&self, pair: Pair) -> UnixMicros {
        let scopes = pair.scopes().into_iter();
        let times = scopes.filter_map(|scope| self.durable_deletions.get(&scope));
        times.copied().max().unwrap_or_default()
    }
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            id: seed,
            durable: BTreeMap::new(),
            volatile: BTreeMap::new(),
            cursors: BTreeMap::new(),
            first_epochs: BTreeMap::new(),
            completed: BTreeSet::new(),
            durable_deletions: BTreeMap::new(),
            deletions: BTreeMap::new(),
            finished: BTreeMap::new(),
            floor: UnixMicros::NONE,
            slots: BTreeSet::new(),
            retry_queue: BTreeMap::new(),
            failing_dsp: None,
            behavior: StoreBehavior::Healthy,
            generation: 0,
            random: fastrand::Rng::with_seed(seed),
            record: Record::default(),
        }
    }

    /// Loses a random part of the uncommitted writes.
    pub(crate) fn lose_power(&mut self) {
        self.generation += 1;
        for (scope, until) in std::mem::take(&mut self.deletions) {
            let committed = self.durable_deletions.get(&scope).copied();
            if committed == Some(until) || self.random.bool() {
                self.durable_deletions.insert(scope, until);
            }
        }
        self.deletions = self.durable_deletions.clone();
        for (pair, value) in std::mem::take(&mut self.volatile) {
            if self.random.bool() {
                self.make_durable(pair, value);
            }
        }
    }

    fn make_durable(&mut self, pair: Pair, value: Option<StoredValue>) {
        match value {
            Some(value) => self.durable.insert(pair, value),
            None => self.durable.remove(&pair),
        };
    }

    /// The value that readers see.
    fn visible(&self, pair: Pair) -> Option<StoredValue> {
        match self.volatile.get(&pair) {
            Some(value) => *value,
            None => self.durable.get(&pair).copied(),
        }
    }

    /// All values that readers see.
    pub(crate) fn values(&self) -> BTreeMap<Pair, StoredValue> {
        let pairs = self.durable.keys().chain(self.volatile.keys());
        let values = pairs.filter_map(|pair| Some((*pair, self.visible(*pair)?)));
        values.collect()
    }

    /// Records a violation for each cookie of a batch that a deletion covers, if it was durable when the write of the batch began.
    pub(super) fn check_deleted(&mut self, batch: &Batch) {
        for cookie in batch.cookies() {
            let until = parse(&cookie).map_or(UnixMicros::default(), |(pair, _)| {
                self.record.deleted_until(pair)
            });
            if cookie.accepted <= until {
                let violation = format!("a batch has {cookie:?}, which was deleted until {until}");
                self.record.violations.push(violation);
            }
        }
    }

    /// Writes a cookie; returns false if it is stale.
    pub(super) fn write(&mut self, cookie: &BatchCookie<'_>) -> bool {
        let Some((pair, number)) = parse(cookie) else {
            let violation = format!("no client sent {cookie:?}");
            self.record.violations.push(violation);
            return true;
        };
        let value = StoredValue {
            number,
            accepted: cookie.accepted,
        };
        self.record.received.insert(value);
        let known = self.visible(pair);
        if known.is_some_and(|known| value.accepted < known.accepted) {
            return false;
        }
        self.volatile.insert(pair, Some(value));
        true
    }

    /// Stores the deletions of a batch.
    pub(super) fn put_deletions(&mut self, batch: &Batch) {
        for deletion in batch.deletions() {
            let scope = scope(deletion);
            self.record.times.insert(deletion.until);
            for known in [&mut self.deletions, &mut self.record.deletions] {
                let until = known.entry(scope).or_default();
                *until = deletion.until.max(*until);
            }
        }
    }

    /// Removes the cookies that the deletions of a batch cover. Ignores deletions of DSPs, and cookies of the DSPs `except`.
    pub(super) fn remove_deleted(&mut self, batch: &Batch, except: &BTreeSet<DspId>) {
        let deletions = batch.deletions().iter();
        for deletion in deletions.filter(|deletion| deletion.of_dsp().is_none()) {
            self.remove_covered(scope(deletion), deletion.until, except);
        }
    }

    fn remove_covered(&mut self, scope: Pair, until: UnixMicros, except: &BTreeSet<DspId>) {
        for (pair, value) in self.values() {
            let is_covered = value.accepted <= until;
            if is_covered && scope.concerns(pair) && !except.contains(&pair.dsp) {
                self.volatile.insert(pair, None);
            }
        }
    }

    /// Durably removes a random half, or all, of the cookies that a deletion of a DSP covers.
    pub(super) fn remove_dsp(&mut self, deletion: &DspDeletion, is_last: bool) {
        let scope = scope(&(*deletion).into());
        for (pair, value) in self.values() {
            let is_covered = value.accepted <= deletion.until;
            if is_covered && scope.concerns(pair) && (is_last || self.random.bool()) {
                self.volatile.remove(&pair);
                self.durable.remove(&pair);
            }
        }
        if is_last {
            self.finished.insert(deletion.dsp_id, deletion.until);
        }
    }

    /// Makes the cookies, deletions and removals of a batch durable.
    pub(super) fn commit(&mut self, batch: &Batch) {
        for deletion in batch.deletions() {
            let scope = scope(deletion);
            // The next batch may already have written a later deletion of the scope.
            for known in [
                &mut self.durable_deletions,
                &mut self.record.durable_deletions,
            ] {
                let until = known.entry(scope).or_default();
                *until = deletion.until.max(*until);
            }
            let mut removed = std::mem::take(&mut self.volatile);
            removed.retain(|pair, value| {
                let is_removed = value.is_none() && scope.concerns(*pair);
                if is_removed {
                    self.durable.remove(pair);
                }
                !is_removed
            });
            self.volatile = removed;
        }
        for (pair, _) in batch.cookies().filter_map(|cookie| parse(&cookie)) {
            if let Some(value) = self.volatile.remove(&pair) {
                self.make_durable(pair, value);
            }
        }
    }

    /// Makes the cookies and removals of a retry durable.
    pub(super) fn commit_retry(&mut self, dsp_id: DspId, batch: &Batch) {
        let cookies = batch.cookies().filter_map(|cookie| parse(&cookie));
        let written: BTreeSet<Pair> = cookies.map(|(pair, _)| pair).collect();
        for (pair, value) in std::mem::take(&mut self.volatile) {
            if written.contains(&pair) || value.is_none() && pair.dsp == dsp_id {
                self.make_durable(pair, value);
            } else {
                self.volatile.insert(pair, value);
            }
        }
    }

    pub(super) fn stored_deletions(&self) -> Vec<StoredDeletion> {
        let deletions = self.deletions.iter().map(|(scope, until)| StoredDeletion {
            deletion: Deletion {
                scope: Scope::from_ids(scope.user_text().as_bytes().into(), scope.dsp),
                until: *until,
            },
            is_finished: self.finished.get(&scope.dsp) == Some(until),
        });
        let floor = (self.floor > UnixMicros::NONE).then(|| StoredDeletion {
            deletion: Deletion::floor(self.floor),
            is_finished: true,
        });
        deletions.chain(floor).collect()
    }

    /// Removes the deletions that are not needed with this floor.
    pub(super) fn forget_deletions(&mut self, floor: UnixMicros) {
        self.floor = floor.max(self.floor);
        let mut needed = self.stored_deletions();
        needed.retain(|it| it.is_needed(floor));
        let needed: BTreeSet<Pair> = needed.iter().map(|it| scope(&it.deletion)).collect();
        for known in [&mut self.deletions, &mut self.durable_deletions] {
            known.retain(|scope, _| needed.contains(scope));
        }
    }

    /// The stored matches of a user: DSP, acceptance and buyer uid.
    pub(super) fn lookup(&self, user: u64) -> Vec<(DspId, UnixMicros, String)> {
        let pairs = (1..=3).map(|dsp| Pair {
            user,
            dsp: DspId(dsp),
        });
        let found = pairs.filter_map(|pair| {
            let value = self.visible(pair)?;
            Some((pair.dsp, value.accepted, format!("b{}", value.number)))
        });
        found.collect()
    }
}

fn scope(deletion: &Deletion) -> Pair {
    let (user_id, dsp) = deletion.ids();
    let user = parse_user(user_id).unwrap_or(Pair::ALL_USERS);
    Pair { user, dsp }
}

fn parse_user(user_id: &[u8]) -> Option<u64> {
    number(user_id, "u")
}

/// Parses a cookie into its pair and the number of its sync.
fn parse(cookie: &BatchCookie<'_>) -> Option<(Pair, u64)> {
    let pair = Pair {
        user: parse_user(cookie.user_id)?,
        dsp: cookie.dsp_id,
    };
    Some((pair, number(cookie.buyer_uid, "b")?))
}

fn number(bytes: &[u8], prefix: &str) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_prefix(prefix)?.parse::<u64>().ok()
}
