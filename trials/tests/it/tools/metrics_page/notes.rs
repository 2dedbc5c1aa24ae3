//! Contents of the metrics page that the registry does not provide: groups, descriptions of label values, and notes.

/// Metrics whose source file or directory is `file` and whose names begin with `prefix`. A metric belongs to the first matching
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
    group("Sync requests", "producer/src/edge/metrics.rs", ""),
    group("Sync requests", "producer/src/dsps.rs", ""),
    group("Sync plans", "producer/src/plan/metrics.rs", ""),
    group("Archive", "producer/src/metrics.rs", "producer_archive_"),
    group("Archive", "producer/src/archive.rs", ""),
    group(
        "Log and bytes in flight",
        "producer/src/metrics.rs",
        "producer_subscriber_limit",
    ),
    group(
        "Subscribers",
        "producer/src/metrics.rs",
        "producer_subscriber_",
    ),
    group("Log and bytes in flight", "producer/src/metrics.rs", ""),
    group(
        "Log and bytes in flight",
        "producer/src/streams/in_flight.rs",
        "",
    ),
    group(
        "Log and bytes in flight",
        "producer/src/epoch_history.rs",
        "",
    ),
    group("Rejected gRPC calls", "producer/src/server/calls.rs", ""),
    group("Rejected gRPC calls", "producer/src/server/refusals.rs", ""),
    group("Rejected gRPC calls", "producer/src/security/tokens.rs", ""),
    group("DSP limits", "producer/src/inlet/metrics.rs", ""),
    group("API and deletions", "producer/src/api.rs", ""),
    group("Cookie outcomes", "consumer/src/ledger.rs", ""),
    group("Deletions", "consumer/src/metrics/deletions.rs", ""),
    group("Lookups", "consumer/src/lookup/metrics.rs", ""),
    group("Lookups", "consumer/src/lookup/stored_cookies.rs", ""),
    group(
        "Retry queue and failing DSPs",
        "consumer/src/metrics/sink.rs",
        "consumer_retry_queue_bytes",
    ),
    group(
        "Retry queue and failing DSPs",
        "consumer/src/metrics/health.rs",
        "consumer_dsp_failing",
    ),
    group("Streams", "consumer/src/metrics/producers.rs", ""),
    group("Streams", "consumer/src/metrics/subscription.rs", ""),
    group("Recovery", "consumer/src/recovery/status.rs", ""),
    group("Store", "consumer/src/metrics/sink.rs", ""),
    group("Store", "consumer/src/metrics/health.rs", ""),
    group("Maintenance", "consumer/src/metrics/maintenance.rs", ""),
    group(
        "Requests",
        "limits/limiter/src/serve/metrics.rs",
        "limiter_request",
    ),
    group("Limits", "limits/limiter/src/serve/", ""),
    group("Jobs and checks", "revalidator/src/metrics.rs", ""),
    group("Connections", "runtime/src/listen.rs", ""),
    group("Connections", "runtime/src/tls/server.rs", ""),
    group("Settings and files", "runtime/src/reload.rs", ""),
    group(
        "Settings and files",
        "runtime/src/settings/live_config.rs",
        "",
    ),
    group("Process", "runtime/src/metrics", ""),
];

/// The values of a label, for one metric, or for all metrics if `metric` is empty. `values` is empty if the help of the metric
/// describes them.
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
    label("", "producer", "id"),
    label("", "address", "IP address and port"),
    label("", "dsp", "DSP id, `other` or `none`"),
    label("", "limit", "name in the limits or contracts file"),
    label("", "app", "name in the applications file"),
    label("", "worker", "id"),
    label(
        "revalidator_requests_total",
        "outcome",
        "`fresh`, `changed`, `gone`, `refused`, `throttled`, `failed`, [`unexpected`](revalidator.md#outcomes), `malformed` or `removed`",
    ),
    label(
        "revalidator_concurrency",
        "state",
        "`available` (without a job), `attempt` (claiming a job) or `subscribed` (has a job)",
    ),
    label("revalidator_concurrency", "job", "id or empty"),
    label(
        "revalidator_job_resume_unix_seconds",
        "state",
        "`waiting`, `active`, `suspended`, `cancelled` or `unknown`",
    ),
    label(
        "revalidator_job_resume_unix_seconds",
        "reason",
        "beginning of the text that states why the job is in this state (up to its first colon, at most 100 characters), or empty",
    ),
    label(
        "",
        "rule",
        "`id` in the limits file; for a global limit, its name and the `id`, such as `total/intake`",
    ),
    label(
        "producer_edge_requests_total",
        "outcome",
        "`accepted`; `uid_minted` (redirect that sets a user id); `opted_out`; `optout_…` (opt-out page); \
         `plan` (see `producer_plan_requests_total`); `sync_page`; `preflight` (a script may send its request); otherwise [the reason for rejection](runbook.md#highrejectrate)",
    ),
    label(
        "producer_plan_dsps_total",
        "outcome",
        "`offered`, or the reason to leave it out: `filter`, `scope`, `country`, `privacy`, `in_sync`, `daily_limit`, `sampled`, \
         `url_too_long`, `over_limit`",
    ),
    label(
        "producer_plan_returns_total",
        "outcome",
        "as in `producer_dsp_cookies_total`",
    ),
    label(
        "producer_privacy_total",
        "outcome",
        "see [privacy](partners.md#privacy)",
    ),
    label(
        "limiter_problems_total",
        "problem",
        "NAME of the page `/v1/problems/NAME`, which describes the problem",
    ),
    label("producer_api_requests_total", "code", ""),
    label("producer_subscriber_durable_sequence", "call", ""),
    label("producer_subscriber_applied_sequence", "call", ""),
    label("limiter_shared_decisions_total", "decided_by", ""),
    label("producer_build_info", "version", ""),
    label("producer_build_info", "commit", "`unknown` without git"),
    label("producer_build_info", "profile", "`dist` in releases"),
    label(
        "producer_limits_lease",
        "state",
        "[`ok`, `expired`, `fallback`, `guaranteed`, `refused`](limiter.md#failures-in-lease-mode)",
    ),
    label(
        "producer_dsp_cookies_total",
        "outcome",
        "`accepted`, or the reason for rejection, as in `producer_edge_requests_total`",
    ),
    label(
        "producer_dsp_would_refuse_total",
        "reason",
        "`uid_macro`, `uid_sentinel`, `uid_too_long_for_dsp`, `uid_pattern` or `privacy`",
    ),
    label("producer_dsp_contract", "name", ""),
];

