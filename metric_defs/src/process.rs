//! Resource usage of a process, under the standard names of the Prometheus client libraries.

#![expect(missing_docs, reason = "the help text documents the metric")]

use crate::MetricDef;

pub const CPU_SECONDS: MetricDef = MetricDef::counter(
    "process_cpu_seconds_total",
    "User and system CPU time used, in seconds.",
);
pub const OPEN_FILES: MetricDef =
    MetricDef::gauge("process_open_fds", "Number of open file descriptors.");
pub const OPEN_FILES_MAX: MetricDef = MetricDef::gauge(
    "process_max_fds",
    "Maximum number of open file descriptors.",
);
pub const VIRTUAL_BYTES: MetricDef = MetricDef::gauge(
    "process_virtual_memory_bytes",
    "Virtual memory size in bytes.",
);
pub const RESIDENT_BYTES: MetricDef = MetricDef::gauge(
    "process_resident_memory_bytes",
    "Resident memory size in bytes.",
);
pub const STARTED: MetricDef = MetricDef::gauge(
    "process_start_time_seconds",
    "Unix time at which the process started.",
);
pub const THREADS: MetricDef =
    MetricDef::gauge("process_threads", "Number of OS threads in the process.");
