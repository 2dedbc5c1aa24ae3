//! What a limiter tells.

#![expect(missing_docs, reason = "the help of a figure is what it means")]

use crate::{MetricDef, buckets};

const LIMIT: &[&str] = &["limit"];

pub const DECISIONS: MetricDef = MetricDef::counter(
    "limiter_decisions_total",
    "Reservations by outcome: granted immediately (now), granted for later (delayed), or not possible within the maximum wait (refused).",
)
.by(&["limit", "outcome"]);
pub const DELAYS: MetricDef = MetricDef::counter(
    "limiter_delays_total",
    "Times that somebody asked when a call could go.",
)
.by(LIMIT);
pub const INCREMENTS: MetricDef = MetricDef::counter(
    "limiter_increments_total",
    "Calls reported through increment: counted, too old to have an effect (too_old), or rejected because their time is in the future (too_early).",
)
.by(&["limit", "outcome"]);
pub const OUTBOUND_429: MetricDef = MetricDef::counter(
    "limiter_outbound_429_total",
    "Answers of partners that refused a call for its rate, as they were told here.",
)
.by(LIMIT);
pub const LEARNED: MetricDef = MetricDef::counter(
    "limiter_feedback_applied_total",
    "Answers of partners that something was learned from.",
)
.by(LIMIT);
pub const LEARNED_COUNTERS: MetricDef = MetricDef::gauge(
    "limiter_feedback_restricted_counters",
    "Counters that are held below their limit by what a partner's answer said.",
)
.by(LIMIT);
pub const QUOTA_USED: MetricDef = MetricDef::gauge(
    "limiter_quota_used_ratio",
    "Used fraction of the most-used counter of a limit, for windows of one hour or more. Above 1 while calls wait.",
)
.by(LIMIT);
pub const LIMIT_COUNTERS: MetricDef = MetricDef::gauge(
    "limiter_limit_counters",
    "Counters that are kept, each once for each rule.",
)
.by(LIMIT);
pub const COUNTERS: MetricDef = MetricDef::gauge(
    "limiter_counters",
    "Counters that are kept of all limits, each once for each rule.",
);
pub const COUNTERS_MAX: MetricDef =
    MetricDef::gauge("limiter_counters_max", "Counters that there may be.");
pub const LIMITS: MetricDef = MetricDef::gauge(
    "limiter_limits",
    "Limits in force, by where they come from: the file or the collection.",
)
.by(&["source"]);
pub const COLLECTION_AGE: MetricDef = MetricDef::gauge(
    "limiter_collection_age_seconds",
    "Time since the collection of limits was read, or the start if it never was; no value without one.",
);
pub const VERSION: MetricDef = MetricDef::gauge(
    "limiter_limits_version",
    "Version of the limits in force: 1 at the start, one more for each change.",
);
pub const VERSION_REFUSED: MetricDef = MetricDef::gauge(
    "limiter_limits_version_refused",
    "1 while the newest version of the file or the collection of limits is refused, and an older one is in force.",
);
pub const REQUESTS: MetricDef = MetricDef::counter(
    "limiter_requests_total",
    "Requests answered, by what was asked, and the class of the status.",
)
.by(&["call", "status"]);
pub const PROBLEMS: MetricDef = MetricDef::counter(
    "limiter_problems_total",
    "Requests that were answered with a problem, by the name of its type: counter-limit-reached where there are as many counters as there may be.",
)
.by(&["problem"]);
pub const REQUEST_SECONDS: MetricDef = MetricDef::histogram(
    "limiter_request_seconds",
    "Time from a request read to its answer, without those that wait for their slot.",
    buckets::LIMITER_SECONDS,
);
pub const WAITING: MetricDef = MetricDef::gauge(
    "limiter_waiting",
    "Reservations whose answer is held until their slot.",
);
pub const TOKEN_REFUSALS: MetricDef = MetricDef::counter(
    "limiter_token_refusals_total",
    "Requests refused: without a token, with a wrong one, or with one that does not open the limit.",
)
.by(&["reason"]);
pub const STATE_AGE: MetricDef = MetricDef::gauge(
    "limiter_state_age_seconds",
    "Time since everything that had been answered was on the disk; no value where nothing is kept.",
);
pub const SHARED_DECISIONS: MetricDef = MetricDef::counter(
    "limiter_shared_decisions_total",
    "Decisions on shared limits, by decider: the server, the limiter's own part while the server is unavailable, or nobody (call refused).",
)
.by(&["by"]);
pub const SHARING_SERVER: MetricDef = MetricDef::gauge(
    "limiter_sharing_server_up",
    "1 while the server that shares the limits is there; no value without one.",
);
pub const CLOCK_BEHIND: MetricDef = MetricDef::gauge(
    "limiter_clock_behind_seconds",
    "How far the system's clock is behind the limiter's, which never goes back: windows that are aligned to the clock begin earlier by this time.",
);
pub const CLOCK_STEPS: MetricDef = MetricDef::counter(
    "limiter_clock_steps_total",
    "Times that the system's clock was more than a second ahead, because it was set or the machine slept, and was followed.",
);
