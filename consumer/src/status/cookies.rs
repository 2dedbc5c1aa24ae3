//! What became of cookies: of those received, and of those that a producer took with it.

use serde::Serialize;

use crate::{ledger::Figures, metrics};

/// What became of every cookie received since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// All of it.
    #[serde(flatten)]
    pub figures: Figures,
    /// Received and found, less all of the others: always 0, or there is a mistake in this program.
    pub unexplained: i64,
}

impl From<Figures> for Ledger {
    fn from(figures: Figures) -> Self {
        Self {
            figures,
            unexplained: figures.unexplained(),
        }
    }
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
