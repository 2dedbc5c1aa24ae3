//! State of the archive and counts of all holes, for metrics and `/readyz`.

use std::{collections::BTreeMap, sync::Arc};

use metric_defs::consumer;
use parking_lot::Mutex;
use proto::units::UnixMicros;
use runtime::metrics::{Family, Registry, as_f64, family};

use super::{
    archive::{ArchiveError, Info},
    cursors::HoleId,
    hole::{Counts, Hole},
};
use crate::clock;

/// Maximum number of open holes that a description names.
const NAMES_MAX: usize = 16;

/// State and counts; clones share them. Empty without an archive.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<Option<Progress>>>);

#[derive(Debug, Default)]
struct Progress {
    state: State,
    /// Whether everything is read from the archive. Then the follower determines the state.
    is_following: bool,
    /// Why the archive cannot be read.
    error: String,
    /// The time of the newest message; that of the last one read by a follower.
    newest: Option<UnixMicros>,
    /// The archive when it was last checked.
    info: Option<Info>,
    /// Cookies of all holes.
    missing: u64,
    /// Counts of closed holes.
    closed: Counts,
    /// Messages that could not be used.
    rejected: u64,
    open: BTreeMap<HoleId, OpenStatus>,
}

/// An open hole.
#[derive(Debug)]
struct OpenStatus {
    name: String,
    /// Whether the number of its cookies is known.
    is_exact: bool,
    counts: Counts,
}

/// State of the archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// The connection is being established.
    #[default]
    Connecting,
    /// The archive can be read.
    Current,
    /// The archive does not respond.
    Unavailable,
    /// Reading is refused until somebody changes a setting.
    Refused,
}

