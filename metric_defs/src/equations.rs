//! The sums that hold at any moment, in every single scrape: what came is what became of it and what is still in hand.

use crate::{MetricDef, consumer, producer};

/// What came = what became of it + what is in hand.
#[derive(Debug)]
pub struct Equation {
    /// All that came.
    pub came: &'static [MetricDef],
    /// What became of it: each has one of these fates.
    pub settled: &'static [Term],
    /// What has no fate yet.
    pub in_hand: &'static [Term],
}

/// A count, less what was taken back of it; never below zero.
#[derive(Debug, Clone, Copy)]
pub struct Term {
    /// The count.
    pub count: MetricDef,
    /// What was taken back.
    pub less: Option<MetricDef>,
}

impl Equation {
    /// All that became of what came, or will.
    pub fn terms(&self) -> impl Iterator<Item = &'static Term> {
        self.settled.iter().chain(self.in_hand)
    }
}

impl Term {
    const fn of(count: MetricDef) -> Self {
        Self { count, less: None }
    }

    const fn less(self, less: MetricDef) -> Self {
        Self {
            less: Some(less),
            ..self
        }
    }
}

/// The cookies of a consumer.
pub const LEDGER: Equation = Equation {
    came: &[consumer::RECEIVED, consumer::RETRY_QUEUE_RECOVERED],
    settled: &[
        Term::of(consumer::WRITTEN),
        Term::of(consumer::SUPERSEDED),
        Term::of(consumer::SUPPRESSED),
        Term::of(consumer::STALE),
        Term::of(consumer::FAILED),
        Term::of(consumer::DRAIN_SKIPPED),
    ],
    in_hand: &[Term::of(consumer::WAITING), Term::of(consumer::ASIDE)],
};

/// The cookies of one subscriber of a producer; that is, with the same labels.
pub const ACCOUNT: Equation = Equation {
    came: &[producer::SUBSCRIBER_APPENDED],
    settled: &[DELIVERED, LOST],
    in_hand: &[Term::of(producer::QUEUED)],
};

/// Cookies that a subscriber has.
pub const DELIVERED: Term = Term::of(producer::DELIVERED).less(producer::UNDELIVERED);

/// Cookies that a subscriber will not get.
pub const LOST: Term = Term::of(producer::SUBSCRIBER_LOST).less(producer::RECOVERED);

/// The cookies of one limit of a producer; that is, with the same labels.
pub const SHAPING: Equation = Equation {
    came: &[producer::SHAPING_ACCEPTED],
    settled: &[
        Term::of(producer::SHAPING_RELEASED),
        Term::of(producer::SHAPING_SUPERSEDED),
        Term::of(producer::SHAPING_DROPPED),
        Term::of(producer::SHAPING_SPOOLED),
    ],
    in_hand: &[
        Term::of(producer::SHAPING_QUEUED),
        Term::of(producer::SHAPING_DEAD),
        Term::of(producer::SHAPING_PARKED),
    ],
};
