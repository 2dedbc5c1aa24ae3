//! Metrics of the producer, by component.

#![expect(missing_docs, reason = "the help text documents the metric")]

use crate::{MetricDef, buckets};

// Sync requests.

pub const EDGE_REQUESTS: MetricDef =
    MetricDef::counter("producer_edge_requests_total", "Sync requests by outcome.")
        .by(&["outcome"]);
pub const PRIVACY: MetricDef = MetricDef::counter(
    "producer_privacy_total",
    "Decisions of the privacy check on valid sync requests, by outcome. Matches are refused only in mode `enforce`.",
)
.by(&["outcome"]);
pub const EDGE_REQUEST_SECONDS: MetricDef = MetricDef::histogram(
    "producer_edge_request_seconds",
    "Time from reading a sync request to producing its response.",
    buckets::REQUEST_SECONDS,
);
pub const DSP_COOKIES: MetricDef = MetricDef::counter(
    "producer_dsp_cookies_total",
    "Sync requests by DSP and outcome.",
)
.by(&["dsp", "outcome"]);
pub const DSP_WOULD_REFUSE: MetricDef = MetricDef::counter(
    "producer_dsp_would_refuse_total",
    "Accepted matches that would be refused if the contract or the privacy check were not set to `observe`, by DSP and reason.",
)
.by(&["dsp", "reason"]);
pub const DSP_CONTRACT: MetricDef = MetricDef::gauge(
    "producer_dsp_contract",
    "1 for each DSP in the contracts file, with its name and state.",
)
.by(&["dsp", "name", "state"]);
pub const CONTRACTS_VERSION: MetricDef = MetricDef::gauge(
    "producer_contracts_version",
    "Version of the active contracts file: 1 at start, incremented by each reload.",
);
pub const CONTRACTS_REFUSED_VERSION: MetricDef = MetricDef::gauge(
    "producer_contracts_version_refused",
    "1 while the newest version of the contracts file is rejected.",
);

// The log.

pub const APPENDED: MetricDef = MetricDef::counter(
    "producer_cookies_appended_total",
    "Cookies and deletions appended to the log. A cookie queued by a limit is counted when it is released.",
);
pub const LOG_BYTES: MetricDef = MetricDef::gauge("producer_log_bytes", "Size of the log.");
pub const LOG_LIMIT_BYTES: MetricDef =
    MetricDef::gauge("producer_log_limit_bytes", "Maximum size of the log.");
pub const LOG_CHUNKS: MetricDef = MetricDef::gauge("producer_log_chunks", "Chunks in the log.");
pub const LOG_COOKIES: MetricDef =
    MetricDef::gauge("producer_log_cookies", "Cookies and deletions in the log.");
pub const LOG_RETAINED: MetricDef = MetricDef::gauge(
    "producer_log_retained_seconds",
    "Age of the oldest chunk in the log. A node that is disconnected for a shorter time loses nothing.",
);
pub const LOG_CHUNKS_SEALED: MetricDef = MetricDef::counter(
    "producer_log_chunks_sealed_total",
    "Chunks sealed (made ready to be sent), by reason: the chunk was full (size) or old enough (age), or the producer drained (drain).",
)
.by(&["reason"]);

// Subscribers.

const SUBSCRIBER: &[&str] = &["subscriber", "call"];

