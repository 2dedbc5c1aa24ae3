//! What the page of metrics says that no registry knows: its groups, labels that can be anything, and notes.

/// What is registered by the source file or directory `file`, of names that begin with `prefix`; the first group that fits takes it.
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
    group("Calls refused", "producer/src/server/call_rates.rs", ""),
    group("Streams refused", "producer/src/streams/refusals.rs", ""),
    group("Tokens", "producer/src/security/tokens.rs", ""),
    group("Epoch history", "producer/src/epoch_history.rs", ""),
    group("Limits of DSPs", "producer/src/shaping/metrics.rs", ""),
    group("What became of cookies", "consumer/src/ledger.rs", ""),
    group(
        "Retry queue and failing DSPs",
        "consumer/src/metrics/retry_queue.rs",
        "",
    ),
    group("Each producer", "consumer/src/metrics/producers.rs", ""),
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

/// The values of a label, of one metric or of all.
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
    label("", "subscriber", "its name"),
    label("", "producer", "its id"),
    label("", "address", "IP address and port of a producer"),
    label("", "version", "of the program"),
    label("", "commit", "it was built from, or `unknown`"),
    label("", "profile", "of the build: `dist` is what ships"),
    label("", "dsp", "a DSP's number, `other`, `none`"),
    label("", "limit", "its name in the file of `--limits`"),
    label(
        "",
        "rule",
        "its `id` in the file; of a limit of every call with that limit's name, as in `whole/intake`",
    ),
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

/// By metric.
pub(super) const NOTES: &[(&str, &str)] = &[
    (
        "producer_edge_request_seconds",
        "Measured once for all requests that one read brought, from then until their cookies are in the log and their answers \
         made: each of them counts with that time. What waits unread is not in it, nor is the network, or a client that \
         does not read.",
    ),
    (
        "producer_dsp_cookies_total",
        "DSPs of `--dsps` have a series from the start, and all others are `other`, `unknown_dsp` where `--unknown-dsps` refuses \
         them. Without `--dsps` DSPs have one as they first come, until there are `--dsp-series-max`; the rest is `other`. `none` are requests whose DSP is not readable. The sum over DSPs of an outcome is that of \
         `producer_edge_requests_total`.",
    ),
    (
        "producer_log_retained_seconds",
        "Also the age of the oldest cookie in the log.",
    ),
    (
        "producer_log_chunks_sealed_total",
        "Mostly `size` under load, mostly `age` without; `drain` is what was open when the process was told to stop.",
    ),
    (
        "producer_subscriber_lag_cookies_max",
        "Each scrape begins an interval, and this is the greatest of the last two: so two that scrape equally often both see \
         every peak, and one alone sees it twice.",
    ),
    (
        "producer_subscriber_lag_seconds",
        "0 when the stream has all that is sealed.",
    ),
    (
        "producer_subscriber_resumes_total",
        "`fresh`: nothing was known of it. `resumed`: exactly where it stood, or a little before. `resumed_with_gap`: something \
         after that is gone. `new_epoch`: its cursor is of another epoch of this producer.",
    ),
    (
        "producer_subscriber_appended_cookies_total",
        "Holds in every scrape.",
    ),
    (
        "producer_streams_without_age_support",
        "They receive the same cookies as all others. A store that one of them fills may keep a cookie that waited for its limit in place of a newer one.",
    ),
    (
        "consumer_received_seconds",
        "From the time of its chunk. The age of a cookie, which is what it had waited before, is not in it, nor in \
         `consumer_stored_seconds`: so waiting for a release does not look like a slow node.",
    ),
    (
        "producer_limits_accepted_cookies_total",
        "Holds in every scrape. No metric of limits has values without `--limits`. A limit that the file does not name any more has its series \
         until it holds no cookies.",
    ),
    (
        "producer_limits_exceeded_cookies_total",
        "The rule is the one that was to be waited for longest. A cookie that is sent back and asks again does not count again.",
    ),
    (
        "producer_limits_delay_seconds",
        "0 for what did not have to wait; not measured of what was released early.",
    ),
    (
        "producer_limit_share",
        "No metric of shares has values unless the file of `--limits` has `[sharing]`.",
    ),
    (
        "limiter_shared_decisions_total",
        "No value unless the file of `--limits` has `[sharing]` with `mode = \"exact\"`.",
    ),
    (
        "producer_limits_oldest_seconds",
        "Not bounded by `max_age`, as dead letters are in it.",
    ),
    ("consumer_received_total", "Holds in every scrape."),
    (
        "consumer_producer_connected",
        "Shown while an address leads to the producer; at most 256 producers are shown.",
    ),
    (
        "consumer_producer_lag_cookies",
        "What the producer has got since the stream began, and not sent yet, only it knows: see \
         `producer_subscriber_lag_cookies`.",
    ),
    (
        "consumer_clock_skew_seconds",
        "Received minus accepted holds both the difference of the two clocks and the delay, so the least of it is an upper bound of \
         the difference, too great by the least delay: 0.01 to 0.03 with default settings and equal clocks. Negative means \
         that the producer's clock is ahead, by at least that much. Much greater means that it is behind, that the stream is \
         catching up, or that the producer's clock was set back (its times never decrease). Unknown, and not shown, \
         when nothing came for two minutes.",
    ),
    (
        "consumer_buffer_bytes_max",
        "See `producer_subscriber_lag_cookies_max` for the intervals.",
    ),
    (
        "consumer_compaction_seconds",
        "Its count is that of collections compacted.",
    ),
    (
        "consumer_expired_total",
        "In MongoDB with an index, none: the server counts them as `metrics.ttl.deletedDocuments`.",
    ),
];
