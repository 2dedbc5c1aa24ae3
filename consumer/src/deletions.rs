//! The table of deletions: users and DSPs whose earlier cookies must not be stored.
//!
//! A deletion covers cookies accepted up to its time: those of one user at one DSP or at all DSPs, or those of all
//! users at one DSP. Covered cookies are removed from the store; if a whole DSP is deleted, a background *job* removes
//! them. This table rejects covered cookies that arrive later: from another producer, a resumed stream, the retry
//! queue, or a producer's queue of rate-limited cookies. An entry is a keyed hash and a time.
//!
//! Producers' clocks differ. A deletion's time is the latest that any of their clocks showed when it was requested. So it
//! covers all earlier cookies in the store, whatever their producers. Cookies that arrive later are compared with the
//! [request](Request), so that those accepted after it are stored.
//!
//! Entries are kept for `RETENTION_MICROS`, the maximum time for which a producer can delay a cookie, and their number
//! is bounded. Removing the oldest entries raises the *floor*: all cookies accepted up to the floor count as deleted.
//! So no deleted cookie is stored again, but a late cookie may be rejected although no deletion covers it.
//!
//! A cookie costs one comparison while there are no deletions, otherwise three hashes and lookups.

mod copied;
mod reader;
mod request;

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher as _, Hasher as _},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use proto::{
    limits::{AGE_MICROS_MAX, DELETION_HORIZON_MICROS},
    units::{DspId, UnixMicros},
    wire::{Record, Scope},
};
pub use reader::Reader;
pub use request::{Arriving, Request};
use tokio::sync::watch;

use crate::clock_offset::CLOCK_AHEAD_MICROS_MAX;

/// How long deletions are kept, in microseconds: as long as producers can delay a cookie. Producers release no cookie
/// older than [`AGE_MICROS_MAX`], and the API accepts none older than [`DELETION_HORIZON_MICROS`].
const RETENTION_MICROS: u64 = AGE_MICROS_MAX + DELETION_HORIZON_MICROS;

/// Bytes of an entry: a hash and a time, in a table that is at least half full.
const ENTRY_BYTES: usize = 40;

/// Minimum time from a deletion to a cookie that was accepted later: more than the resolution of any store.
const AFTER_DELETION_MICROS: u64 = 2_000;

/// Maximum number of increased times in a table: those of the last cookies.
const INCREASED_MAX: usize = 1_024;

/// Maximum number of requests in a table: the clock differences of producers matter only for recent deletions.
const REQUESTS_MAX: usize = 16_384;

/// A deletion, or the floor of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The cookies; all of them for a floor.
    pub scope: Scope<Box<[u8]>>,
    /// Those accepted up to this time are covered.
    pub until: UnixMicros,
}

/// A deletion of all users of one DSP, which a job carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DspDeletion {
    /// The DSP.
    pub dsp_id: DspId,
    /// Cookies accepted up to this time are covered.
    pub until: UnixMicros,
}

/// A deletion in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDeletion {
    /// The deletion.
    pub deletion: Deletion,
    /// Whether a deletion of a DSP has removed all of its cookies.
    pub is_finished: bool,
}

/// The table of one node; clones share it.
#[derive(Debug, Clone)]
pub struct Deletions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// Whether any cookie can be covered. If not, checking a cookie takes no lock.
    covers_any: AtomicBool,
    entries_max: usize,
    hasher: RandomState,
    /// Changes when deletions become durable, take effect, or are removed from the table.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Table {
    /// Time up to which cookies are covered, by hash of user and DSP.
    until: HashMap<u64, UnixMicros, RandomState>,
    /// Requests of the latest of these deletions, by the same hash.
    requests: HashMap<u64, Request, RandomState>,
    /// The latest times that were given to cookies accepted after a deletion, by their acceptance on this host's clock.
    increased: BTreeMap<UnixMicros, UnixMicros>,
    floor: UnixMicros,
    /// While the cookies of another node are copied: the floor of its table. It covers delayed cookies of streams, but not the
    /// copied ones. [`UnixMicros::MAX`] while it is unknown.
    copied_floor: Option<UnixMicros>,
    /// Unfinished jobs by DSP: the time of the latest deletion, and the number of the oldest.
    jobs: BTreeMap<DspId, (UnixMicros, u64)>,
    /// DSPs in the retry queue, and the number of their oldest entry with deletions.
    queued: BTreeMap<DspId, Option<u64>>,
    /// The highest number of any deletion that became durable before it took effect.
    newest: u64,
}

impl Deletion {
    /// The floor of a table as a deletion, because stores keep it like one.
    pub fn floor(until: UnixMicros) -> Self {
        Self {
            scope: Scope::All,
            until,
        }
    }

