//! Metrics of the revalidator.

metrics! {
    REQUESTS counter "revalidator_requests_total" by ["app", "outcome"]
        "Checks of assets (cached objects) at their origin server, by outcome. Repeated checks are included."
    RESPONSE_SECONDS histogram "revalidator_response_seconds" in ORIGIN_SECONDS by ["app"]
        "Time from sending a request to an origin until the first byte of the response."
    CONCURRENCY gauge "revalidator_concurrency" by ["worker", "app", "job", "state"]
        "Parallel requests that a worker sends to the origin of its job; 0 while it has no job. Every process exports the values of all workers."
    REMOVED counter "revalidator_removed_total" by ["app"]
        "Objects removed because the origin reported them as gone, because they were unused (prune_after), or because their job removes all objects."
    HELD_BACK counter "revalidator_held_back_total" by ["app"]
        "Objects kept because their batch would otherwise have removed a larger fraction than the application's setting `max_removals` allows."
    BATCHES_REPEATED counter "revalidator_batches_repeated_total"
        "Batch results that were ignored because the batch already had a result."
    NOTES_FAILED counter "revalidator_notes_failed_total"
        "Check results of confirmed or missing matches (notes) that could not be stored, because their NATS bucket is full or NATS is unavailable."
    INVALID_MESSAGES counter "revalidator_invalid_messages_total"
        "Invalid NATS messages that were ignored."
    RESULT_BYTES gauge "revalidator_result_bytes"
        "Size of the results of all jobs, up to 4 GiB. Above 3 GiB, workers receive only assets of the oldest job. 0 with --no-maker."
    JOBS gauge "revalidator_jobs" by ["state"]
        "Jobs by state, including ended jobs that are not yet deleted."
    JOB_ASSETS gauge "revalidator_job_assets" by ["job", "app"]
        "Assets of a job that have been sent to workers. Single checks have no series; of the jobs that finished or that an operator acknowledged, the last ten have."
    JOB_CHECKED gauge "revalidator_job_checked_assets" by ["job", "app"]
        "Assets of a job that have a final result."
    JOB_RESUME gauge "revalidator_job_resume_unix_seconds" by ["job", "app", "state", "reason"]
        "Unix time at which a suspended job, or one whose origin demands a pause, resumes; 0 for other jobs, or if only an operator can resume the job."
    SCHEDULE_NEXT gauge "revalidator_schedule_next_unix_seconds" by ["app"]
        "Unix time at which the schedule of an application creates the next job."
    OLDEST_WAITING gauge "revalidator_oldest_waiting_job_seconds"
        "Age of the oldest job that waits for a worker; 0 if there is none. A job that waits for an older job of its application is not counted, unless the program that created the older job has sent nothing for a minute."
    WORKERS gauge "revalidator_workers"
        "Running workers in all processes."
}
