//! Metrics of the revalidator.

#![expect(missing_docs, reason = "each metric has a help text")]

use crate::{MetricDef, buckets};

const APP: &[&str] = &["app"];
const JOB: &[&str] = &["job", "app"];

pub const REQUESTS: MetricDef = MetricDef::counter(
    "revalidator_requests_total",
    "Checks of assets (cached objects) at their origin server, by outcome. Repeated checks are included.",
)
.by(&["app", "outcome"]);
pub const RESPONSE_SECONDS: MetricDef = MetricDef::histogram(
    "revalidator_response_seconds",
    "Time from sending a request to an origin until the first byte of the response.",
    buckets::ORIGIN_SECONDS,
)
.by(APP);
pub const CONCURRENCY: MetricDef = MetricDef::gauge(
    "revalidator_concurrency",
    "Parallel requests that a worker sends to the origin of its job; 0 while it has no job. Every process exports the values of all workers.",
)
.by(&["worker", "app", "job", "state"]);
pub const REMOVED: MetricDef = MetricDef::counter(
    "revalidator_removed_total",
    "Objects removed because the origin reported them as gone, because they were unused (prune_after), or because their job removes all objects.",
)
.by(APP);
pub const HELD_BACK: MetricDef = MetricDef::counter(
    "revalidator_held_back_total",
    "Objects kept because their batch would otherwise have removed a larger fraction than the application's setting `max_removals` allows.",
)
.by(APP);
pub const BATCHES_REPEATED: MetricDef = MetricDef::counter(
    "revalidator_batches_repeated_total",
    "Batch results that were ignored because the batch already had a result.",
);
pub const NOTES_FAILED: MetricDef = MetricDef::counter(
    "revalidator_notes_failed_total",
    "Check results of confirmed or missing matches (notes) that could not be stored, because their NATS bucket is full or NATS is unavailable.",
);
pub const INVALID_MESSAGES: MetricDef = MetricDef::counter(
    "revalidator_invalid_messages_total",
    "Invalid NATS messages that were ignored.",
);
pub const RESULT_BYTES: MetricDef = MetricDef::gauge(
    "revalidator_result_bytes",
    "Size of the results of all jobs, up to 4 GiB. Above 3 GiB, workers receive only assets of the oldest job. 0 with --no-maker.",
);
pub const JOBS: MetricDef = MetricDef::gauge(
    "revalidator_jobs",
    "Jobs by state, including ended jobs that are not yet deleted.",
)
.by(&["state"]);
pub const JOB_ASSETS: MetricDef = MetricDef::gauge(
    "revalidator_job_assets",
    "Assets of a job that have been sent to workers. Single checks, finished jobs and jobs acknowledged by an operator have no series.",
)
.by(JOB);
pub const JOB_CHECKED: MetricDef = MetricDef::gauge(
    "revalidator_job_checked_assets",
    "Assets of a job that have a final result.",
)
.by(JOB);
pub const JOB_RESUME: MetricDef = MetricDef::gauge(
    "revalidator_job_resume_unix_seconds",
    "Unix time at which a suspended job, or one whose origin demands a pause, resumes; 0 for other jobs, or if only an operator can resume the job.",
)
.by(&["job", "app", "state", "reason"]);
pub const SCHEDULE_NEXT: MetricDef = MetricDef::gauge(
    "revalidator_schedule_next_unix_seconds",
    "Unix time at which the schedule of an application creates the next job.",
)
.by(APP);
pub const OLDEST_WAITING: MetricDef = MetricDef::gauge(
    "revalidator_oldest_waiting_job_seconds",
    "Age of the oldest job that waits for a worker; 0 if there is none. A job that waits for an older job of its application is not counted, unless the program that created the older job has sent nothing for a minute.",
);
pub const WORKERS: MetricDef =
    MetricDef::gauge("revalidator_workers", "Running workers in all processes.");
