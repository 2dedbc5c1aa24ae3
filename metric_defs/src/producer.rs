//! The figures of a producer, by the part that counts them.

#![expect(missing_docs, reason = "the help of a figure is what it means")]

use crate::{MetricDef, buckets};

// Requests at the edge.

pub const EDGE_REQUESTS: MetricDef = MetricDef::counter(
    "producer_edge_requests_total",
    "Requests of the edge by outcome; of every outcome but \"accepted\" nothing is left.",
)
.by(&["outcome"]);
pub const EDGE_REQUEST_SECONDS: MetricDef = MetricDef::histogram(
    "producer_edge_request_seconds",
    "Time from reading a request to producing its response, for all outcomes.",
    buckets::REQUEST_SECONDS,
);
pub const DSP_COOKIES: MetricDef = MetricDef::counter(
    "producer_dsp_cookies_total",
    "Sync requests by DSP and outcome: accepted, or why they were rejected.",
)
.by(&["dsp", "outcome"]);

// The log.

pub const APPENDED: MetricDef = MetricDef::counter(
    "producer_cookies_appended_total",
    "Cookies appended to the log since start: all accepted cookies except those queued or dropped by a limit.",
);
pub const LOG_SEALED_BYTES: MetricDef = MetricDef::counter(
    "producer_log_sealed_bytes_total",
    "Bytes of sealed chunks since start, each counted once.",
);
pub const LOG_BYTES: MetricDef = MetricDef::gauge("producer_log_bytes", "Bytes the log holds.");
pub const LOG_LIMIT_BYTES: MetricDef = MetricDef::gauge(
    "producer_log_limit_bytes",
    "Maximum size of the log in bytes.",
);
pub const LOG_CHUNKS: MetricDef = MetricDef::gauge("producer_log_chunks", "Chunks the log holds.");
pub const LOG_COOKIES: MetricDef =
    MetricDef::gauge("producer_log_cookies", "Sealed cookies the log holds.");
pub const LOG_RETAINED: MetricDef = MetricDef::gauge(
    "producer_log_retained_seconds",
    "Age of the oldest chunk in the log. A subscriber that is disconnected for less than this loses nothing, unless --queue-cookies is reached first.",
);
pub const LOG_CHUNKS_SEALED: MetricDef = MetricDef::counter(
    "producer_log_chunks_sealed_total",
    "Chunks sealed since start: because they were full, because they were old, or at the end.",
)
.by(&["reason"]);

// Subscribers.

const SUBSCRIBER: &[&str] = &["subscriber", "call"];