/// Notes by metric.
pub(super) const NOTES: &[(&str, &str)] = &[
    ("producer_edge_request_seconds", "Excludes the network."),
    (
        "producer_dsp_cookies_total",
        "DSPs without their own series are counted as `other`, and requests without a readable DSP id as `none`.",
    ),
    (
        "producer_contracts_version",
        "Contract metrics are reported only with `--contracts`.",
    ),
    (
        "producer_subscriber_lost_cookies_total",
        "`lag_limit`: the subscriber lagged by more than `--queue-cookies`. `evicted`: it lagged or was disconnected for longer \
         than the log retains cookies.",
    ),
    (
        "producer_streams_without_age_support",
        "See [cookie age](stream.md#cookie-age).",
    ),
    (
        "consumer_lost_total",
        "`lag_limit`: this consumer lagged by more than the producer's `--queue-cookies`. `evicted`: it fell further behind \
         than the log retains cookies. `producer_ended`: the producer exited before it delivered the cookies. `unspecified`: unknown. With `--archive`, the \
         reasons of `consumer_archive_lost_cookies_total` instead.",
    ),
    (
        "producer_subscriber_resumes_total",
        "`fresh`: the subscriber was unknown. `resumed`: the stream continues from the subscriber's position, or slightly before. \
         `resumed_with_gap`: some cookies after that position are gone. `new_epoch`: the position is from a different epoch \
         (run) of this producer.",
    ),
    (
        "producer_limits_accepted_cookies_total",
        "`producer_limits_…` metrics are reported only if the contracts file contains limits.",
    ),
    (
        "producer_limits_exceeded_cookies_total",
        "`rule` is the rule with the longest wait.",
    ),
    (
        "producer_limits_delay_seconds",
        "Cookies that did not wait count as 0; early releases are excluded.",
    ),
    (
        "producer_limit_share",
        "Share metrics are reported only with `[sharing]` in the contracts file.",
    ),
    (
        "limiter_shared_decisions_total",
        "Reported only with `[sharing]` and `mode = \"exact\"` in the limits file.",
    ),
    (
        "producer_grpc_calls_refused_total",
        "`calls`: too many unfinished calls. `bytes`: unfinished requests used too much memory. `health_checks`: too many health checks \
         on one connection, from one address, or in total.",
    ),
    (
        "consumer_failed_total",
        "`malformed`: invalid on arrival. `expired`: past its time to live on arrival. `no_dsp_slot`: the DSP is in --rejected-dsps, or \
         is not in --dsps and --unlisted-dsps-max unlisted DSPs are already accepted. `rejected`: became a dead letter. \
         `unreadable`: damaged in the retry queue.",
    ),
    (
        "consumer_archive_missing_cookies_total",
        "Recovery metrics are reported only with `--archive`. `missing` = `recovered` + `lost` + `recovering`.",
    ),
    (
        "consumer_producer_connected",
        "Reported for up to 256 producers.",
    ),
    (
        "consumer_producer_lag_cookies",
        "For cookies that the producer has not yet sent, see `producer_subscriber_lag_cookies`.",
    ),
    (
        "consumer_clock_skew_seconds",
        "It is at most the duration of a call if the clocks agree, negative if the producer's clock is ahead, and larger if that clock \
         is behind.",
    ),
];
