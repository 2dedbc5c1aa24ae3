//! Counters and gauges of a limit. Each cookie accepted under a limit has exactly one outcome or is still in a queue.

use std::collections::BTreeMap;

use metric_defs::{
    MetricDef,
    buckets::DSP_LIMITS_DELAY_SECONDS,
    producer::{
        DSP_LIMITS_ACCEPTED, DSP_LIMITS_BYTES, DSP_LIMITS_OLDEST, DSP_LIMITS_OVERDUE,
        DSP_LIMITS_PARKED, DSP_LIMITS_QUEUED, DSP_LIMITS_REQUEUED, DSP_LIMITS_SPOOLED,
        DSP_LIMITS_SUPERSEDED,
    },
};
use runtime::metrics::as_f64;

/// What happened to a cookie under a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CookieOutcome {
    /// Released at its release time.
    Released,
    /// Released before its release time.
    ReleasedEarly,
    /// Superseded by a newer cookie of the same user and DSP.
    Superseded,
    /// Saved in the spool for the next run.
    Spooled,
    /// Dropped as the oldest cookie of a full queue, or because it was older than the maximum age in the stream format.
    Bound,
    /// Dropped because it exceeded a limit in police mode.
    Police,
    /// Dropped at shutdown, because it could be neither spooled nor released.
    Drain,
    /// Dropped because a deletion covers it.
    Deleted,
}

impl CookieOutcome {
    const COUNT: usize = 8;

    /// The outcomes of dropped cookies, with their names in metrics.
    pub(crate) const DROPPED: [(Self, &str); 4] = [
        (Self::Bound, "bound"),
        (Self::Police, "police"),
        (Self::Drain, "drain"),
        (Self::Deleted, "deleted"),
    ];
}

/// What a rule did to a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleEvent {
    /// The cookie exceeded the rule on arrival, and was queued.
    Delayed,
    /// The wait of the cookie would have exceeded `max_wait` on arrival; in police and observe mode, the cookie exceeded the rule.
    Refused,
    /// The cookie became overdue: it was older than `max_age` at its release time.
    OverdueAge,
    /// The cookie became overdue: it would have been older than `max_age` after the expected wait.
    OverdueWait,
}

impl RuleEvent {
    /// The events of cookies that exceed a rule, with their names in metrics.
    pub(crate) const EXCEEDED: [(Self, &str); 2] =
        [(Self::Delayed, "delayed"), (Self::Refused, "refused")];

    /// The events of cookies that become overdue, with their names in metrics.
    pub(crate) const OVERDUE: [(Self, &str); 2] =
        [(Self::OverdueAge, "age"), (Self::OverdueWait, "wait")];
}

/// Number of events of one rule.
type RuleCounters = [u64; RuleEvent::EXCEEDED.len() + RuleEvent::OVERDUE.len()];

/// Counters of the cookies accepted under a limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LimitCounters {
    /// Cookies accepted and released immediately. [`LimitCounters::add`] adds them to the other counters. This counter
    /// is separate, so that counting moves as little memory as possible between processors.
    passed: u64,
    /// All other accepted cookies, including those restored from the spool.
    pub(crate) accepted: u64,
    outcomes: [u64; CookieOutcome::COUNT],
    /// Times that an overdue cookie was requeued.
    pub(crate) requeued: u64,
    /// Counters of each rule, by rule id.
    pub(crate) rules: BTreeMap<String, RuleCounters>,
    /// Queueing delays of released cookies.
    pub(crate) delays: Delays,
}

impl LimitCounters {
    /// Keeps the counters of these rules, adds missing ones, and removes all others.
    pub(super) fn retain_rules(&mut self, rules: &[String]) {
        let mut previous = std::mem::take(&mut self.rules);
        let counted = |rule: &String| (rule.clone(), previous.remove(rule).unwrap_or_default());
        self.rules = rules.iter().map(counted).collect();
    }

    /// Counts a cookie that was accepted and released immediately, the usual case.
    pub(super) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(super) fn release(&mut self, delay_nanos: u64) {
        self.count(CookieOutcome::Released, 1);
        self.delays.observe(delay_nanos);
    }

    pub(super) fn count(&mut self, outcome: CookieOutcome, count: u64) {
        self.outcomes[outcome as usize] += count;
    }