pub const SUBSCRIBER_LIMIT: MetricDef = MetricDef::gauge(
    "producer_subscriber_limit_cookies",
    "Maximum lag of a subscriber in cookies. A subscriber that lags further loses the oldest cookies that it has not received.",
);
pub const SUBSCRIBER_CONNECTED: MetricDef = MetricDef::gauge(
    "producer_subscriber_connected",
    "1 while the subscriber has an open stream.",
)
.by(SUBSCRIBER);
pub const LAG: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_cookies",
    "Cookies that are ready to be sent (in sealed chunks), but not yet handed to the subscriber's stream.",
)
.by(SUBSCRIBER);
pub const LAG_MAX: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_cookies_max",
    "Maximum lag of the subscriber in cookies over the last two scrape intervals.",
)
.by(SUBSCRIBER);
pub const LAG_SECONDS: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_seconds",
    "Age of the oldest cookie that is ready to be sent (in a sealed chunk), but not yet handed to the subscriber's stream.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_APPENDED: MetricDef = MetricDef::counter(
    "producer_subscriber_appended_cookies_total",
    "Cookies appended to the log since the subscriber joined. Equals `(delivered - undelivered) + (lost - recovered) + queued`.",
)
.by(SUBSCRIBER);
pub const DELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_delivered_cookies_total",
    "Cookies handed to the subscriber's stream, each counted once.",
)
.by(SUBSCRIBER);
pub const REDELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_redelivered_cookies_total",
    "Cookies handed to the subscriber's new stream after a reconnect, although an earlier stream contained them.",
)
.by(SUBSCRIBER);
pub const UNDELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_undelivered_cookies_total",
    "Cookies that were counted as delivered, but never arrived and are now counted as lost.",
)
.by(SUBSCRIBER);
pub const RECOVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_recovered_cookies_total",
    "Cookies that were counted as lost, but were delivered later, because the subscriber resumed from an earlier position.",
)
.by(SUBSCRIBER);
pub const QUEUED: MetricDef = MetricDef::gauge(
    "producer_subscriber_queued_cookies",
    "Cookies in the log that are neither delivered to the subscriber nor lost, including those in chunks that are not yet sealed.",
)
.by(SUBSCRIBER);
pub const SENT_BYTES: MetricDef = MetricDef::counter(
    "producer_subscriber_sent_bytes_total",
    "Bytes handed to the subscriber's stream.",
)
.by(SUBSCRIBER);
pub const STREAMS: MetricDef = MetricDef::counter(
    "producer_subscriber_streams_total",
    "Streams opened by the subscriber.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_IN_FLIGHT_BYTES: MetricDef = MetricDef::gauge(
    "producer_subscriber_in_flight_bytes",
    "Bytes in flight to the subscriber.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_DISCONNECTS: MetricDef = MetricDef::counter(
    "producer_subscriber_disconnects_total",
    "Times that the producer closed a stream of the subscriber, because too many bytes were in flight on all streams together.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_LOST: MetricDef = MetricDef::counter(
    "producer_subscriber_lost_cookies_total",
    "Cookies that the subscriber will not receive, by reason.",
)
.by(&["subscriber", "call", "reason"]);
pub const RESUMES: MetricDef = MetricDef::counter(
    "producer_subscriber_resumes_total",
    "Streams opened by the subscriber, by resume outcome.",
)
.by(&["subscriber", "call", "outcome"]);
pub const SUBSCRIBERS_WITHOUT_SERIES: MetricDef = MetricDef::gauge(
    "producer_subscribers_without_series",
    "Subscribers without their own metric series, because there have been too many names.",
);

pub const STREAMS_WITHOUT_AGE_SUPPORT: MetricDef = MetricDef::gauge(
    "producer_streams_without_age_support",
    "Open streams whose clients do not support cookie ages.",
);

// Bytes in flight and rejected calls.

pub const IN_FLIGHT_BYTES: MetricDef = MetricDef::gauge(
    "producer_in_flight_bytes",
    "Bytes in flight: handed to streams, but neither written to the network nor dropped yet.",
);
pub const IN_FLIGHT_LIMIT_BYTES: MetricDef = MetricDef::gauge(
    "producer_in_flight_limit_bytes",
    "Bytes in flight above which the producer disconnects stalled subscribers, then those with the most bytes in flight.",
);
pub const CALLS_REFUSED: MetricDef = MetricDef::counter(
    "producer_grpc_calls_refused_total",
    "gRPC calls rejected because of a limit, by reason.",
)
.by(&["reason"]);
pub const STREAMS_REFUSED: MetricDef = MetricDef::counter(
    "producer_streams_refused_total",
    "Stream requests rejected, by gRPC status code.",
)
.by(&["code"]);
pub const TOKEN_REFUSALS: MetricDef = MetricDef::counter(
    "producer_token_refusals_total",
    "gRPC calls rejected because of a missing or invalid token, by reason.",
)
.by(&["reason"]);

// Epoch history.

pub const EPOCH_HISTORY_RECORDED: MetricDef = MetricDef::gauge(
    "producer_epoch_history_recorded",
    "1 while the epoch history (the last sequence number of each run) is recorded. The loss from a crash then has a known maximum.",
);

// DSP limits.

const LIMIT: &[&str] = &["limit"];
const LEASE_STATE: &[&str] = &["state"];

