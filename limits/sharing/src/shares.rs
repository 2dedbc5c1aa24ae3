//! Who has which share of a group's limits, for people: what the server keeps of the group is read and not changed.

use std::time::Duration;

use crate::{
    lease::key,
    member::State,
    server::{Address, Link, ServerError, number, text},
    terms::Terms,
};

const SCRIPT: &str = include_str!("shares.lua");

/// Longest time for the answer.
const WITHIN: Duration = Duration::from_secs(3);

/// Values of each row of the script's answer.
const ROW: usize = 6;

/// What one process has of one limit, as far as the server knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The limit.
    pub limit: String,
    /// The process; none for what is kept free for processes that the server does not know.
    pub member: Option<String>,
    /// What it may use at most, in millionths of the limit. All of one limit are at most the whole.
    pub share: u64,
    /// What it could use, in millionths of the limit.
    pub demand: u64,
    /// How long ago it asked.
    pub silent: Duration,
}

impl Held {
    /// Of a row of the script's answer.
    fn of(terms: &Terms, row: &[redis::Value]) -> Result<(Self, State), ServerError> {
        let (member, limit) = (text(row.first())?, text(row.get(1))?);
        let (lease, safe) = (number(row.get(2))?, number(row.get(3))?);
        let silent = number(row.get(5))?;
        let (state, share) = match silent {
            _ if silent < terms.ttl => (State::Ok, lease),
            _ if silent < terms.safe_after() => (State::Expired, lease.min(safe)),
            _ if silent < terms.forget_after => (State::Safe, safe),
            _ => (State::Floor, terms.floor()),
        };
        let held = Self {
            limit: limit.to_owned(),
            member: (!member.is_empty()).then(|| member.to_owned()),
            share,
            demand: number(row.get(4))?,
            silent: Duration::from_micros(silent),
        };
        Ok((held, state))
    }
}

/// What each process of a group has of each limit and how it stands, by limit; nothing when nobody has this group.
///
/// # Errors
/// When the server does not answer.
pub async fn read(server: &Address, group: &str) -> Result<Vec<(Held, State)>, ServerError> {
    let key = key(group);
    let link = Link::open(server, SCRIPT, group, WITHIN).await?;
    let answer = link.run(&[key], &[], WITHIN).await?;
    let Some((terms, rows)) = answer.split_first() else {
        return Ok(Vec::new());
    };
    let terms = terms_of(text(Some(terms))?)?;
    let rows = rows.chunks(ROW).map(|row| Held::of(&terms, row));
    let mut held = rows.collect::<Result<Vec<_>, _>>()?;
    held.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(held)
}

/// As the script keeps them.
fn terms_of(text: &str) -> Result<Terms, ServerError> {
    let times: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    match times.as_deref() {
        Ok(&[refresh, ttl, timeout, forget_after, members_max]) => Ok(Terms {
            refresh,
            ttl,
            timeout,
            forget_after,
            members_max,
        }),
        _ => Err(ServerError::Form),
    }
}