    /// Counts an event of a rule of this limit.
    pub(super) fn count_rule(&mut self, rule: &str, event: RuleEvent) {
        let counters = self.rules.get_mut(rule);
        counters.expect("the queue has this rule")[event as usize] += 1;
    }

    /// Adds the counters of another queue.
    pub(super) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted + other.passed;
        self.requeued += other.requeued;
        add(&mut self.outcomes, &other.outcomes);
        self.count(CookieOutcome::Released, other.passed);
        for (rule, counters) in &other.rules {
            add(self.rules.entry(rule.clone()).or_default(), counters);
        }
        self.delays.add(&other.delays);
        self.delays.buckets[0] += other.passed;
    }

    /// All accepted cookies, including those released immediately.
    pub(super) fn accepted_total(&self) -> u64 {
        self.accepted + self.passed
    }

    /// Number of cookies with this outcome.
    pub(crate) fn of(&self, outcome: CookieOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Accepted cookies that are neither in a queue nor have an outcome: always zero.
    #[cfg(test)]
    pub(crate) fn unaccounted(&self, usage: &QueueUsage) -> i128 {
        let settled: u64 = self.outcomes.iter().sum();
        let held = usage.queued + usage.overdue + usage.parked;
        i128::from(self.accepted) - i128::from(settled) - i128::from(held)
    }
}

/// Contents of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueUsage {
    /// Cookies queued for release, including deferred ones.
    pub(crate) queued: u64,
    /// Overdue cookies that will be requeued.
    pub(crate) overdue: u64,
    /// Overdue cookies that will not be requeued.
    pub(crate) parked: u64,
    /// Memory of all of them.
    pub(crate) bytes: u64,
    /// Time since the oldest cookie was accepted.
    pub(crate) oldest_nanos: u64,
}

impl QueueUsage {
    /// Adds the usage of another queue.
    pub(super) fn add(&mut self, other: &Self) {
        self.queued += other.queued;
        self.overdue += other.overdue;
        self.parked += other.parked;
        self.bytes += other.bytes;
        self.oldest_nanos = self.oldest_nanos.max(other.oldest_nanos);
    }
}

/// Counters and usage of one limit, over all of its queues.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LimitSummary {
    pub(crate) counters: LimitCounters,
    pub(crate) usage: QueueUsage,
}

impl LimitSummary {
    /// Number of cookies with this outcome, for metrics.
    pub(super) fn count(&self, outcome: CookieOutcome) -> f64 {
        as_f64(self.counters.of(outcome))
    }
}

/// A metric with one series per limit, and its value.
type Row = (MetricDef, fn(&LimitSummary) -> f64);

/// All metrics with one series per limit.
pub(super) const ROWS: &[Row] = &[
    (DSP_LIMITS_ACCEPTED, |it| as_f64(it.counters.accepted)),
    (DSP_LIMITS_SUPERSEDED, |it| {
        it.count(CookieOutcome::Superseded)
    }),
    (DSP_LIMITS_SPOOLED, |it| it.count(CookieOutcome::Spooled)),
    (DSP_LIMITS_QUEUED, |it| as_f64(it.usage.queued)),
    (DSP_LIMITS_OVERDUE, |it| as_f64(it.usage.overdue)),
    (DSP_LIMITS_PARKED, |it| as_f64(it.usage.parked)),
    (DSP_LIMITS_BYTES, |it| as_f64(it.usage.bytes)),
    (DSP_LIMITS_OLDEST, |it| seconds(it.usage.oldest_nanos)),
    (DSP_LIMITS_REQUEUED, |it| as_f64(it.counters.requeued)),
];

/// Histogram of queueing delays.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Delays {
    /// Count per bucket of [`DSP_LIMITS_DELAY_SECONDS`], not cumulative; the last bucket has no upper bound.
    pub(crate) buckets: [u64; DSP_LIMITS_DELAY_SECONDS.len() + 1],
    pub(crate) sum_nanos: u64,
}

impl Delays {
    fn add(&mut self, other: &Self) {
        add(&mut self.buckets, &other.buckets);
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
    }

    fn observe(&mut self, delay_nanos: u64) {
        let seconds = seconds(delay_nanos);
        let bucket = DSP_LIMITS_DELAY_SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(delay_nanos);
    }
}

fn add(totals: &mut [u64], counts: &[u64]) {
    for (total, count) in totals.iter_mut().zip(counts) {
        *total += count;
    }
}

/// Converts nanoseconds to seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}