    /// This deletion, if it is one of a DSP.
    pub fn of_dsp(&self) -> Option<DspDeletion> {
        match self.scope {
            Scope::Dsp(dsp_id) => Some(DspDeletion {
                dsp_id,
                until: self.until,
            }),
            _ => None,
        }
    }

    /// This deletion as a record without an age; `None` for a floor, or a user id that is not UTF-8.
    pub fn record(&self) -> Option<Record<'_>> {
        let scope = match &self.scope {
            Scope::Match(user, dsp_id) => Scope::Match(str::from_utf8(user).ok()?, *dsp_id),
            Scope::User(user) => Scope::User(str::from_utf8(user).ok()?),
            Scope::Dsp(dsp_id) => Scope::Dsp(*dsp_id),
            Scope::All => return None,
        };
        let age_micros = 0;
        Some(Record::Delete { scope, age_micros })
    }

    /// The ids of its scope; no user is empty, no DSP is 0.
    pub fn ids(&self) -> (&[u8], DspId) {
        self.scope.as_ref().map(|user| &**user).ids()
    }

    /// Whether it removes cookies of a user from the collection of this DSP.
    pub fn removes_from(&self, dsp_id: DspId) -> bool {
        match self.scope {
            Scope::Match(_, of) => of == dsp_id,
            Scope::User(_) => true,
            Scope::Dsp(_) | Scope::All => false,
        }
    }
}

impl From<DspDeletion> for Deletion {
    fn from(deletion: DspDeletion) -> Self {
        Self {
            scope: Scope::Dsp(deletion.dsp_id),
            until: deletion.until,
        }
    }
}

impl StoredDeletion {
    /// Whether a store must keep the deletion, given the floor of the table. An unfinished job must continue after a restart.
    pub fn is_needed(&self, floor: UnixMicros) -> bool {
        let is_job = self.deletion.of_dsp().is_some() && !self.is_finished;
        is_job || self.deletion.until >= floor
    }
}

impl Default for Deletions {
    fn default() -> Self {
        Self::new(32 << 20)
    }
}