impl State {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Connecting, "connecting"),
        (Self::Current, "current"),
        (Self::Unavailable, "unavailable"),
        (Self::Refused, "refused"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl Status {
    /// The status of a consumer with an archive.
    pub(super) fn begin(is_following: bool) -> Self {
        Self(Arc::new(Mutex::new(Some(Progress {
            is_following,
            ..Progress::default()
        }))))
    }

    /// Whether everything is read from the archive.
    pub fn is_following(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|it| it.is_following)
    }

    /// Whether there is an archive.
    pub fn has_archive(&self) -> bool {
        self.0.lock().is_some()
    }

    fn update<T>(&self, update: impl FnOnce(&mut Progress) -> T) -> Option<T> {
        self.0.lock().as_mut().map(update)
    }

    /// Records whether the archive can be read, and logs each change once.
    pub(super) fn checked(&self, checked: &Result<Info, ArchiveError>) {
        self.update(|it| {
            it.info = checked.as_ref().ok().copied().or(it.info);
            if !it.is_following {
                it.newest = checked.as_ref().map_or(it.newest, |info| info.newest);
                it.set_state(checked.as_ref().err());
            }
        });
    }

    /// Records whether a follower reads the archive, and logs each change once.
    pub(super) fn set_followed(&self, error: Option<&ArchiveError>) {
        self.update(|it| it.set_state(error));
    }

    /// Records that a follower has read a message of this time.
    pub(super) fn read(&self, archived: UnixMicros) {
        self.update(|it| it.newest = Some(archived));
    }

    /// Counts cookies that a follower has read again.
    pub(super) fn repeated(&self, cookies: u64) {
        self.update(|it| it.closed.duplicates += cookies);
    }

    /// Opens a hole.
    pub(super) fn open(&self, id: HoleId, hole: &Hole) {
        self.update(|it| {
            it.missing += hole.cookies();
            let open = OpenStatus {
                name: hole.to_string(),
                is_exact: hole.restart.is_none(),
                counts: Counts::default(),
            };
            it.open.insert(id, open);
        });
    }

    /// Records a hole whose cookies are lost, because too many others are open.
    pub(super) fn refused(&self, cookies: u64, lost: &Counts) {
        self.update(|it| {
            it.missing += cookies;
            it.closed.add(lost);
        });
    }

    /// Records that a gap was added to an earlier hole.
    pub(super) fn added(&self, id: HoleId, earlier: HoleId) {
        self.update(|it| {
            if let Some(added) = it.open.remove(&id)
                && let Some(earlier) = it.open.get_mut(&earlier)
            {
                let (first, _) = earlier.name.rsplit_once(' ').unwrap_or_default();
                let (_, last) = added.name.rsplit_once(' ').unwrap_or_default();
                earlier.name = format!("{first} {last}");
            }
        });
    }

    /// Records the counts of an open hole.
    pub(super) fn progressed(&self, id: HoleId, counts: &Counts) {
        self.update(|it| {
            if let Some(open) = it.open.get_mut(&id) {
                // The number of cookies that are missing after a restart is not known before they are found.
                if !open.is_exact {
                    it.missing += counts.found() - open.counts.found();
                }
                open.counts = *counts;
            }
        });
    }

    /// Records the counts of a hole that is closed.
    pub(super) fn closed(&self, id: HoleId, counts: &Counts) {
        self.progressed(id, counts);
        self.update(|it| {
            it.open.remove(&id);
            it.closed.add(counts);
        });
    }

    /// Records that cookies of an absent producer were found.
    pub(super) fn followed(&self, before: &Counts, after: &Counts) {
        self.update(|it| {
            it.missing += after.found() - before.found();
            it.closed.add(after);
            it.closed.subtract(before);
        });
    }

    /// Counts a message that cannot be used.
    pub(super) fn rejected(&self) {
        self.update(|it| it.rejected += 1);
    }

    /// The state in one line; `None` without an archive. An error if a follower cannot read it.
    pub fn describe(&self) -> Option<Result<String, String>> {
        self.update(|it| {
            let error = Some(&it.error).filter(|error| !error.is_empty());
            let error = error.map(|error| format!(": {error}"));
            let holes = it.open.values().map(|OpenStatus { name, counts, .. }| {
                let (recovered, lost) = (counts.recovered, counts.lost());
                format!("; recovering {name} ({recovered} recovered, {lost} lost)")
            });
            let more = it.open.len().saturating_sub(NAMES_MAX);
            let more = Some(more).filter(|more| *more > 0);
            let more = more.map(|more| format!("; {more} more holes"));
            let holes: String = holes.take(NAMES_MAX).chain(more).collect();
            let age = it.newest.filter(|_| it.is_following);
            let age = age.map(|newest| clock::now().since(newest) / 1_000_000);
            let age = age.map(|age| format!("; following, newest message {age} s old"));
            let (state, error) = (it.state.name(), error.unwrap_or_default());
            let description = format!("{state}{error}{}{holes}", age.unwrap_or_default());
            if it.is_following && it.state != State::Current {
                return Err(description);
            }
            Ok(description)
        })
    }

    /// Registers the metrics; without an archive they have no values.
    ///
    /// # Errors
    /// When a name is already registered.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let status = self.clone();
        registry.read(move || status.families())
    }

    /// Metrics of recovery, which have no series without an archive.
    fn families(&self) -> Vec<Family> {
        let progress = self.0.lock();
        let progress = progress.as_ref();
        let total = progress.map(Progress::total).unwrap_or_default();
        let value = |of: &dyn Fn(&Progress) -> u64| {
            let value = progress.map(|it| ([], as_f64(of(it))));
            value.into_iter()
        };
        let lost = total.lost_by_reason();
        let lost = lost.map(|(reason, lost)| ([reason], as_f64(lost)));
        let age = |at: Option<UnixMicros>| {
            let age = at.map(|at| ([], as_f64(clock::now().since(at)) / 1e6));
            age.into_iter()
        };
        let newest = progress.and_then(|it| it.newest);
        let info = progress.and_then(|it| it.info);
        let bytes = |bytes: Option<u64>| bytes.map(|it| ([], as_f64(it))).into_iter();
        let bytes_max = bytes(info.and_then(|it| it.bytes_max));
        let states = State::ALL.iter().filter_map(|(state, name)| {
            let is_state = progress?.state == *state;
            Some(([*name], f64::from(u8::from(is_state))))
        });
        vec![
            family(consumer::RECOVERY_MISSING, value(&|it| it.missing)),
            family(consumer::RECOVERY_RECOVERED, value(&|_| total.recovered)),
            family(consumer::RECOVERY_LOST, lost.filter(|_| progress.is_some())),
            family(
                consumer::RECOVERY_RECOVERING,
                value(&|it| it.missing - total.recovered - total.lost()),
            ),
            family(consumer::RECOVERY_HOLES, value(&|it| it.open.len() as u64)),
            family(consumer::RECOVERY_DUPLICATES, value(&|_| total.duplicates)),
            family(consumer::RECOVERY_REORDERED, value(&|_| total.reordered)),
            family(consumer::RECOVERY_REJECTED, value(&|it| it.rejected)),
            family(consumer::RECOVERY_AGE_SECONDS, age(newest)),
            family(
                consumer::RECOVERY_OLDEST_SECONDS,
                age(info.and_then(|it| it.oldest)),
            ),
            family(consumer::RECOVERY_BYTES, bytes(info.map(|it| it.bytes))),
            family(consumer::RECOVERY_BYTES_MAX, bytes_max),
            family(consumer::RECOVERY_STATE, states),
        ]
    }
}

impl Progress {
    /// Records the state, and logs each change once.
    fn set_state(&mut self, error: Option<&ArchiveError>) {
        let state = match error {
            None => State::Current,
            Some(ArchiveError::Unavailable(_)) => State::Unavailable,
            Some(ArchiveError::Refused(_)) => State::Refused,
        };
        let error = error.map(ArchiveError::to_string).unwrap_or_default();
        let has_new_reason = state == State::Refused && self.error != error;
        if self.state != state || has_new_reason {
            let state = state.name();
            if error.is_empty() {
                tracing::info!(state, "archive can be read");
            } else {
                tracing::warn!(state, error, "archive cannot be read, retrying");
            }
        }
        (self.state, self.error) = (state, error);
    }

    /// Counts of all holes.
    fn total(&self) -> Counts {
        let mut total = self.closed;
        for open in self.open.values() {
            total.add(&open.counts);
        }
        total
    }
}
