//! Lookups: the live matches of users, for bidders on their own [port], and for people on the admin port.
//!
//! A lookup first takes the matches that the store has in memory, without blocking. Only if users are missing does it wait for the store,
//! at most until its deadline. Expired and deleted matches are omitted after the read, with one pass over the deletions for up to 100
//! users, so that no deletion can take effect between the check and the read.
//!
//! No user id, buyer uid or token occurs in logs, metrics or errors of this module.

mod answer;
mod connection;
mod grpc;
mod http;
pub mod metrics;
pub mod port;
pub mod request;
pub mod stored_cookies;
pub mod user;
pub mod why;

use std::{sync::Arc, time::Duration};

use proto::units::{DspId, UnixMicros};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::yield_now,
    time::{Instant, timeout_at},
};

use self::{
    answer::Answer,
    request::{AskedUser, Rejection},
};
use crate::{
    deletions::{self, Deletions},
    producers::Producers,
    store::{Lookup, LookupQuery, LookupResult, StoredMatch, UserMatches},
};

/// Time after the deadline at which a store counts as hanging.
const LATE: Duration = Duration::from_millis(1);

/// Users per lock of the table of deletions.
const USERS_PER_LOCK: usize = 100;

/// Reads live matches from the store.
#[derive(Debug, Clone)]
pub struct Lookups {
    /// The store.
    pub store: Arc<dyn Lookup>,
    /// Its deletions.
    pub deletions: Deletions,
    /// The producers, whose cursors are loaded after the deletions.
    pub producers: Producers,
}

/// The DSPs of a lookup, and when their matches expire.
#[derive(Debug)]
struct Selection<'a> {
    store: &'a dyn Lookup,
    now: UnixMicros,
    resolution: u64,
    /// In ascending order; `None` for all.
    dsps: Option<Arc<[DspId]>>,
    /// Matches of each of these DSPs that were accepted before have expired.
    expired_before: Vec<UnixMicros>,
}

/// The state of a stored match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchState {
    /// It has neither expired nor been deleted.
    Live,
    /// It is older than the time to live of its DSP.
    Expired,
    /// A deletion covers it.
    Deleted,
}

/// Counts of a lookup, by DSP of its selection.
#[derive(Debug, Default)]
struct Tally {
    /// Users that were read.
    users: u64,
    /// Live and expired matches.
    found: Vec<(u64, u64)>,
    /// Acceptance of the first live match.
    first: Option<UnixMicros>,
}

