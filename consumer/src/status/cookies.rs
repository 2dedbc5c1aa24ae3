//! What became of cookies: of those received, of those that never came, of those that a producer took with it.

use runtime::status::families::Families;
use serde::Serialize;

use crate::{ledger::Figures, metrics};

/// What became of every cookie received since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// All of them.
    pub received: u64,
    /// Written to the store and durable.
    pub written: u64,
    /// Repeats of what is stored.
    pub suppressed: u64,
    /// Replaced by a newer one of their batch.
    pub superseded: u64,
    /// Older than what is stored.
    pub stale: u64,
    /// Not what the contract says.
    pub malformed: u64,
    /// Refused by the store for ever, and put into the dead letters.
    pub dead_lettered: u64,
    /// Found at the start, set aside by a process before.
    pub found: u64,
    /// Of DSPs whose place in the store does not work, on disk until it does.
    pub set_aside: u64,
    /// Set aside, and not readable any more.
    pub unreadable: u64,
    /// Of DSPs that have no place in the store.
    pub no_place: u64,
    /// Left out by a drain that had no time for them.
    pub left_out: u64,
    /// Not durable yet.
    pub waiting: u64,
    /// Received and found, less all of the others: always 0, or there is a mistake in this program.
    pub unexplained: i64,
}

impl Ledger {
    pub(super) fn of(figures: Figures) -> Self {
        let (all, explained) = (figures.received + figures.found, figures.explained());
        Self {
            received: figures.received,
            written: figures.written,
            suppressed: figures.suppressed,
            superseded: figures.superseded,
            stale: figures.stale,
            malformed: figures.malformed,
            dead_lettered: figures.rejected,
            found: figures.found,
            set_aside: figures.set_aside,
            unreadable: figures.unreadable,
            no_place: figures.refused,
            left_out: figures.left_out,
            waiting: figures.waiting,
            unexplained: all.cast_signed().wrapping_sub(explained.cast_signed()),
        }
    }
}

/// How often something happened.
#[derive(Debug, Clone, Serialize)]
pub struct Count {
    /// What.
    pub what: String,
    /// How often.
    pub count: u64,
}

/// Cookies that will not come, by reason.
pub(super) fn lost(families: &Families) -> Vec<Count> {
    let reasons = families.by_label("consumer_lost_total", "reason");
    let happened = reasons.into_iter().filter(|&(_, count)| count > 0);
    let counts = happened.map(|(reason, count)| Count {
        what: reason.to_owned(),
        count,
    });
    counts.collect()
}

/// Ends of producers' lives since the start: restarts, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lives {
    /// Nothing was lost.
    pub proved: u64,
    /// An exact number of cookies was lost.
    pub lost: u64,
    /// Not more than a known number was lost.
    pub bounded: u64,
    /// Nothing is known.
    pub unknown: u64,
    /// Most cookies that may have been lost at the ends that have a bound.
    pub unknown_cookies_max: u64,
}

impl Lives {
    pub(super) fn of(metrics: &metrics::Subscription) -> Self {
        Self {
            proved: metrics.lives_proved.get(),
            lost: metrics.lives_lost.get(),
            bounded: metrics.lives_bounded.get(),
            unknown: metrics.lives_unknown.get(),
            unknown_cookies_max: metrics.unknown_tail_cookies.get(),
        }
    }
}
