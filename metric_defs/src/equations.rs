//! Balance equations that hold in every scrape: the cookies that entered equal the sum of
//! the cookies with each outcome and the cookies without an outcome yet.
//!
//! ```
//! use metric_defs::{MetricDef, equations::LEDGER};
//!
//! // A scrape after one of two received cookies was written.
//! let value = |metric: &MetricDef| match metric.name {
//!     "consumer_received_total" => 2,
//!     "consumer_written_total" | "consumer_waiting_cookies" => 1,
//!     _ => 0,
//! };
//! let inputs: u64 = LEDGER.inputs.iter().map(value).sum();
//! let sum: u64 = LEDGER
//!     .terms
//!     .iter()
//!     .map(|term| value(&term.count) - term.minus.as_ref().map_or(0, value))
//!     .sum();
//! assert_eq!(inputs, sum);
//! ```

use crate::{MetricDef, consumer, producer};

/// A balance: the sum of `inputs` equals the sum of `terms`.
#[derive(Debug)]
pub struct Equation {
    /// All cookies that entered.
    pub inputs: &'static [MetricDef],
    /// Cookies by outcome, then cookies without an outcome yet.
    pub terms: &'static [Term],
}

/// A count minus its corrections; never negative.
#[derive(Debug, Clone, Copy)]
pub struct Term {
    /// The count.
    pub count: MetricDef,
    /// The corrections to subtract.
    pub minus: Option<MetricDef>,
}

impl Term {
    const fn of(count: MetricDef) -> Self {
        Self { count, minus: None }
    }

    const fn minus(self, corrections: MetricDef) -> Self {
        Self {
            minus: Some(corrections),
            ..self
        }
    }
}

/// The cookies of a consumer.
pub const LEDGER: Equation = Equation {
    inputs: &[consumer::RECEIVED, consumer::RETRY_QUEUE_RECOVERED],
    terms: &[
        Term::of(consumer::WRITTEN),
        Term::of(consumer::SUPERSEDED),
        Term::of(consumer::SUPPRESSED),
        Term::of(consumer::STALE),
        Term::of(consumer::DELETIONS),
        Term::of(consumer::DELETED_ON_ARRIVAL),
        Term::of(consumer::FAILED),
        Term::of(consumer::DRAIN_SKIPPED),
        Term::of(consumer::WAITING),
        Term::of(consumer::RETRY_QUEUE_COOKIES),
    ],
};

/// The cookies of one subscriber of a producer. The equation holds for the series with the same labels.
pub const ACCOUNT: Equation = Equation {
    inputs: &[producer::SUBSCRIBER_APPENDED],
    terms: &[DELIVERED, LOST, Term::of(producer::QUEUED)],
};

/// The cookies of a producer with an archive.
pub const ARCHIVE: Equation = Equation {
    inputs: &[producer::APPENDED],
    terms: &[
        Term::of(producer::ARCHIVED),
        Term::of(producer::ARCHIVE_LOST),
        Term::of(producer::ARCHIVE_QUEUED),
    ],
};

/// The cookies that the streams did not deliver to a consumer with an archive.
pub const RECOVERY: Equation = Equation {
    inputs: &[consumer::RECOVERY_MISSING],
    terms: &[
        Term::of(consumer::RECOVERY_RECOVERED),
        Term::of(consumer::RECOVERY_LOST),
        Term::of(consumer::RECOVERY_RECOVERING),
    ],
};

/// Cookies that a subscriber has received.
pub const DELIVERED: Term = Term::of(producer::DELIVERED).minus(producer::UNDELIVERED);

/// Cookies that a subscriber will not receive.
pub const LOST: Term = Term::of(producer::SUBSCRIBER_LOST).minus(producer::RECOVERED);

/// The cookies of one DSP limit of a producer. The equation holds for the series with the same labels.
pub const DSP_LIMITS: Equation = Equation {
    inputs: &[producer::DSP_LIMITS_ACCEPTED],
    terms: &[
        Term::of(producer::DSP_LIMITS_RELEASED),
        Term::of(producer::DSP_LIMITS_SUPERSEDED),
        Term::of(producer::DSP_LIMITS_DROPPED),
        Term::of(producer::DSP_LIMITS_SPOOLED),
        Term::of(producer::DSP_LIMITS_QUEUED),
        Term::of(producer::DSP_LIMITS_OVERDUE),
        Term::of(producer::DSP_LIMITS_PARKED),
    ],
};
