//! Metrics of `limiter serve`.

metrics! {
    DECISIONS counter "limiter_decisions_total" by ["limit", "outcome"]
        "Reservations by outcome: granted immediately (now), granted for later (delayed), or not granted (refused)."
    DELAYS counter "limiter_delays_total" by ["limit"]
        "Requests to the `delay` operation."
    INCREMENTS counter "limiter_increments_total" by ["limit", "outcome"]
        "Calls that clients reported with `increment`, by outcome: counted, too old to have an effect (too_old), or rejected because their time is in the future (too_early)."
    OUTBOUND_429 counter "limiter_outbound_429_total" by ["limit"]
        "Partner responses with status 429 that clients reported with `feedback`."
    FEEDBACK_APPLIED counter "limiter_feedback_applied_total" by ["limit"]
        "Reported partner responses that restricted a counter."
    RESTRICTED_COUNTERS gauge "limiter_feedback_restricted_counters" by ["limit"]
        "Counters restricted below their limit by partner feedback."
    QUOTA_USED gauge "limiter_quota_used_ratio" by ["limit"]
        "For windows of one hour or more, the highest fraction of the quota that any counter of the limit has used. The quota reserved by waiting calls counts as used, so the value can exceed 1."
    LIMIT_COUNTERS gauge "limiter_limit_counters" by ["limit"]
        "Counters that the limit uses, one for each key and rule."
    COUNTERS gauge "limiter_counters"
        "Counters in use across all limits."
    COUNTERS_MAX gauge "limiter_counters_max"
        "Maximum number of counters (--counters)."
    LIMITS gauge "limiter_limits" by ["source"]
        "Limits in effect, by source: the limits file, or the MongoDB collection (--limits-collection)."
    COLLECTION_AGE gauge "limiter_collection_age_seconds"
        "Time since the MongoDB collection with limits was last read, or since startup if it was never read. Absent without --limits-collection."
    VERSION gauge "limiter_limits_version"
        "Version of the limits in effect: 1 at the start, incremented by each change."
    VERSION_REFUSED gauge "limiter_limits_version_refused"
        "1 while the newest version of the limits file or the collection is rejected."
    REQUESTS counter "limiter_requests_total" by ["call", "status"]
        "API requests, by operation and status class."
    PROBLEMS counter "limiter_problems_total" by ["problem"]
        "Error responses, by problem type."
    REQUEST_SECONDS histogram "limiter_request_seconds" in LIMITER_SECONDS
        "Time from receiving a request to its response, excluding reservations whose response is delayed until the call may be made."
    WAITING gauge "limiter_waiting"
        "Reservations whose response is delayed."
    STATE_AGE gauge "limiter_state_age_seconds"
        "Time since the last sync of the state to disk."
    SHARED_DECISIONS counter "limiter_shared_decisions_total" by ["decided_by"]
        "Calls under shared limits, by what decided them. `server`: the sharing server. `none`: the server was unavailable, and the call was refused."
    SHARING_SERVER gauge "limiter_sharing_server_up"
        "1 while the server of the shared limits is available. Absent without shared limits."
    CLOCK_BEHIND gauge "limiter_clock_behind_seconds"
        "Seconds by which the system clock lags the limiter's clock, which is never set back; 0 if it does not lag."
}
