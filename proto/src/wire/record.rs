//! The records of a log.

use crate::units::{DspId, UnixMicros};

/// What a cookie message of a stream states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// A match.
    Set(CookieRef<'a>),
    /// A deletion of the matches in its scope that were accepted up to its time.
    Delete {
        /// The deleted matches; never [`Scope::All`] on a stream.
        scope: Scope<&'a str>,
        /// Time from the time of the deletion to the time of its chunk, in microseconds.
        age_micros: u64,
    },
}

/// A match that borrows its strings from an encoded chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieRef<'a> {
    /// The exchange's id of the user.
    pub user_id: &'a str,
    /// The DSP.
    pub dsp_id: DspId,
    /// The DSP's id of the user; never empty.
    pub buyer_uid: &'a str,
    /// Time from its acceptance to the time of its chunk, in microseconds.
    pub age_micros: u64,
}

/// The matches that a deletion covers; `U` is a user id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope<U> {
    /// The match of one user at one DSP.
    Match(U, DspId),
    /// The matches of one user at all DSPs.
    User(U),
    /// The matches of all users at one DSP.
    Dsp(DspId),
    /// All matches: deletions so old that a consumer no longer knows their scopes.
    All,
}

impl<'a> Record<'a> {
    /// Time from its acceptance to the time of its chunk, in microseconds.
    pub fn age_micros(&self) -> u64 {
        match *self {
            Self::Set(CookieRef { age_micros, .. }) | Self::Delete { age_micros, .. } => age_micros,
        }
    }

    /// Time of acceptance, given the time of its chunk; 0 if the age exceeds it.
    pub fn accepted(&self, chunk: UnixMicros) -> UnixMicros {
        chunk.before(self.age_micros())
    }

    /// The record with another age.
    #[must_use]
    pub fn with_age(self, age_micros: u64) -> Self {
        match self {
            Self::Set(cookie) => Self::Set(CookieRef {
                age_micros,
                ..cookie
            }),
            Self::Delete { scope, .. } => Self::Delete { scope, age_micros },
        }
    }

    /// The match, unless this is a deletion.
    pub fn cookie(self) -> Option<CookieRef<'a>> {
        match self {
            Self::Set(cookie) => Some(cookie),
            Self::Delete { .. } => None,
        }
    }
}

impl CookieRef<'_> {
    /// Time of acceptance, like [`Record::accepted`].
    pub fn accepted(&self, chunk: UnixMicros) -> UnixMicros {
        chunk.before(self.age_micros)
    }
}

impl<U> Scope<U> {
    /// The scope with these ids, as messages and stores have them: no user is empty, no DSP is 0.
    pub fn from_ids(user_id: U, dsp_id: DspId) -> Self
    where
        U: AsRef<[u8]>,
    {
        match (user_id.as_ref().is_empty(), dsp_id) {
            (true, DspId::NONE) => Self::All,
            (true, dsp_id) => Self::Dsp(dsp_id),
            (false, DspId::NONE) => Self::User(user_id),
            (false, dsp_id) => Self::Match(user_id, dsp_id),
        }
    }

    /// The ids from which [`from_ids`](Self::from_ids) makes this scope.
    pub fn ids(self) -> (U, DspId)
    where
        U: Default,
    {
        match self {
            Self::Match(user_id, dsp_id) => (user_id, dsp_id),
            Self::User(user_id) => (user_id, DspId::NONE),
            Self::Dsp(dsp_id) => (U::default(), dsp_id),
            Self::All => (U::default(), DspId::NONE),
        }
    }

    /// The scope with another form of the user id.
    pub fn map<V>(self, user_id: impl FnOnce(U) -> V) -> Scope<V> {
        match self {
            Self::Match(user, dsp_id) => Scope::Match(user_id(user), dsp_id),
            Self::User(user) => Scope::User(user_id(user)),
            Self::Dsp(dsp_id) => Scope::Dsp(dsp_id),
            Self::All => Scope::All,
        }
    }

    /// The scope with a reference to the user id.
    pub fn as_ref(&self) -> Scope<&U> {
        match self {
            Self::Match(user, dsp_id) => Scope::Match(user, *dsp_id),
            Self::User(user) => Scope::User(user),
            Self::Dsp(dsp_id) => Scope::Dsp(*dsp_id),
            Self::All => Scope::All,
        }
    }
}