pub const DSP_LIMITS_ACCEPTED: MetricDef = MetricDef::counter(
    "producer_limits_accepted_cookies_total",
    "Cookies accepted under the limit. Equals `released + superseded + dropped + spooled + queued + dead + parked`.",
)
.by(LIMIT);
pub const DSP_LIMITS_RELEASED: MetricDef = MetricDef::counter(
    "producer_limits_released_cookies_total",
    "Cookies released into the log, by timing: when the limit permitted it (scheduled), or earlier (early), because of a shutdown or a changed limit.",
)
.by(&["limit", "timing"]);
pub const DSP_LIMITS_SUPERSEDED: MetricDef = MetricDef::counter(
    "producer_limits_superseded_cookies_total",
    "Queued cookies superseded by a newer cookie of the same user and DSP.",
)
.by(LIMIT);
pub const DSP_LIMITS_DROPPED: MetricDef = MetricDef::counter(
    "producer_limits_dropped_cookies_total",
    "Cookies dropped, by reason: the queue was full or the cookie was older than the stream format permits (bound), the limit was exceeded in mode police (police), a deletion covers the cookie (deleted), or the cookie could be neither spooled nor released at shutdown (drain).",
)
.by(&["limit", "reason"]);
pub const DSP_LIMITS_SPOOLED: MetricDef = MetricDef::counter(
    "producer_limits_spooled_cookies_total",
    "Queued cookies saved at shutdown in the --limits-spool file, for the next start.",
)
.by(LIMIT);
pub const DSP_LIMITS_QUEUED: MetricDef = MetricDef::gauge(
    "producer_limits_queued_cookies",
    "Cookies queued for release, including those that will be rescheduled because their wait exceeds max_wait.",
)
.by(LIMIT);
pub const DSP_LIMITS_OVERDUE: MetricDef = MetricDef::gauge(
    "producer_limits_overdue_cookies",
    "Overdue cookies waiting to be requeued: cookies that could not be released within max_age.",
)
.by(LIMIT);
pub const DSP_LIMITS_PARKED: MetricDef = MetricDef::gauge(
    "producer_limits_parked_cookies",
    "Parked cookies: overdue cookies that are no longer requeued, because they reached requeue.max.",
)
.by(LIMIT);
pub const DSP_LIMITS_BYTES: MetricDef = MetricDef::gauge(
    "producer_limits_queue_bytes",
    "Memory used by queued, overdue and parked cookies.",
)
.by(LIMIT);
pub const DSP_LIMITS_OLDEST: MetricDef = MetricDef::gauge(
    "producer_limits_oldest_seconds",
    "Time since the oldest queued, overdue or parked cookie was accepted.",
)
.by(LIMIT);
pub const DSP_LIMITS_EXCEEDED: MetricDef = MetricDef::counter(
    "producer_limits_exceeded_cookies_total",
    "Cookies that exceeded a rule on arrival, by outcome: the required wait was at most max_wait (delayed), or longer (refused). In modes police and observe, all of them count as refused.",
)
.by(&["limit", "rule", "outcome"]);
pub const DSP_LIMITS_BECAME_OVERDUE: MetricDef = MetricDef::counter(
    "producer_limits_overdue_total",
    "Cookies that became overdue, by reason: older than max_age at their release time (age), or expected to be older after their wait (wait).",
)
.by(&["limit", "rule", "reason"]);
pub const DSP_LIMITS_REQUEUED: MetricDef = MetricDef::counter(
    "producer_limits_requeued_cookies_total",
    "Times that an overdue cookie was requeued.",
)
.by(LIMIT);
pub const DSP_LIMITS_DELAY: MetricDef = MetricDef::histogram(
    "producer_limits_delay_seconds",
    "Time from acceptance of a cookie to its scheduled release.",
    buckets::DSP_LIMITS_DELAY_SECONDS,
)
.by(LIMIT);
pub const SHARING_SHARE: MetricDef = MetricDef::gauge(
    "producer_limit_share",
    "Fraction of a shared limit that this producer may use now.",
)
.by(LIMIT);
pub const SHARING_SUM: MetricDef = MetricDef::gauge(
    "producer_limit_share_sum",
    "Sum of the shares of all producers in a shared limit, as last reported by the Redis server. It must never exceed 1.",
)
.by(LIMIT);
pub const SHARING_STATE: MetricDef = MetricDef::gauge(
    "producer_limits_lease",
    "State of this producer's shares in the shared limits: 1 for the current state, 0 for the other states.",
)
.by(LEASE_STATE);
pub const API_REQUESTS: MetricDef = MetricDef::counter(
    "producer_api_requests_total",
    "Requests to the API, by status code of the response.",
)
.by(&["code"]);
pub const API_ROWS: MetricDef = MetricDef::counter(
    "producer_api_rows_total",
    "Rows of bulk requests, by outcome: `accepted`, `dropped` by the DSP's limit, or a reason for rejection (all other outcomes).",
)
.by(&["outcome"]);
pub const DELETIONS_APPENDED: MetricDef = MetricDef::counter(
    "producer_deletions_total",
    "Deletions appended to the log, by scope: all cookies of a user (user), a user's cookie of one DSP (pair), or all cookies of a DSP (dsp). Deletions by bulk requests (bulk) and on the opt-out page (optout) are counted separately.",
)
.by(&["scope"]);
pub const DELETIONS_AT_RISK: MetricDef = MetricDef::counter(
    "producer_deletions_at_risk_total",
    "Deletion requests whose response had `at_risk: true`, because too few nodes had confirmed the deletions in time.",
);
pub const LAST_DELETION: MetricDef = MetricDef::gauge(
    "producer_last_deletion_sequence",
    "Sequence number of the newest deletion in the log; 0 if there is none in this epoch (run of the producer).",
);
pub const UNKNOWN_NODES: MetricDef = MetricDef::gauge(
    "producer_newest_deletion_unknown_nodes",
    "Nodes that may have missed the newest deletion (listed as `unknown` in its receipt).",
);
pub const DURABLE: MetricDef = MetricDef::gauge(
    "producer_subscriber_durable_sequence",
    "Newest sequence number of this epoch (run of the producer) that the subscriber has confirmed as durable. Reported only for `Subscribe` calls.",
)
.by(SUBSCRIBER);
pub const APPLIED: MetricDef = MetricDef::gauge(
    "producer_subscriber_applied_sequence",
    "Sequence number up to which the subscriber has confirmed that it has carried out all deletions. Reported only for `Subscribe` calls.",
)
.by(SUBSCRIBER);
