//! Metrics of the producer, by component.

metrics! {
    // Sync requests.

    EDGE_REQUESTS counter "producer_edge_requests_total" by ["outcome"]
        "Sync requests by outcome."
    PRIVACY counter "producer_privacy_total" by ["outcome"]
        "Decisions of the privacy check on valid sync requests, by outcome. Matches are refused only in mode `enforce`."
    PLAN_REQUESTS counter "producer_plan_requests_total" by ["outcome"]
        "Requests for a sync plan, by outcome: planned (with DSPs), empty (without), uid_minted, uid_missing, opted_out, privacy, invalid, forbidden_origin, or too_large."
    PLAN_DSPS counter "producer_plan_dsps_total" by ["dsp", "outcome"]
        "DSPs that sync plans considered: offered, or left out, with the reason."
    PLAN_RETURNS counter "producer_plan_returns_total" by ["dsp", "outcome"]
        "Requests to /setuid with `p=1`, with which browsers return from the DSP of a plan, by outcome. Anyone can send them."
    EDGE_REQUEST_SECONDS histogram "producer_edge_request_seconds" in REQUEST_SECONDS
        "Time from reading a sync request to producing its response."
    DSP_COOKIES counter "producer_dsp_cookies_total" by ["dsp", "outcome"]
        "Sync requests by DSP and outcome."
    DSP_WOULD_REFUSE counter "producer_dsp_would_refuse_total" by ["dsp", "reason"]
        "Accepted matches that would be refused if the contract or the privacy check were not set to `observe`, by DSP and reason."
    DSP_CONTRACT gauge "producer_dsp_contract" by ["dsp", "name", "state"]
        "1 for each DSP in the contracts file, with its name and state."
    CONTRACTS_VERSION gauge "producer_contracts_version"
        "Version of the active contracts file: 1 at start, incremented by each reload."
    CONTRACTS_REFUSED_VERSION gauge "producer_contracts_version_refused"
        "1 while the newest version of the contracts file is rejected."

    // The log.

    APPENDED counter "producer_cookies_appended_total"
        "Cookies and deletions appended to the log. A cookie queued by a limit is counted when it is released."
    LOG_BYTES gauge "producer_log_bytes"
        "Size of the log."
    LOG_LIMIT_BYTES gauge "producer_log_limit_bytes"
        "Maximum size of the log."
    LOG_CHUNKS gauge "producer_log_chunks"
        "Chunks in the log."
    LOG_COOKIES gauge "producer_log_cookies"
        "Cookies and deletions in the log."
    LOG_RETAINED gauge "producer_log_retained_seconds"
        "Age of the oldest chunk in the log. A node that is disconnected for a shorter time loses nothing."
    LOG_CHUNKS_SEALED counter "producer_log_chunks_sealed_total" by ["reason"]
        "Chunks sealed (made ready to be sent), by reason: the chunk was full (size) or old enough (age), or the producer drained (drain)."

    // Subscribers.

    SUBSCRIBER_LIMIT gauge "producer_subscriber_limit_cookies"
        "Maximum lag of a subscriber in cookies. A subscriber that lags further loses the oldest cookies that it has not received."
    SUBSCRIBER_CONNECTED gauge "producer_subscriber_connected" by ["subscriber", "call"]
        "1 while the subscriber has an open stream."
    LAG gauge "producer_subscriber_lag_cookies" by ["subscriber", "call"]
        "Cookies that are ready to be sent (in sealed chunks), but not yet handed to the subscriber's stream."
    LAG_MAX gauge "producer_subscriber_lag_cookies_max" by ["subscriber", "call"]
        "Maximum lag of the subscriber in cookies over the last two scrape intervals."
    LAG_SECONDS gauge "producer_subscriber_lag_seconds" by ["subscriber", "call"]
        "Age of the oldest cookie that is ready to be sent (in a sealed chunk), but not yet handed to the subscriber's stream."
    SUBSCRIBER_APPENDED counter "producer_subscriber_appended_cookies_total" by ["subscriber", "call"]
        "Cookies appended to the log since the subscriber joined. Equals `(delivered - undelivered) + (lost - recovered) + queued`."
    DELIVERED counter "producer_subscriber_delivered_cookies_total" by ["subscriber", "call"]
        "Cookies handed to the subscriber's stream, each counted once."
    REDELIVERED counter "producer_subscriber_redelivered_cookies_total" by ["subscriber", "call"]
        "Cookies handed to the subscriber's new stream after a reconnect, although an earlier stream contained them."
    UNDELIVERED counter "producer_subscriber_undelivered_cookies_total" by ["subscriber", "call"]
        "Cookies that were counted as delivered, but never arrived and are now counted as lost."
    RECOVERED counter "producer_subscriber_recovered_cookies_total" by ["subscriber", "call"]
        "Cookies that were counted as lost, but were delivered later, because the subscriber resumed from an earlier position."
    QUEUED gauge "producer_subscriber_queued_cookies" by ["subscriber", "call"]
        "Cookies in the log that are neither delivered to the subscriber nor lost, including those in chunks that are not yet sealed."
    SENT_BYTES counter "producer_subscriber_sent_bytes_total" by ["subscriber", "call"]
        "Bytes handed to the subscriber's stream."
    STREAMS counter "producer_subscriber_streams_total" by ["subscriber", "call"]
        "Streams opened by the subscriber."
    SUBSCRIBER_IN_FLIGHT_BYTES gauge "producer_subscriber_in_flight_bytes" by ["subscriber", "call"]
        "Bytes in flight to the subscriber."
    SUBSCRIBER_DISCONNECTS counter "producer_subscriber_disconnects_total" by ["subscriber", "call"]
        "Times that the producer closed a stream of the subscriber, because too many bytes were in flight on all streams together."
    SUBSCRIBER_LOST counter "producer_subscriber_lost_cookies_total" by ["subscriber", "call", "reason"]
        "Cookies that the subscriber will not receive, by reason."
    RESUMES counter "producer_subscriber_resumes_total" by ["subscriber", "call", "outcome"]
        "Streams opened by the subscriber, by resume outcome."
    SUBSCRIBERS_WITHOUT_SERIES gauge "producer_subscribers_without_series"
        "Subscribers without their own metric series, because there have been too many names."

    STREAMS_WITHOUT_AGE_SUPPORT gauge "producer_streams_without_age_support"
        "Open streams whose clients do not support cookie ages."

    // Bytes in flight and rejected calls.

    IN_FLIGHT_BYTES gauge "producer_in_flight_bytes"
        "Bytes in flight: handed to streams, but neither written to the network nor dropped yet."
    IN_FLIGHT_LIMIT_BYTES gauge "producer_in_flight_limit_bytes"
        "Bytes in flight above which the producer disconnects stalled subscribers, then those with the most bytes in flight."
    CALLS_REFUSED counter "producer_grpc_calls_refused_total" by ["reason"]
        "gRPC calls rejected because of a limit, by reason."
    STREAMS_REFUSED counter "producer_streams_refused_total" by ["code"]
        "Stream requests rejected, by gRPC status code."
    TOKEN_REFUSALS counter "producer_token_refusals_total" by ["reason"]
        "gRPC calls rejected because of a missing or invalid token, by reason."

    // Epoch history.

    EPOCH_HISTORY_RECORDED gauge "producer_epoch_history_recorded"
        "1 while the epoch history (the last sequence number of each run) is recorded. The loss from a crash then has a known maximum."

    // Archive.

    ARCHIVED counter "producer_archive_cookies_total"
        "Cookies and deletions that the archive has acknowledged."
    ARCHIVE_LOST counter "producer_archive_lost_cookies_total"
        "Cookies and deletions that the log evicted before they were archived. The archive has a gap instead."
    ARCHIVE_QUEUED gauge "producer_archive_queued_cookies"
        "Cookies and deletions in the log that are not archived yet."
    ARCHIVE_RETRIES counter "producer_archive_retries_total"
        "Attempts to publish a message to the archive that were not acknowledged."
    ARCHIVE_STATE gauge "producer_archive_state" by ["state"]
        "1 for the current state of the archive, 0 for the others: `connecting`; `current` (every cookie is archived within seconds); `behind` (acknowledged, but older cookies are waiting); `refused` (a setting of the NATS server or of the stream is unsuitable); `stalled` (no message was acknowledged for 10 s)."
    ARCHIVE_SECONDS histogram "producer_archive_seconds" in DELIVERY_SECONDS
        "Time from the first attempt to publish a message to the archive until its acknowledgement."
    REPORTING_NODES gauge "producer_archive_nodes" by ["report"]
        "Nodes without a stream that have reported their positions through the archive within --subscriber-retention. Receipts count nodes with a `verified` report; the names in an `unverified` report may be forged."
    REPORTS_REJECTED counter "producer_archive_node_reports_rejected_total"
        "Reports of nodes that were rejected: invalid, older than the last one of the node, more than 5 minutes in the future, or unverified under too many names."

    // DSP limits.

    DSP_LIMITS_ACCEPTED counter "producer_limits_accepted_cookies_total" by ["limit"]
        "Cookies accepted under the limit. Equals `released + superseded + dropped + spooled + queued + dead + parked`."
    DSP_LIMITS_RELEASED counter "producer_limits_released_cookies_total" by ["limit", "timing"]
        "Cookies released into the log, by timing: when the limit permitted it (scheduled), or earlier (early), because of a shutdown or a changed limit."
    DSP_LIMITS_SUPERSEDED counter "producer_limits_superseded_cookies_total" by ["limit"]
        "Queued cookies superseded by a newer cookie of the same user and DSP."
    DSP_LIMITS_DROPPED counter "producer_limits_dropped_cookies_total" by ["limit", "reason"]
        "Cookies dropped, by reason: the queue was full or the cookie was older than the stream format permits (bound), the limit was exceeded in mode police (police), a deletion covers the cookie (deleted), or the cookie could be neither spooled nor released at shutdown (drain)."
    DSP_LIMITS_SPOOLED counter "producer_limits_spooled_cookies_total" by ["limit"]
        "Queued cookies saved at shutdown in the --limits-spool file, for the next start."
    DSP_LIMITS_QUEUED gauge "producer_limits_queued_cookies" by ["limit"]
        "Cookies queued for release, including those that will be rescheduled because their wait exceeds max_wait."
    DSP_LIMITS_OVERDUE gauge "producer_limits_overdue_cookies" by ["limit"]
        "Overdue cookies waiting to be requeued: cookies that could not be released within max_age."
    DSP_LIMITS_PARKED gauge "producer_limits_parked_cookies" by ["limit"]
        "Parked cookies: overdue cookies that are no longer requeued, because they reached requeue.max."
    DSP_LIMITS_BYTES gauge "producer_limits_queue_bytes" by ["limit"]
        "Memory used by queued, overdue and parked cookies."
    DSP_LIMITS_OLDEST gauge "producer_limits_oldest_seconds" by ["limit"]
        "Time since the oldest queued, overdue or parked cookie was accepted."
    DSP_LIMITS_EXCEEDED counter "producer_limits_exceeded_cookies_total" by ["limit", "rule", "outcome"]
        "Cookies that exceeded a rule on arrival, by outcome: the required wait was at most max_wait (delayed), or longer (refused). In modes police and observe, all of them count as refused."
    DSP_LIMITS_BECAME_OVERDUE counter "producer_limits_overdue_total" by ["limit", "rule", "reason"]
        "Cookies that became overdue, by reason: older than max_age at their release time (age), or expected to be older after their wait (wait)."
    DSP_LIMITS_REQUEUED counter "producer_limits_requeued_cookies_total" by ["limit"]
        "Times that an overdue cookie was requeued."
    DSP_LIMITS_DELAY histogram "producer_limits_delay_seconds" in DSP_LIMITS_DELAY_SECONDS by ["limit"]
        "Time from acceptance of a cookie to its scheduled release."
    SHARING_SHARE gauge "producer_limit_share" by ["limit"]
        "Fraction of a shared limit that this producer may use now."
    SHARING_SUM gauge "producer_limit_share_sum" by ["limit"]
        "Sum of the shares of all producers in a shared limit, as last reported by the Redis server. It must never exceed 1."
    SHARING_STATE gauge "producer_limits_lease" by ["state"]
        "State of this producer's shares in the shared limits: 1 for the current state, 0 for the other states."
    API_REQUESTS counter "producer_api_requests_total" by ["code"]
        "Requests to the API, by status code of the response."
    API_ROWS counter "producer_api_rows_total" by ["outcome"]
        "Rows of bulk requests, by outcome: `accepted`, `dropped` by the DSP's limit, or a reason for rejection (all other outcomes)."
    DELETIONS_APPENDED counter "producer_deletions_total" by ["scope"]
        "Deletions appended to the log, by scope: all cookies of a user (user), a user's cookie of one DSP (pair), or all cookies of a DSP (dsp). Deletions by bulk requests (bulk) and on the opt-out page (optout) are counted separately."
    DELETIONS_AT_RISK counter "producer_deletions_at_risk_total"
        "Deletion requests whose response had `at_risk: true`, because too few nodes had confirmed the deletions in time."
    LAST_DELETION gauge "producer_last_deletion_sequence"
        "Sequence number of the newest deletion in the log; 0 if there is none in this epoch (run of the producer)."
    UNKNOWN_NODES gauge "producer_newest_deletion_unknown_nodes"
        "Nodes that may have missed the newest deletion (listed as `unknown` in its receipt)."
    DURABLE gauge "producer_subscriber_durable_sequence" by ["subscriber", "call"]
        "Newest sequence number of this epoch (run of the producer) that the subscriber has confirmed as durable. Reported only for `Subscribe` calls."
    APPLIED gauge "producer_subscriber_applied_sequence" by ["subscriber", "call"]
        "Sequence number up to which the subscriber has confirmed that it has carried out all deletions. Reported only for `Subscribe` calls."
}