impl Lookups {
    fn selection(&self, dsps: Option<Arc<[DspId]>>) -> Selection<'_> {
        let now = self.store.now();
        let of = |dsp_id: &DspId| self.store.ttls().expired_before(*dsp_id, now);
        Selection {
            store: &*self.store,
            now,
            resolution: self.store.resolution_micros(),
            expired_before: dsps.iter().flat_map(|it| it.iter()).map(of).collect(),
            dsps,
        }
    }

    /// Fails until the deletions are loaded, because the store may still have deleted matches.
    fn check_loaded(&self) -> Result<(), Rejection> {
        if self.producers.is_loaded() {
            Ok(())
        } else {
            Err(Rejection::Unavailable(
                "deletions are not loaded yet".to_owned(),
            ))
        }
    }

    /// The matches of valid users, if all are in memory.
    fn in_memory(&self, users: &[AskedUser<'_>]) -> Option<Vec<Option<UserMatches>>> {
        let mut found = Vec::with_capacity(users.len());
        for user in users {
            found.push(match user.valid() {
                Some(user_id) => Some(self.store.in_memory(user_id)?),
                None => None,
            });
        }
        Some(found)
    }

    /// The matches of valid users, by the deadline. `begin` is called if the store must be read.
    async fn find(
        &self,
        users: &[AskedUser<'_>],
        dsps: Option<Arc<[DspId]>>,
        deadline: Instant,
        begin: impl FnOnce() -> Result<Option<OwnedSemaphorePermit>, Rejection>,
    ) -> Result<LookupResult, Rejection> {
        self.check_loaded()?;
        match self.in_memory(users) {
            Some(users) => Ok(LookupResult {
                users,
                ..LookupResult::default()
            }),
            None => self.read(users, dsps, deadline, begin()?).await,
        }
    }

    /// Reads the matches of valid users from the store.
    async fn read(
        &self,
        users: &[AskedUser<'_>],
        dsps: Option<Arc<[DspId]>>,
        deadline: Instant,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<LookupResult, Rejection> {
        let query = LookupQuery {
            user_ids: users
                .iter()
                .filter_map(AskedUser::valid)
                .map(Into::into)
                .collect(),
            dsps,
            deadline,
            permit,
        };
        // Stores observe the deadline themselves, once they are connected.
        let looking_up = timeout_at(deadline + LATE, self.store.lookup(query));
        let late = |_| Rejection::Unavailable("no response by the deadline".to_owned());
        let found = looking_up.await.map_err(late)?;
        let mut found = found.map_err(|error| Rejection::Unavailable(error.to_string()))?;
        let mut of_valid = std::mem::take(&mut found.users).into_iter();
        let of_user = |user: &AskedUser<'_>| user.valid().and_then(|_| of_valid.next().flatten());
        found.users = users.iter().map(of_user).collect();
        Ok(found)
    }

    /// Passes the live matches of each user to `answer`. Yields to other tasks after some users.
    async fn write(
        &self,
        users: &[AskedUser<'_>],
        found: &[Option<UserMatches>],
        selection: &Selection<'_>,
        answer: &mut impl Answer,
    ) -> Tally {
        let mut tally = Tally {
            found: vec![(0, 0); selection.expired_before.len()],
            ..Tally::default()
        };
        for (users, found) in users
            .chunks(USERS_PER_LOCK)
            .zip(found.chunks(USERS_PER_LOCK))
        {
            if tally.users > 0 {
                yield_now().await;
            }
            let deletions = self.deletions.reader();
            for (user, found) in users.iter().zip(found) {
                let (Some(user_id), Some(matches)) = (user.valid(), found) else {
                    answer.without_matches(user);
                    continue;
                };
                tally.users += 1;
                answer.begin_user();
                for it in matches.iter() {
                    let Some((at, state)) = selection.state(user_id, &it, deletions.as_ref())
                    else {
                        continue;
                    };
                    let counts = tally.found.get_mut(at);
                    match state {
                        MatchState::Live => {
                            tally.first.get_or_insert(it.accepted);
                            counts.into_iter().for_each(|(live, _)| *live += 1);
                            answer.add(&it);
                        }
                        MatchState::Expired => {
                            counts.into_iter().for_each(|(_, expired)| *expired += 1);
                        }
                        MatchState::Deleted => {}
                    }
                }
                answer.end_user();
            }
        }
        tally
    }
}

impl Selection<'_> {
    /// The state of a match, and the index of its DSP; `None` if the DSP is not selected.
    fn state(
        &self,
        user_id: &str,
        it: &StoredMatch<'_>,
        deletions: Option<&deletions::Reader<'_>>,
    ) -> Option<(usize, MatchState)> {
        let (at, expired_before) = match &self.dsps {
            Some(dsps) => {
                let at = dsps.binary_search(&it.dsp_id).ok()?;
                (at, self.expired_before[at])
            }
            None => (0, self.store.ttls().expired_before(it.dsp_id, self.now)),
        };
        let deleted = deletions.map(|table| table.deleted_until(user_id.as_bytes(), it.dsp_id));
        // Stores round times of acceptance down.
        let rounded = |time: UnixMicros| UnixMicros(time.0 - time.0 % self.resolution);
        let state = if deleted.is_some_and(|until| it.accepted <= rounded(until)) {
            MatchState::Deleted
        } else if it.accepted < rounded(expired_before) {
            MatchState::Expired
        } else {
            MatchState::Live
        };
        Some((at, state))
    }
}

#[cfg(test)]
pub(crate) mod tests;
