//! Metrics of `limiter serve`.

#![expect(missing_docs, reason = "each metric has a help text")]

use crate::{MetricDef, buckets};

const LIMIT: &[&str] = &["limit"];

pub const DECISIONS: MetricDef = MetricDef::counter(
    "limiter_decisions_total",
    "Reservations by outcome: granted immediately (now), granted for later (delayed), or not granted (refused).",
)
.by(&["limit", "outcome"]);
pub const DELAYS: MetricDef =
    MetricDef::counter("limiter_delays_total", "Requests to the `delay` operation.").by(LIMIT);
pub const INCREMENTS: MetricDef = MetricDef::counter(
    "limiter_increments_total",
    "Calls that clients reported with `increment`, by outcome: counted, too old to have an effect (too_old), or rejected because their time is in the future (too_early).",
)
.by(&["limit", "outcome"]);
pub const OUTBOUND_429: MetricDef = MetricDef::counter(
    "limiter_outbound_429_total",
    "Partner responses with status 429 that clients reported with `feedback`.",
)
.by(LIMIT);
pub const FEEDBACK_APPLIED: MetricDef = MetricDef::counter(
    "limiter_feedback_applied_total",
    "Reported partner responses that restricted a counter.",
)
.by(LIMIT);
pub const RESTRICTED_COUNTERS: MetricDef = MetricDef::gauge(
    "limiter_feedback_restricted_counters",
    "Counters restricted below their limit by partner feedback.",
)
.by(LIMIT);
pub const QUOTA_USED: MetricDef = MetricDef::gauge(
    "limiter_quota_used_ratio",
    "For windows of one hour or more, the highest fraction of the quota that any counter of the limit has used. The quota reserved by waiting calls counts as used, so the value can exceed 1.",
)
.by(LIMIT);
pub const LIMIT_COUNTERS: MetricDef = MetricDef::gauge(
    "limiter_limit_counters",
    "Counters that the limit uses, one for each key and rule.",
)
.by(LIMIT);
pub const COUNTERS: MetricDef =
    MetricDef::gauge("limiter_counters", "Counters in use across all limits.");
pub const COUNTERS_MAX: MetricDef = MetricDef::gauge(
    "limiter_counters_max",
    "Maximum number of counters (--counters).",
);
pub const LIMITS: MetricDef = MetricDef::gauge(
    "limiter_limits",
    "Limits in effect, by source: the limits file, or the MongoDB collection (--limits-collection).",
)
.by(&["source"]);
pub const COLLECTION_AGE: MetricDef = MetricDef::gauge(
    "limiter_collection_age_seconds",
    "Time since the MongoDB collection with limits was last read, or since startup if it was never read. Absent without --limits-collection.",
);
pub const VERSION: MetricDef = MetricDef::gauge(
    "limiter_limits_version",
    "Version of the limits in effect: 1 at the start, incremented by each change.",
);
pub const VERSION_REFUSED: MetricDef = MetricDef::gauge(
    "limiter_limits_version_refused",
    "1 while the newest version of the limits file or the collection is rejected.",
);
pub const REQUESTS: MetricDef = MetricDef::counter(
    "limiter_requests_total",
    "API requests, by operation and status class.",
)
.by(&["call", "status"]);
pub const PROBLEMS: MetricDef = MetricDef::counter(
    "limiter_problems_total",
    "Error responses, by problem type.",
)
.by(&["problem"]);
pub const REQUEST_SECONDS: MetricDef = MetricDef::histogram(
    "limiter_request_seconds",
    "Time from receiving a request to its response, excluding reservations whose response is delayed until the call may be made.",
    buckets::LIMITER_SECONDS,
);
pub const WAITING: MetricDef =
    MetricDef::gauge("limiter_waiting", "Reservations whose response is delayed.");
pub const STATE_AGE: MetricDef = MetricDef::gauge(
    "limiter_state_age_seconds",
    "Time since the last sync of the state to disk.",
);
pub const SHARED_DECISIONS: MetricDef = MetricDef::counter(
    "limiter_shared_decisions_total",
    "Calls under shared limits, by what decided them. `server`: the sharing server. `none`: the server was unavailable, and the call was refused.",
)
.by(&["decided_by"]);
pub const SHARING_SERVER: MetricDef = MetricDef::gauge(
    "limiter_sharing_server_up",
    "1 while the server of the shared limits is available. Absent without shared limits.",
);
pub const CLOCK_BEHIND: MetricDef = MetricDef::gauge(
    "limiter_clock_behind_seconds",
    "Seconds by which the system clock lags the limiter's clock, which is never set back; 0 if it does not lag.",
);