impl Deletions {
    /// An empty table of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                table: Mutex::default(),
                covers_any: AtomicBool::new(false),
                entries_max: (bytes_max / ENTRY_BYTES).max(1),
                hasher: RandomState::default(),
                changes: watch::Sender::new(()),
            }),
        }
    }

    /// Adds deletions in the store.
    pub fn load(&self, stored: impl IntoIterator<Item = StoredDeletion>) {
        let mut latest = UnixMicros::NONE;
        for it in stored {
            self.add(&it.deletion);
            latest = it.deletion.until.max(latest);
            self.begin_jobs((!it.is_finished).then_some(&it.deletion));
        }
        let here = latest.before(CLOCK_AHEAD_MICROS_MAX);
        let mut table = self.shared.table.lock();
        table.add_increased(here, latest.after(AFTER_DELETION_MICROS));
    }

    /// Adds a deletion or a floor.
    pub fn add(&self, deletion: &Deletion) {
        self.add_received(deletion, None);
    }

    /// Adds a deletion that covers cookies of other producers according to its request, if known.
    pub fn add_received(&self, deletion: &Deletion, request: Option<Request>) {
        let mut table = self.shared.table.lock();
        let (user_id, dsp_id) = deletion.ids();
        let hash = self.hash(user_id, dsp_id);
        table.set_request(hash, request);
        let until = match deletion.scope {
            Scope::All => &mut table.floor,
            _ => table.until.entry(hash).or_default(),
        };
        *until = deletion.until.max(*until);
        self.shared.covers_any.store(true, Ordering::Relaxed);
        if table.until.len() > self.shared.entries_max {
            table.remove_oldest_eighth();
            self.notify();
        }
    }

    /// The latest increased time of cookies accepted up to `here`, which a deletion at that time must cover; 0 for none.
    pub fn increased_until(&self, here: UnixMicros) -> UnixMicros {
        let table = self.shared.table.lock();
        let last = table.increased.range(..=here).next_back();
        last.map_or(UnixMicros::NONE, |(_, to)| *to)
    }

    /// Starts the jobs of DSP deletions that have become durable: all earlier cookies are in the store. Must be called
    /// before their durability is reported.
    pub fn begin_jobs<'a>(&self, durable: impl IntoIterator<Item = &'a Deletion>) {
        let mut table = self.shared.table.lock();
        for deletion in durable.into_iter().filter_map(Deletion::of_dsp) {
            table.newest += 1;
            let next = (UnixMicros::NONE, table.newest);
            let (until, _) = table.jobs.entry(deletion.dsp_id).or_insert(next);
            *until = deletion.until.max(*until);
        }
    }

    /// Whether to store an arriving cookie of this pair: if no deletion covers it, returns the time up to which stored cookies are
    /// deleted; 0 for none.
    pub fn admit(
        &self,
        user_id: &[u8],
        dsp_id: DspId,
        arriving: &Arriving<'_>,
    ) -> Option<UnixMicros> {
        let Some(Reader { table, .. }) = self.reader() else {
            return Some(UnixMicros::NONE);
        };
        let copied = table.copied_floor.filter(|_| arriving.is_delayed);
        let floor = table.floor.max(copied.unwrap_or_default());
        // The floor also covers cookies of other users, so the differences of clocks extend it only for delayed ones.
        let is_early = arriving.is_delayed && arriving.is_covered_until(floor);
        if arriving.accepted <= floor || is_early {
            return None;
        }
        let mut latest = table.floor;
        for hash in &self.hashes(user_id, dsp_id) {
            let Some(until) = table.until.get(hash) else {
                continue;
            };
            let request = arriving.offset.and_then(|_| table.requests.get(hash));
            let is_covered = match request {
                Some(request) => request.covers(arriving),
                None => arriving.is_covered_until(*until),
            };
            if is_covered {
                return None;
            }
            latest = latest.max(*until);
        }
        Some(latest)
    }

    /// The time with which to store an admitted cookie, because stores only compare it with that of the deletion.
    pub fn time_after(
        &self,
        until: UnixMicros,
        arriving: &Arriving<'_>,
        accepted: UnixMicros,
    ) -> UnixMicros {
        let after = until.after(AFTER_DELETION_MICROS);
        if until > UnixMicros::NONE && accepted < after {
            let mut table = self.shared.table.lock();
            table.add_increased(arriving.here(), after);
            after
        } else {
            accepted
        }
    }

    /// Time up to which received cookies of this pair count as deleted; 0 for none.
    pub fn until(&self, user_id: &[u8], dsp_id: DspId) -> UnixMicros {
        let reader = self.reader();
        let latest = |it: Reader<'_>| it.table.floor.max(it.latest(user_id, dsp_id));
        reader.map_or(UnixMicros::NONE, latest)
    }

    /// Time up to which stored cookies of this pair are deleted; 0 for none. Unlike
    /// [`until`](Self::until), it applies the floor only to DSPs with deletions in the retry queue. All other deletions
    /// below the floor have already removed their cookies, except those of unfinished jobs.
    pub fn deleted_until(&self, user_id: &[u8], dsp_id: DspId) -> UnixMicros {
        let reader = self.reader();
        reader.map_or(UnixMicros::NONE, |it| it.deleted_until(user_id, dsp_id))
    }

    /// Locks the table to read about several pairs; `None` if nothing is deleted.
    pub fn reader(&self) -> Option<Reader<'_>> {
        let covers_any = self.shared.covers_any.load(Ordering::Relaxed);
        covers_any.then(|| Reader {
            deletions: self,
            table: self.shared.table.lock(),
        })
    }

    /// The hashes of the scopes that cover this pair: the pair, the user, and the DSP.
    fn hashes(&self, user_id: &[u8], dsp_id: DspId) -> [u64; 3] {
        let scopes = [(user_id, dsp_id), (user_id, DspId::NONE), (b"", dsp_id)];
        scopes.map(|(user_id, dsp_id)| self.hash(user_id, dsp_id))
    }

    /// Removes deletions that were requested `RETENTION_MICROS` before `now`.
    pub fn remove_old(&self, now: UnixMicros) {
        let before = now.before(RETENTION_MICROS);
        let mut table = self.shared.table.lock();
        // Older cookies are still copied, and the floor would cover them.
        if table.copied_floor.is_none() {
            table.remove_until(before);
        }
    }

    /// The time up to which all cookies count as deleted, because earlier deletions were removed from the table; 0 for
    /// none.
    pub fn floor(&self) -> UnixMicros {
        self.shared.table.lock().floor
    }

    /// The number of deletions, and its maximum.
    pub fn size(&self) -> (usize, usize) {
        (
            self.shared.table.lock().until.len(),
            self.shared.entries_max,
        )
    }

    /// The DSPs in the retry queue.
    pub fn queued_dsps(&self) -> Vec<DspId> {
        self.shared.table.lock().queued.keys().copied().collect()
    }

    /// Whether the retry queue has cookies of this DSP.
    pub fn is_queued(&self, dsp_id: DspId) -> bool {
        self.shared.table.lock().queued.contains_key(&dsp_id)
    }

    /// The jobs that may run now. While a DSP is in the retry queue, a retry may still write one of its cookies.
    pub fn due_jobs(&self) -> Vec<DspDeletion> {
        let table = self.shared.table.lock();
        let is_due = |it: &DspDeletion| !table.queued.contains_key(&it.dsp_id);
        table.jobs().filter(is_due).collect()
    }

    /// The deletions of DSPs with unfinished jobs.
    pub fn jobs(&self) -> Vec<DspDeletion> {
        self.shared.table.lock().jobs().collect()
    }

    /// Ends a job that has removed all of its cookies.
    pub fn finish_job(&self, job: &DspDeletion) {
        let mut table = self.shared.table.lock();
        let current = table.jobs.get(&job.dsp_id);
        if current.is_some_and(|(until, _)| *until == job.until) {
            table.jobs.remove(&job.dsp_id);
        }
        drop(table);
        self.notify();
    }

    /// Sets the DSPs in the retry queue, the number of their oldest entry with deletions, and the highest number of any
    /// entry.
    pub fn set_queued(&self, dsps: BTreeMap<DspId, Option<u64>>, newest: u64) {
        let mut table = self.shared.table.lock();
        table.queued = dsps;
        table.newest = table.newest.max(newest);
        drop(table);
        self.notify();
    }

    /// The numbers from that of the oldest durable deletion that has not taken effect up to, but not including, that of
    /// the next deletion; empty if all have taken effect. Deletions in the retry queue or with an unfinished job have
    /// not taken effect.
    pub fn unapplied(&self) -> Range<u64> {
        let table = self.shared.table.lock();
        let next = table.newest + 1;
        let queued = table.queued.values().flatten();
        let numbers = queued.chain(table.jobs.values().map(|(_, oldest)| oldest));
        numbers.copied().min().unwrap_or(next)..next
    }

    /// Notifies waiters that deletions became durable, took effect, or were removed from the table.
    pub fn notify(&self) {
        self.shared.changes.send_replace(());
    }

    /// Changes when deletions become durable, take effect, or are removed from the table.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    fn hash(&self, user_id: &[u8], dsp_id: DspId) -> u64 {
        let mut hasher = self.shared.hasher.build_hasher();
        hasher.write_u32(dsp_id.0);
        hasher.write(user_id);
        hasher.finish()
    }
}

