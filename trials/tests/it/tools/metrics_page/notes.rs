//! Contents of the metrics page that the registry does not provide: groups, descriptions of label values, and notes.

/// Metrics registered in the source file or directory `file` whose names begin with `prefix`. A metric belongs to the first matching
/// group.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) file: &'static str,
    pub(super) prefix: &'static str,
}

const fn group(title: &'static str, file: &'static str, prefix: &'static str) -> Group {
    Group {
        title,
        file,
        prefix,
    }
}

pub(super) const GROUPS: &[Group] = &[
    group("Requests", "producer/src/edge/metrics.rs", ""),
    group("Cookies by DSP", "producer/src/edge/dsps.rs", ""),
    group(
        "Subscribers",
        "producer/src/metrics.rs",
        "producer_subscriber_",
    ),
    group("Log", "producer/src/metrics.rs", ""),
    group("In-flight bytes", "producer/src/streams/in_flight.rs", ""),
    group("Rejected calls", "producer/src/server/call_rates.rs", ""),
    group("Rejected streams", "producer/src/streams/refusals.rs", ""),
    group("Tokens", "producer/src/security/tokens.rs", ""),
    group("Epoch history", "producer/src/epoch_history.rs", ""),
    group("DSP limits", "producer/src/shaping/metrics.rs", ""),
    group("API", "producer/src/api.rs", ""),
    group("Deletions by scope", "producer/src/app.rs", ""),
    group("Cookie outcomes", "consumer/src/ledger.rs", ""),
    group("Deletions", "consumer/src/metrics/deletions.rs", ""),
    group(
        "Retry queue and failing DSPs",
        "consumer/src/metrics/retry_queue.rs",
        "",
    ),
    group("Per producer", "consumer/src/metrics/producers.rs", ""),
    group("Streams", "consumer/src/metrics/subscription.rs", ""),
    group("Store", "consumer/src/metrics/sink.rs", ""),
    group("Maintenance", "consumer/src/metrics/maintenance.rs", ""),
    group(
        "Requests to the limiter",
        "limits/limiter/src/serve/metrics.rs",
        "limiter_request",
    ),
    group("Limits", "limits/limiter/src/serve/", ""),
    group("Connections", "runtime/src/listen.rs", ""),
    group("TLS handshakes", "runtime/src/tls/server.rs", ""),
    group("Certificates and tokens", "runtime/src/reload.rs", ""),
    group("Settings", "runtime/src/settings/live_config.rs", ""),
    group("Process", "runtime/src/metrics", ""),
];

/// The values of a label, for one metric or for all.
pub(super) struct Label {
    pub(super) metric: &'static str,
    pub(super) label: &'static str,
    pub(super) values: &'static str,
}

const fn label(metric: &'static str, label: &'static str, values: &'static str) -> Label {
    Label {
        metric,
        label,
        values,
    }
}

pub(super) const LABELS: &[Label] = &[
    label("", "subscriber", "name"),
    label("", "producer", "producer id"),
    label("", "address", "IP address and port of a producer"),
    label("", "version", "program version"),
    label("", "commit", "commit of the build, or `unknown`"),
    label("", "profile", "build profile: `dist` for releases"),
    label("", "dsp", "DSP id, `other`, `none`"),
    label("", "limit", "name in the limits file"),
    label(
        "",
        "rule",
        "its `id` in the limits file; for a rule of a global limit with the name of the limit, such as `total/intake`",
    ),
    label("producer_api_requests_total", "code", "HTTP status code"),
    label(
        "limiter_shared_decisions_total",
        "by",
        "`server`, `part`, `nobody`",
    ),
    label(
        "producer_limits_lease",
        "state",
        "`ok`, `expired`, `fallback`, `guaranteed`, `refused`, as [limits](shared-limits.md) tells them",
    ),
    label(
        "producer_dsp_cookies_total",
        "outcome",
        "`accepted`, or a rejection as in `producer_edge_requests_total`",
    ),
];