pub const SUBSCRIBER_LIMIT: MetricDef = MetricDef::gauge(
    "producer_subscriber_limit_cookies",
    "How far a subscriber may be behind before its oldest cookies are lost, though the log may hold more.",
);
pub const SUBSCRIBER_CONNECTED: MetricDef = MetricDef::gauge(
    "producer_subscriber_connected",
    "1 while a stream of the subscriber is open.",
)
.by(SUBSCRIBER);
pub const LAG: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_cookies",
    "Sealed cookies not yet handed to the subscriber's stream.",
)
.by(SUBSCRIBER);
pub const LAG_MAX: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_cookies_max",
    "The greatest lag in cookies since the scrape before the last.",
)
.by(SUBSCRIBER);
pub const LAG_SECONDS: MetricDef = MetricDef::gauge(
    "producer_subscriber_lag_seconds",
    "Age of the oldest sealed cookie that the subscriber's stream has not taken yet and the log still holds.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_APPENDED: MetricDef = MetricDef::counter(
    "producer_subscriber_appended_cookies_total",
    "Cookies in the log since the subscriber joined: delivered - undelivered + lost - recovered + queued.",
)
.by(SUBSCRIBER);
pub const DELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_delivered_cookies_total",
    "Cookies handed to the subscriber's stream, each counted once.",
)
.by(SUBSCRIBER);
pub const REDELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_redelivered_cookies_total",
    "Cookies handed to the subscriber's stream again after it came back.",
)
.by(SUBSCRIBER);
pub const UNDELIVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_undelivered_cookies_total",
    "Cookies counted as delivered that never arrived and are counted as lost since.",
)
.by(SUBSCRIBER);
pub const RECOVERED: MetricDef = MetricDef::counter(
    "producer_subscriber_recovered_cookies_total",
    "Cookies counted as lost that were delivered after all, to an older cursor.",
)
.by(SUBSCRIBER);
pub const QUEUED: MetricDef = MetricDef::gauge(
    "producer_subscriber_queued_cookies",
    "Cookies in the log, sealed or not, that are neither delivered nor lost yet.",
)
.by(SUBSCRIBER);
pub const SENT_BYTES: MetricDef = MetricDef::counter(
    "producer_subscriber_sent_bytes_total",
    "Bytes handed to the subscriber's stream.",
)
.by(SUBSCRIBER);
pub const STREAMS: MetricDef = MetricDef::counter(
    "producer_subscriber_streams_total",
    "Streams the subscriber opened.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_IN_FLIGHT_BYTES: MetricDef = MetricDef::gauge(
    "producer_subscriber_in_flight_bytes",
    "Bytes in flight to the subscriber: handed to its streams and not yet released by their connections.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_DISCONNECTS: MetricDef = MetricDef::counter(
    "producer_subscriber_disconnects_total",
    "Streams of the subscriber that were cut off because too many bytes were in flight on all streams.",
)
.by(SUBSCRIBER);
pub const SUBSCRIBER_LOST: MetricDef = MetricDef::counter(
    "producer_subscriber_lost_cookies_total",
    "Cookies the subscriber will not get, by reason.",
)
.by(&["subscriber", "call", "reason"]);
pub const RESUMES: MetricDef = MetricDef::counter(
    "producer_subscriber_resumes_total",
    "Streams opened by the subscriber, by resume outcome.",
)
.by(&["subscriber", "call", "outcome"]);
pub const SUBSCRIBERS_WITHOUT_SERIES: MetricDef = MetricDef::gauge(
    "producer_subscribers_without_series",
    "Subscribers without their own metric series because there are too many names.",
);

pub const STREAMS_WITHOUT_AGE_SUPPORT: MetricDef = MetricDef::gauge(
    "producer_streams_without_age_support",
    "Open streams whose readers do not say that they act on the age of cookies.",
);

// Bytes in flight, and what is refused.

pub const IN_FLIGHT_BYTES: MetricDef = MetricDef::gauge(
    "producer_in_flight_bytes",
    "Bytes in flight: handed to streams and not yet released by their connections, each stream counted in full.",
);
pub const IN_FLIGHT_LIMIT_BYTES: MetricDef = MetricDef::gauge(
    "producer_in_flight_limit_bytes",
    "Bytes in flight above which the slowest subscribers are cut off.",
);
pub const CALLS_REFUSED: MetricDef = MetricDef::counter(
    "producer_grpc_calls_refused_total",
    "Calls refused because there were too many a second or they held too much.",
)
.by(&["reason"]);
pub const CALLS_BYTES: MetricDef = MetricDef::gauge(
    "producer_grpc_calls_bytes",
    "Bytes charged to calls that are not streams, unfinished requests among them; 16 MiB at most.",
);
pub const STREAMS_REFUSED: MetricDef = MetricDef::counter(
    "producer_streams_refused_total",
    "Calls for a stream that were answered with an error, by its gRPC code.",
)
.by(&["code"]);
pub const TOKEN_REFUSALS: MetricDef = MetricDef::counter(
    "producer_token_refusals_total",
    "Calls rejected because of a missing or invalid token.",
)
.by(&["reason"]);

// Its epoch history.

pub const EPOCH_HISTORY_RECORDED: MetricDef = MetricDef::gauge(
    "producer_epoch_history_recorded",
    "1 while the epoch history records this producer's progress, so that losses from a crash can be bounded.",
);

// Limits of DSPs.

const LIMIT: &[&str] = &["limit"];
const LEASE_STATE: &[&str] = &["state"];