impl Table {
    fn jobs(&self) -> impl Iterator<Item = DspDeletion> {
        self.jobs.iter().map(|(dsp_id, (until, _))| DspDeletion {
            dsp_id: *dsp_id,
            until: *until,
        })
    }

    /// Records that a cookie was stored with an increased time. `here` is its acceptance by the clock of this host.
    fn add_increased(&mut self, here: UnixMicros, to: UnixMicros) {
        let before = self.increased.range(..=here).next_back();
        if before.is_some_and(|(_, before)| *before >= to) {
            return;
        }
        // Both times increase from entry to entry.
        let next = |it: &BTreeMap<UnixMicros, UnixMicros>| {
            it.range(here..).next().map(|(at, to)| (*at, *to))
        };
        while let Some((at, _)) = next(&self.increased).filter(|(_, other)| *other <= to) {
            self.increased.remove(&at);
        }
        self.increased.insert(here, to);
        if self.increased.len() > INCREASED_MAX {
            self.increased.pop_first();
        }
    }

    /// Adds the request of a deletion, before the deletion itself. Without a request, no cookie up to the time of the deletion
    /// is admitted.
    fn set_request(&mut self, hash: u64, request: Option<Request>) {
        let strict = self.until.get(&hash).copied().unwrap_or_default();
        let known = self.requests.remove(&hash);
        let Some(new) = request else { return };
        if self.requests.len() == REQUESTS_MAX {
            self.requests.clear();
        }
        let merged = match known {
            Some(known) => known.merged_with(new),
            None => new.after(strict),
        };
        self.requests.insert(hash, merged);
    }

    /// Removes the deletions up to this time.
    fn remove_until(&mut self, before: UnixMicros) {
        let mut removed = UnixMicros::NONE;
        self.until.retain(|_, until| {
            if *until <= before {
                removed = removed.max(*until);
            }
            *until > before
        });
        self.floor = self.floor.max(removed);
        self.requests
            .retain(|hash, _| self.until.contains_key(hash));
    }

    /// Removes the oldest eighth, so that a full table does not remove one deletion for each new one.
    fn remove_oldest_eighth(&mut self) {
        let mut times: Vec<UnixMicros> = self.until.values().copied().collect();
        let at = times.len() / 8;
        let (_, before, _) = times.select_nth_unstable(at);
        self.remove_until(*before);
    }
}

#[cfg(test)]
mod tests;