/// Notes by metric.
pub(super) const NOTES: &[(&str, &str)] = &[
    (
        "producer_edge_request_seconds",
        "Measured once for all requests of one read, until their cookies are in the log and their responses are produced; \
         each request counts with this time. Excludes unread data, the network, and clients that do not read.",
    ),
    (
        "producer_dsp_cookies_total",
        "DSPs of `--dsps` have a series from the start. All others are counted as `other`, or as `unknown_dsp` if \
         `--unknown-dsps` rejects them. Without `--dsps`, each new DSP gets a series, up to `--dsp-series-max`; the rest is \
         `other`. `none` are requests without a readable DSP id. The sum over all DSPs equals \
         `producer_edge_requests_total`, by outcome.",
    ),
    (
        "producer_log_retained_seconds",
        "Also the age of the oldest cookie in the log.",
    ),
    (
        "producer_log_chunks_sealed_total",
        "Mostly `size` under load and `age` otherwise; `drain` is the open chunk at shutdown.",
    ),
    (
        "producer_subscriber_lag_cookies_max",
        "The maximum of the last two intervals between scrapes, so that two alternating scrapers both see every peak; a single \
         one sees it twice.",
    ),
    (
        "producer_subscriber_lag_seconds",
        "0 if the stream has all sealed cookies.",
    ),
    (
        "producer_subscriber_resumes_total",
        "`fresh`: unknown subscriber. `resumed`: from its position, or slightly before. `resumed_with_gap`: some cookies after \
         its position are gone. `new_epoch`: its cursor is from another epoch of this producer.",
    ),
    (
        "producer_subscriber_appended_cookies_total",
        "The equation holds in every scrape.",
    ),
    (
        "producer_streams_without_age_support",
        "They receive the same cookies. Their stores may keep a delayed cookie in place of a newer one.",
    ),
    (
        "consumer_received_seconds",
        "Measured from the time of the chunk. Excludes the cookie's age, which is its delay by a limit; so does \
         `consumer_stored_seconds`. Delays by limits therefore do not look like a slow node.",
    ),
    (
        "producer_limits_accepted_cookies_total",
        "The equation holds in every scrape. Without `--limits`, metrics of limits have no values. A limit that was removed from \
         the file keeps its series until it holds no cookies.",
    ),
    (
        "producer_limits_exceeded_cookies_total",
        "The rule is the one with the longest wait. A deferred cookie is not counted again.",
    ),
    (
        "producer_limits_delay_seconds",
        "0 for cookies that did not wait; excludes cookies released early.",
    ),
    (
        "producer_limit_share",
        "Metrics of shares have values only if the limits file has `[sharing]`.",
    ),
    (
        "limiter_shared_decisions_total",
        "Has values only if the limits file has `[sharing]` with `mode = \"exact\"`.",
    ),
    (
        "producer_limits_oldest_seconds",
        "Can exceed `max_age`, because it includes dead letters.",
    ),
    (
        "consumer_received_total",
        "The equation holds in every scrape.",
    ),
    (
        "consumer_producer_connected",
        "Has a series while an address leads to the producer, for at most 256 producers.",
    ),
    (
        "consumer_producer_lag_cookies",
        "Excludes cookies that the producer accepted after the stream began and has not sent: see \
         `producer_subscriber_lag_cookies`.",
    ),
    (
        "consumer_clock_skew_seconds",
        "Receipt minus acceptance is the clock difference plus the delay, so its minimum exceeds the difference by the minimum \
         delay: 0.01 to 0.03 with default settings and equal clocks. Negative: the producer's clock is ahead by at least this. \
         Much larger: its clock is behind, the stream is catching up, or the clock was set back (times in the stream never \
         decrease). No value if nothing arrived for two minutes.",
    ),
    (
        "consumer_buffer_bytes_max",
        "For the intervals see `producer_subscriber_lag_cookies_max`.",
    ),
    (
        "consumer_compaction_seconds",
        "The count is the number of collections compacted.",
    ),
    (
        "consumer_expired_total",
        "0 in MongoDB with `--expiry index`: the server counts deletions as `metrics.ttl.deletedDocuments`.",
    ),
];