pub const SHAPING_ACCEPTED: MetricDef = MetricDef::counter(
    "producer_limits_accepted_cookies_total",
    "Cookies accepted under the limit: released + superseded + dropped + spooled + waiting + dead + parked.",
)
.by(LIMIT);
pub const SHAPING_RELEASED: MetricDef = MetricDef::counter(
    "producer_limits_released_cookies_total",
    "Cookies released into the log: at their release time (scheduled), or early because the producer stopped or the limit no longer shapes.",
)
.by(&["limit", "timing"]);
pub const SHAPING_SUPERSEDED: MetricDef = MetricDef::counter(
    "producer_limits_superseded_cookies_total",
    "Held cookies superseded by a newer one of the same user and DSP.",
)
.by(LIMIT);
pub const SHAPING_DROPPED: MetricDef = MetricDef::counter(
    "producer_limits_dropped_cookies_total",
    "Cookies dropped: bound (queue full), police (over the limit), drain (neither spooled nor released at shutdown).",
)
.by(&["limit", "reason"]);
pub const SHAPING_SPOOLED: MetricDef = MetricDef::counter(
    "producer_limits_spooled_cookies_total",
    "Cookies kept in the file of --limits-spool for the next start.",
)
.by(LIMIT);
pub const SHAPING_QUEUED: MetricDef = MetricDef::gauge(
    "producer_limits_queued_cookies",
    "Cookies queued for release, including deferred ones.",
)
.by(LIMIT);
pub const SHAPING_DEAD: MetricDef = MetricDef::gauge(
    "producer_limits_dead_cookies",
    "Dead letters waiting to be requeued: cookies that could not be released within max_age.",
)
.by(LIMIT);
pub const SHAPING_PARKED: MetricDef = MetricDef::gauge(
    "producer_limits_parked_cookies",
    "Dead letters that were requeued too often: held until the limits change or the producer restarts.",
)
.by(LIMIT);
pub const SHAPING_BYTES: MetricDef = MetricDef::gauge(
    "producer_limits_queue_bytes",
    "Memory of the cookies that wait, are dead or are parked.",
)
.by(LIMIT);
pub const SHAPING_OLDEST: MetricDef = MetricDef::gauge(
    "producer_limits_oldest_seconds",
    "Age of the oldest cookie that waits, is dead or is parked, since it was accepted.",
)
.by(LIMIT);
pub const SHAPING_EXCEEDED: MetricDef = MetricDef::counter(
    "producer_limits_exceeded_cookies_total",
    "Accepted cookies over a rule, each once: delayed, or refused because the wait exceeds the maximum. Policed: always refused. Observed: refused if police would drop it.",
)
.by(&["limit", "rule", "outcome"]);
pub const SHAPING_DEAD_LETTERS: MetricDef = MetricDef::counter(
    "producer_limits_dead_letters_total",
    "Cookies that became dead letters: already older than max_age at their release time (age), or would be by then (wait).",
)
.by(&["limit", "rule", "reason"]);
pub const SHAPING_REQUEUED: MetricDef = MetricDef::counter(
    "producer_limits_requeued_cookies_total",
    "Dead letters requeued.",
)
.by(LIMIT);
pub const SHAPING_DELAY: MetricDef = MetricDef::histogram(
    "producer_limits_delay_seconds",
    "Time from a cookie accepted to its release in turn.",
    buckets::SHAPING_DELAY_SECONDS,
)
.by(LIMIT);
pub const SHAPING_VERSION: MetricDef = MetricDef::gauge(
    "producer_limits_version",
    "Version of the file of limits in force: 1 at the start, one more for each that replaced it.",
);
pub const SHAPING_REFUSED_VERSION: MetricDef = MetricDef::gauge(
    "producer_limits_version_refused",
    "1 while the newest version of the file of limits is refused, and an older one is in force.",
);
pub const SHARING_SHARE: MetricDef = MetricDef::gauge(
    "producer_limit_share",
    "Part of a shared limit that this producer may use now.",
)
.by(LIMIT);
pub const SHARING_SUM: MetricDef = MetricDef::gauge(
    "producer_limit_share_sum",
    "Sum of all shares of a shared limit, as last reported by the server. Must never exceed 1.",
)
.by(LIMIT);
pub const SHARING_STATE: MetricDef = MetricDef::gauge(
    "producer_limits_lease",
    "1 for the state in which this producer's shares are, 0 for the others.",
)
.by(LEASE_STATE);
pub const SHARING_MISSED: MetricDef = MetricDef::counter(
    "producer_limits_lease_missed_total",
    "Requests to the shared-limits server that timed out.",
);
