//! Requests of lookups and their limits.

use std::{borrow::Cow, sync::Arc, time::Duration};

use percent_encoding::percent_decode_str;
use proto::{ids::is_user_id, limits::USER_ID_BYTES_MAX, units::DspId};
use serde::Deserialize;

/// Maximum number of users, of DSPs, and of pairs of both in a request.
const USERS_MAX: usize = 1_000;
const DSPS_MAX: usize = 256;
const PAIRS_MAX: usize = 20_000;

/// Maximum bytes of a request body.
pub(super) const BODY_BYTES_MAX: usize = 128 << 10;

/// Deadline of a request that states none, and the range of the others, in milliseconds.
pub(super) const DEADLINE_DEFAULT: Duration = Duration::from_millis(20);
pub(super) const DEADLINE_MAX: Duration = Duration::from_secs(1);

/// Why a lookup was not answered. The text contains no id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// The request is invalid.
    Invalid(String),
    /// The request exceeds a limit.
    TooLarge(String),
    /// Too many requests or answers are in progress.
    Busy,
    /// Nothing can be read.
    Unavailable(String),
}

/// A user of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AskedUser<'a> {
    /// A valid user id.
    Valid(Cow<'a, str>),
    /// No user can have this id.
    Invalid,
}

impl<'a> AskedUser<'a> {
    /// A user with this id.
    pub(super) fn new(user_id: Cow<'a, str>) -> Self {
        match is_user_id(user_id.as_bytes()) {
            true => Self::Valid(user_id),
            false => Self::Invalid,
        }
    }

    /// The id, if it is valid.
    pub(super) fn valid(&self) -> Option<&str> {
        match self {
            Self::Valid(user_id) => Some(user_id),
            Self::Invalid => None,
        }
    }
}

/// A valid batch request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchRequest<'a> {
    pub(super) users: Vec<AskedUser<'a>>,
    /// In ascending order.
    pub(super) dsps: Arc<[DspId]>,
    pub(super) deadline: Duration,
}

/// The body of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    users: Vec<Id<'a>>,
    dsps: Vec<u32>,
    deadline_ms: Option<u64>,
}

/// Borrows from the body unless it contains escapes.
#[derive(Deserialize)]
struct Id<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> BatchRequest<'a> {
    /// Parses a JSON body.
    ///
    /// # Errors
    /// A rejection, without any part of the body.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, Rejection> {
        let expected = r#"expected {"users":["ID"],"dsps":[17],"deadline_ms":20}"#;
        // serde would also accept an array of the values.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Rejection::Invalid(format!("not a JSON object; {expected}")));
        }
        let body: Body<'_> = serde_json::from_slice(body).map_err(|error| {
            Rejection::Invalid(format!(
                "invalid JSON, or an unknown, missing or mistyped field, at line {} column {}; {expected}",
                error.line(),
                error.column(),
            ))
        })?;
        let deadline = match body.deadline_ms {
            None => DEADLINE_DEFAULT,
            Some(millis @ 1..=1_000) => Duration::from_millis(millis),
            Some(_) => {
                let why = "deadline_ms must be 1 to 1000";
                return Err(Rejection::Invalid(why.to_owned()));
            }
        };
        let users = body.users.into_iter().map(|Id(user_id)| user_id);
        Self::new(users, &body.dsps, deadline)
    }

    /// A request within the limits.
    ///
    /// # Errors
    /// A rejection, without any part of the request.
    pub(super) fn new(
        user_ids: impl ExactSizeIterator<Item = Cow<'a, str>>,
        dsps: &[u32],
        deadline: Duration,
    ) -> Result<Self, Rejection> {
        let users = user_ids.len();
        if users == 0 || dsps.is_empty() {
            let why = "at least one user and one DSP are required";
            return Err(Rejection::Invalid(why.to_owned()));
        }
        if users > USERS_MAX || dsps.len() > DSPS_MAX || users * dsps.len() > PAIRS_MAX {
            return Err(Rejection::TooLarge(format!(
                "{users} users and {} DSPs; the maximum is {USERS_MAX} users, {DSPS_MAX} DSPs, and {PAIRS_MAX} for the product",
                dsps.len()
            )));
        }
        Ok(Self {
            users: user_ids.map(AskedUser::new).collect(),
            dsps: sorted(dsps.iter().copied().map(DspId))?,
            deadline,
        })
    }
}

/// DSPs in ascending order, each once.
fn sorted(dsps: impl Iterator<Item = DspId>) -> Result<Arc<[DspId]>, Rejection> {
    let mut dsps: Vec<_> = dsps.collect();
    dsps.sort_unstable();
    dsps.dedup();
    if dsps.first() == Some(&DspId::NONE) {
        let why = "a DSP must be a number from 1 to 4294967295";
        return Err(Rejection::Invalid(why.to_owned()));
    }
    Ok(dsps.into())
}

/// The DSPs in the query of a user's path, `dsps=17,42`; `None` for all.
///
/// # Errors
/// A rejection.
pub(super) fn dsps_of_query(query: &str) -> Result<Option<Arc<[DspId]>>, Rejection> {
    let invalid = || {
        Rejection::Invalid(format!(
            "invalid query; expected dsps= and 1 to {DSPS_MAX} DSPs, as in dsps=17,42"
        ))
    };
    if query.is_empty() {
        return Ok(None);
    }
    let list = query.strip_prefix("dsps=").ok_or_else(invalid)?;
    let list = percent_decode_str(list)
        .decode_utf8()
        .map_err(|_| invalid())?;
    let dsps: Result<Vec<DspId>, _> = list.split(',').map(str::parse).collect();
    let dsps = dsps.map_err(|_| invalid())?;
    if dsps.len() > DSPS_MAX {
        return Err(invalid());
    }
    sorted(dsps.into_iter()).map(Some)
}

/// The user id in a path, after percent-decoding.
///
/// # Errors
/// A rejection.
pub(super) fn user_id_of_path(encoded: &str) -> Result<Cow<'_, str>, Rejection> {
    match percent_decode_str(encoded).decode_utf8() {
        Ok(user_id) if is_user_id(user_id.as_bytes()) => Ok(user_id),
        _ => Err(Rejection::Invalid(format!(
            "invalid user id; expected 1 to {USER_ID_BYTES_MAX} bytes of printable ASCII without spaces"
        ))),
    }
}
