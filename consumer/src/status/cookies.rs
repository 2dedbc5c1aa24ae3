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

/// Restarts of producers since the start, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Restarts {
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

impl Restarts {
    pub(super) fn of(metrics: &metrics::Subscription) -> Self {
        Self {
            proved: metrics.restarts_proved.get(),
            lost: metrics.restarts_lost.get(),
            bounded: metrics.restarts_bounded.get(),
            unknown: metrics.restarts_unknown.get(),
            unknown_cookies_max: metrics.unknown_tail_cookies.get(),
        }
    }
}
